"""Saving: the objects that it leaves, their names and their checksums."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json

import pytest
from msgspec.structs import replace

from holdfast.checkpoints.batcher import CheckpointBatcher
from holdfast.checkpoints.layout import DirectoryLayout
from holdfast.checkpoints.manifest import OperatorCheckpoint, SidecarObject
from holdfast.errors import Fenced, Invalid
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest, with_everything


class SavingConformance(StoreUnderTest):
    """`save`, `save_with_state`, `save_state_data` and the objects that they leave."""

    def test_saved_is_latest_through_any_handle(self) -> None:
        self.open().save(manifest(1, watermark=9))
        found = self.open().load_latest()
        assert found is not None
        assert (found.checkpoint_id, found.epoch, found.watermark) == (1, 1, 9)

    def test_every_field_comes_back(self) -> None:
        saved = with_everything(3)
        self.open().save(saved)
        found = self.open().load_by_id(3)
        assert found is not None
        stamped = ("holdfast", "size_bytes", "state_checksum")
        for field in saved.__struct_fields__:
            if field not in stamped:
                assert getattr(found, field) == getattr(saved, field), field

    def test_nothing_is_made_before_the_first_write(self) -> None:
        store = self.open()
        assert store.load_latest() is None
        assert store.recover_latest_validated().chosen_id is None
        assert self.all_keys() == []

    def test_exact_keys(self) -> None:
        store = self.open()
        store.save_with_state(manifest(1), [b"state"])
        batcher = CheckpointBatcher(store)
        batcher.add("k", b"v")
        batcher.flush(7)
        if isinstance(self.layout, DirectoryLayout):
            expected = [
                "checkpoints/batch-000007.lz4",
                "checkpoints/checkpoint_000001/manifest.json",
                "checkpoints/checkpoint_000001/state.bin",
                "checkpoints/latest.txt",
            ]
        else:
            expected = [
                "checkpoints/batch-000007.lz4",
                "checkpoints/state-000001.bin",
                "manifests/latest.json",
                "manifests/manifest-000001.json",
            ]
        assert self.all_keys() == expected

    def test_pointer_format(self) -> None:
        self.open().save(manifest(12))
        body = self.read(self.layout.pointer_key)
        if isinstance(self.layout, DirectoryLayout):
            assert body == b"checkpoint_000012"
        else:
            assert json.loads(body) == {"checkpoint_id": 12}

    def test_ids_of_more_than_six_digits(self) -> None:
        store = self.open()
        store.save(manifest(1_000_000))
        store.save(manifest(999_999))
        store.save(manifest(2**64 - 1))
        assert self.open().list_ids() == [999_999, 1_000_000, 2**64 - 1]

    def test_pointer_never_goes_back(self) -> None:
        store = self.open()
        store.save(manifest(10))
        store.save(manifest(5))
        assert self.open().latest_pointer() == 10
        self.open().save(manifest(6))
        assert self.open().latest_pointer() == 10
        latest = self.open().load_latest()
        assert latest is not None
        assert latest.checkpoint_id == 10

    def test_pointer_that_is_garbage_or_dangling_is_put_right_by_the_next_save(self) -> None:
        for number, wrong in enumerate((b"", b"\xff\xfe garbage", self.layout.pointer_body(999_999)), start=1):
            self.overwrite(self.layout.pointer_key, wrong)
            self.open().save(manifest(number))
            assert self.open().latest_pointer() == number

    # Sidecars

    def test_state_comes_back_chunks_in_order(self) -> None:
        store = self.open()
        store.save_state_data(1, [b"one ", bytearray(b"two "), memoryview(b"three"), b""])
        assert store.load_state_data(1) == b"one two three"
        assert self.open().load_state_data(1) == b"one two three"
        assert self.read(self.sidecar_key(1)) == b"one two three"

    def test_no_state_is_none(self) -> None:
        store = self.open()
        assert store.load_state_data(1) is None
        store.save(manifest(1))
        assert store.load_state_data(1) is None

    def test_save_with_state_writes_both(self) -> None:
        self.open().save_with_state(manifest(1), [b"abc", b"def"])
        assert self.open().load_state_data(1) == b"abcdef"
        assert self.open().list_ids() == [1]
        assert self.document(1)["holdfast"]["sidecar"] == {"key": self.sidecar_key(1), "bytes": 6}

    def test_save_with_no_state_is_save(self) -> None:
        self.open().save_with_state(manifest(1), None)
        assert self.open().list_ids() == [1]
        assert self.open().load_state_data(1) is None
        assert self.sidecar_key(1) not in self.all_keys()

    def test_empty_state_is_state(self) -> None:
        self.open().save_with_state(manifest(1), [])
        assert self.open().load_state_data(1) == b""
        assert self.open().validate_checkpoint(1).valid

    def test_state_alone_is_invisible(self) -> None:
        self.open().save_state_data(4, [b"no manifest yet"])
        store = self.open()
        assert store.list_ids() == []
        assert store.list() == []
        assert store.load_latest() is None
        assert store.recover_latest_validated().examined == 0

    def test_state_written_ahead_is_owned_by_the_save_that_follows(self) -> None:
        store = self.open()
        store.save_state_data(1, [b"ahead"])
        store.save(manifest(1, operator_states={"agg": OperatorCheckpoint.external_slice(0, 5)}))
        assert self.document(1)["state_checksum"] == hashlib.sha256(b"ahead").hexdigest()
        assert self.open().validate_checkpoint(1).valid
        assert self.open_later().cleanup_orphans() == 0
        assert self.open().load_states(1) == {"agg": b"ahead"}

    def test_state_cannot_be_added_to_a_saved_checkpoint(self) -> None:
        self.open().save(manifest(1))
        with pytest.raises(Fenced):
            self.open().save_state_data(1, [b"too late"])
        assert self.open().load_state_data(1) is None

    # Checksums

    def test_checksum_of_a_sidecar_is_its_sha256(self) -> None:
        external = {"agg": OperatorCheckpoint.external_slice(0, 6)}
        self.open().save_with_state(manifest(1, operator_states=external), [b"abc", b"def"])
        assert self.document(1)["state_checksum"] == hashlib.sha256(b"abcdef").hexdigest()

    def test_checksum_of_inline_state(self) -> None:
        operators = {"b": OperatorCheckpoint.inline(b"2"), "a": OperatorCheckpoint.inline(b"1")}
        self.open().save(manifest(1, operator_states=operators))
        assert self.document(1)["state_checksum"] == _inline_sum({"a": b"1", "b": b"2"})

    def test_checksum_of_inline_state_and_sidecar(self) -> None:
        operators = {"a": OperatorCheckpoint.inline(b"1"), "b": OperatorCheckpoint.external_slice(0, 3)}
        self.open().save_with_state(manifest(1, operator_states=operators), [b"xyz"])
        mixed = hashlib.sha256(_inline_sum({"a": b"1"}).encode() + b"xyz").hexdigest()
        assert self.document(1)["state_checksum"] == mixed
        assert self.open().validate_checkpoint(1).valid

    def test_inline_state_beside_a_sidecar_nobody_slices_is_valid(self) -> None:
        operators = {"a": OperatorCheckpoint.inline(b"1")}
        self.open().save_with_state(manifest(1, operator_states=operators), [b"opaque"])
        assert self.open().validate_checkpoint(1).valid
        self.damage(self.sidecar_key(1))
        assert not self.open().validate_checkpoint(1).valid

    def test_manifest_derived_from_a_loaded_one_gets_checksums_of_its_own(self) -> None:
        self.open().save(manifest(1, operator_states={"a": OperatorCheckpoint.inline(b"1")}))
        loaded = self.open().load_by_id(1)
        assert loaded is not None
        changed = {"a": OperatorCheckpoint.inline(b"2")}
        self.open().save(replace(loaded, checkpoint_id=2, epoch=2, operator_states=changed))
        assert self.open().validate_checkpoint(2).valid

    def test_sidecar_slice_without_a_sidecar_is_never_valid(self) -> None:
        with contextlib.suppress(Invalid):
            self.open().save(manifest(1, operator_states={"agg": OperatorCheckpoint.external_slice(0, 6)}))
        assert not self.open().validate_checkpoint(1).valid
        assert self.open().recover_latest_validated().chosen_id is None

    def test_state_written_ahead_through_another_handle(self) -> None:
        self.open().save_state_data(1, [b"abcdef"])
        self.open().save(manifest(1, operator_states={"agg": OperatorCheckpoint.external_slice(0, 6)}))
        assert self.open().validate_checkpoint(1).valid
        assert self.open().load_states(1) == {"agg": b"abcdef"}
        assert self.open_later().cleanup_orphans() == 0
        assert self.open().load_state_data(1) == b"abcdef"

    def test_sidecar_claimed_by_the_caller_is_not_believed(self) -> None:
        claimed = replace(manifest(1).own, sidecar=SidecarObject("checkpoints/elsewhere.bin", 3))
        self.open().save(manifest(1, holdfast=claimed))
        assert self.document(1)["holdfast"]["sidecar"] is None
        assert self.open().validate_checkpoint(1).valid

    def test_no_state_has_no_checksum(self) -> None:
        self.open().save(manifest(1))
        assert self.document(1)["state_checksum"] is None

    def test_size_is_that_of_everything_it_owns(self) -> None:
        store = self.open()
        batcher = CheckpointBatcher(store)
        batcher.add("k", b"v" * 100)
        batch = batcher.flush(1)
        assert batch is not None
        store.save_with_state(manifest(1).with_batches([batch]), [b"x" * 1000])
        bodies = [self.read(self.manifest_key(1)), self.read(self.sidecar_key(1)), self.read(batch.key)]
        assert self.document(1)["size_bytes"] == sum(map(len, bodies))

    def test_document_is_pretty_and_in_the_documented_order(self) -> None:
        self.open().save(with_everything(1))
        text = self.read(self.manifest_key(1)).decode()
        assert text.startswith('{\n  "version": 1,\n  "checkpoint_id": 1,\n  "epoch": 1,\n  "timestamp_ms": ')
        assert list(self.document(1))[-1] == "holdfast"

    def test_vnode_count_is_filled_in_where_it_was_left_open(self) -> None:
        store = self.open(vnode_count=8)
        assert store.vnode_count == 8
        store.save(manifest(1, vnode_count=0))
        assert self.document(1)["vnode_count"] == 8


def _inline_sum(states: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, data in sorted(states.items()):
        digest.update(name.encode() + b"\0" + base64.b64encode(data) + b"\0")
    return digest.hexdigest()
