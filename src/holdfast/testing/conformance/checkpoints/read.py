"""Reading: a bad pointer or a damaged checkpoint never hides other checkpoints."""

from __future__ import annotations

import pytest

from holdfast.checkpoints.manifest import OperatorCheckpoint
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest


class ReadingConformance(StoreUnderTest):
    """`load_latest`, `load_by_id`, `list`, `list_ids`, `load_states`."""

    def test_empty_store(self) -> None:
        store = self.open()
        assert store.load_latest() is None
        assert store.load_by_id(1) is None
        assert store.list() == []
        assert store.list_ids() == []
        assert store.latest_pointer() is None
        assert store.vnode_count == 256

    def test_latest_of_five(self) -> None:
        store = self.open(max_retained=None)
        for number in range(1, 6):
            store.save(manifest(number, epoch=number * 10))
        latest = self.open().load_latest()
        assert latest is not None
        assert (latest.checkpoint_id, latest.epoch) == (5, 50)

    def test_by_id(self) -> None:
        store = self.open()
        store.save(manifest(1))
        store.save(manifest(2))
        found = self.open().load_by_id(1)
        assert found is not None
        assert found.checkpoint_id == 1
        assert self.open().load_by_id(3) is None

    @pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.0, None, 2**64])
    def test_what_is_no_id_is_refused(self, wrong: int) -> None:
        store = self.open()
        for call in (store.load_by_id, store.load_state_data, store.validate_checkpoint, store.load_states):
            with pytest.raises(Invalid):
                call(wrong)
        with pytest.raises(Invalid):
            store.save_state_data(wrong, [b"x"])
        assert self.all_keys() == []

    def test_list_is_ascending_whatever_the_order_of_saving(self) -> None:
        store = self.open(max_retained=None)
        for number in (3, 1, 11, 2):
            store.save(manifest(number, epoch=number + 100))
        assert self.open().list() == [(1, 101), (2, 102), (3, 103), (11, 111)]
        assert self.open().list_ids() == [1, 2, 3, 11]

    def test_damaged_one_is_listed_by_id_left_out_of_list_and_corrupt_to_load(self) -> None:
        store = self.open()
        store.save(manifest(1))
        store.save(manifest(2))
        self.damage(self.manifest_key(2))
        store = self.open()
        assert store.list_ids() == [1, 2]
        assert store.list() == [(1, 1)]
        with pytest.raises(Corrupt) as caught:
            store.load_by_id(2)
        assert self.manifest_key(2) in str(caught.value)
        with pytest.raises(Corrupt):
            store.load_latest()

    @pytest.mark.parametrize(
        "wrong",
        [b"", b"   \n", b"garbage", b"\xff\xfe\x00", b"checkpoint_", b"{", b"[]", b'{"checkpoint_id": "1"}', b"null"],
    )
    def test_pointer_that_says_nothing_does_not_hide_checkpoints(self, wrong: bytes) -> None:
        self.overwrite(self.layout.pointer_key, wrong)
        assert self.open().load_latest() is None
        self.open().save(manifest(1))
        self.overwrite(self.layout.pointer_key, wrong)
        self._expect_latest(1)

    def test_pointer_that_is_missing_does_not_hide_checkpoints(self) -> None:
        self.open().save(manifest(1))
        self.objects.delete([self.layout.pointer_key])
        self._expect_latest(1)

    def test_pointer_that_dangles_does_not_hide_checkpoints(self) -> None:
        self.overwrite(self.layout.pointer_key, self.layout.pointer_body(77))
        assert self.open().load_latest() is None
        self.open().save(manifest(1))
        self.overwrite(self.layout.pointer_key, self.layout.pointer_body(77))
        self._expect_latest(1)

    def test_pointer_that_lags_does_not_hide_the_newest(self) -> None:
        store = self.open()
        store.save(manifest(1))
        store.save(manifest(2))
        self.overwrite(self.layout.pointer_key, self.layout.pointer_body(1))
        self._expect_latest(2)

    def _expect_latest(self, checkpoint_id: int) -> None:
        latest = self.open().load_latest()
        assert latest is not None
        assert latest.checkpoint_id == checkpoint_id
        assert self.open().recover_latest_validated().chosen_id == checkpoint_id

    def test_names_that_we_would_not_give_are_ignored(self) -> None:
        self.open().save(manifest(1))
        key = self.manifest_key(1)
        for name in ("1", "0000001", "000000", "abc", "-00001", "000001 ", "99999999999999999999999"):
            self.overwrite(key.replace("000001", name), self.read(key))
        assert self.open().list_ids() == [1]
        assert self.open().list() == [(1, 1)]

    def test_stores_side_by_side_do_not_see_each_other(self) -> None:
        self.open().save_with_state(manifest(1), [b"mine"])
        self.open_beside().save_with_state(manifest(2), [b"theirs"])
        assert self.open().list_ids() == [1]
        assert self.open_beside().list_ids() == [2]
        assert self.open_beside().load_state_data(1) is None
        self.open_beside(orphan_grace=0).prune(1)
        assert self.open().load_state_data(1) == b"mine"

    def test_states_inline_and_external(self) -> None:
        operators = {
            "small": OperatorCheckpoint.inline(b"in"),
            "first": OperatorCheckpoint.external_slice(0, 3),
            "second": OperatorCheckpoint.external_slice(3, 4),
            "empty": OperatorCheckpoint.inline(b""),
        }
        self.open().save_with_state(manifest(1, operator_states=operators), [b"abc", b"defg"])
        expected = {"small": b"in", "first": b"abc", "second": b"defg", "empty": b""}
        assert self.open().load_states(1) == expected
        with pytest.raises(NotFound):
            self.open().load_states(2)

    @pytest.mark.parametrize("body", [b"", b"ab", b"abcdef", None])
    def test_states_of_a_sidecar_that_is_short_or_gone_are_corrupt(self, body: bytes | None) -> None:
        operators = {
            "first": OperatorCheckpoint.external_slice(0, 6),
            "second": OperatorCheckpoint.external_slice(6, 1),
        }
        self.open().save_with_state(manifest(1, operator_states=operators), [b"abcdefg"])
        if body is None:
            self.objects.delete([self.sidecar_key(1)])
        else:
            self.overwrite(self.sidecar_key(1), body)
        with pytest.raises(Corrupt) as caught:
            self.open().load_states(1)
        assert "operator" in str(caught.value)

    def test_only_what_changed_is_stored_and_everything_is_restored(self) -> None:
        store = self.open(max_retained=None)
        store.save_states(manifest(1), {"a": b"a1", "b": b"b1"})
        saved = store.save_states(manifest(2), {"a": b"a1", "b": b"b2"})
        assert (saved.is_incremental, saved.parent_id) == (True, 1)
        assert list(self.document(2)["operator_states"]) == ["b"]
        assert self.open().load_states(2) == {"a": b"a1", "b": b"b2"}
        assert self.open().load_states(1) == {"a": b"a1", "b": b"b1"}
