"""Checkpoints and results: they come back as they were given, and damage to them is detected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from holdfast.base.arguments import MAX_KEY_BYTES, MAX_TEXT_BYTES, MAX_U64, MAX_VALUE_BYTES
from holdfast.errors import Corrupt, Invalid
from holdfast.index import records
from holdfast.index.configuration import OnChange
from holdfast.index.records import SourceCheckpoint, StoredCheckpoint
from holdfast.index.source_checkpoints import MAX_POSITION_BYTES
from holdfast.storage.kv import records as kv_records
from holdfast.storage.kv.store import Row
from holdfast.testing.conformance.index.subject import NOW, IndexUnderTest, contents, fill

POSITIONS = [None, b"", b"\0", b"8 bytes.", bytes(range(20)), b"\xff" * 80]
ODD_IDS = [
    "a",
    "a:b",
    "b",
    "a/b",
    "s/a",
    "a\n",
    "é",
    "e\u0301",
    "源",
    " ",
    "..",
    "%2F",
    "{a}",
    "a\x01b",
    "A",
    "source_position:a",
]


class KeepingConformance(IndexUnderTest):
    """`stage_checkpoint`, `read_checkpoint`, `read_all_checkpoints`; `put`, `get`, `delete`, `scan`."""

    def test_says_whether_it_lasts(self) -> None:
        assert self.open().checkpoints.is_persistent is self.abilities.persistent

    def test_empty_index(self) -> None:
        index = self.reopened(self.open())
        assert index.checkpoints.read_all_checkpoints() == {}
        assert index.checkpoints.read_checkpoint("s") is None
        assert index.checkpoints.read_config_hash() is None
        assert index.gaps() == []
        assert contents(index) == {}

    @pytest.mark.parametrize("position", POSITIONS)
    def test_checkpoint_round_trip(self, position: bytes | None) -> None:
        index = self.open()
        with index.session():
            index.checkpoints.stage_checkpoint("s", 17, position)
            index.checkpoints.stage_checkpoint("other", MAX_U64)
            index.checkpoints.stage_checkpoint("third", 0, b"boundary")
        index = self.reopened(index)
        expected = {
            "s": SourceCheckpoint(17, position),
            "other": SourceCheckpoint(MAX_U64, None),
            "third": SourceCheckpoint(0, b"boundary"),
        }
        assert index.checkpoints.read_all_checkpoints() == expected
        for source_id, checkpoint in expected.items():
            assert index.checkpoints.read_checkpoint(source_id) == checkpoint
        assert index.checkpoints.read_all_stored()["s"] == StoredCheckpoint(expected["s"], int(NOW * 1000))

    def test_overwriting_changes_one_source(self) -> None:
        index = self.open()
        fill(index)
        with index.session():
            index.checkpoints.stage_checkpoint("source-1", 100, b"further")
        index = self.reopened(index)
        assert index.checkpoints.read_all_checkpoints() == {
            "source-0": SourceCheckpoint(0, b"position-0"),
            "source-1": SourceCheckpoint(100, b"further"),
            "source-2": SourceCheckpoint(2, b"position-2"),
        }

    def test_no_position_removes_the_one_that_was_stored(self) -> None:
        index = self.open()
        fill(index)
        with index.session():
            index.checkpoints.stage_checkpoint("source-1", 9)
        assert self.reopened(index).checkpoints.read_checkpoint("source-1") == SourceCheckpoint(9, None)

    def test_sequence_may_go_back(self) -> None:
        index = self.open()
        for sequence in (9, 3):
            with index.session():
                index.checkpoints.stage_checkpoint("s", sequence)
        assert self.reopened(index).checkpoints.read_checkpoint("s") == SourceCheckpoint(3)

    def test_ids_that_look_like_keys_stay_apart(self) -> None:
        ids = [*ODD_IDS, "x" * MAX_TEXT_BYTES, "x" * (MAX_TEXT_BYTES - 1), "é" * (MAX_TEXT_BYTES // 2)]
        index = self.open()
        with index.session():
            for number, source_id in enumerate(ids):
                index.checkpoints.stage_checkpoint(source_id, number, source_id.encode())
        index = self.reopened(index)
        expected = {source_id: SourceCheckpoint(number, source_id.encode()) for number, source_id in enumerate(ids)}
        assert index.checkpoints.read_all_checkpoints() == expected
        with index.session():
            index.checkpoints.stage_checkpoint("a", 1000)
        assert index.checkpoints.read_all_checkpoints() == expected | {"a": SourceCheckpoint(1000)}

    def test_checkpoints_and_results_have_nothing_in_common(self) -> None:
        index = self.open()
        keys = [b"s/source-0", b"hash", b"format", b"reset", b"g/" + bytes(8), b"source-0"]
        with index.session():
            for key in keys:
                index.results.put(key, b"x")
        fill(index)
        index.checkpoints.write_config_hash(3)
        with index.session():
            for key in keys:
                index.results.delete(key)
        index = self.reopened(index)
        assert index.checkpoints.read_config_hash() == 3
        assert len(index.checkpoints.read_all_checkpoints()) == len(contents(index)) == 3

    @pytest.mark.parametrize("wrong", [None, 1, b"bytes", "", "x" * (MAX_TEXT_BYTES + 1), "é" * 513, "a\0b", "\ud800"])
    def test_ids_that_are_refused(self, wrong: Any) -> None:
        index = self.open()
        fill(index)
        with index.session():
            with pytest.raises(Invalid, match="source_id"):
                index.checkpoints.stage_checkpoint(wrong, 1)
            with pytest.raises(Invalid, match="source_id"):
                index.checkpoints.read_checkpoint(wrong)
            index.results.put(b"after", b"x")
        assert len(index.checkpoints.read_all_checkpoints()) == 3
        assert index.results.get(b"after") == b"x"

    @pytest.mark.parametrize("wrong", [-1, MAX_U64 + 1, pytest.param(10**5000, id="huge"), True, 1.0, "1", None])
    def test_sequences_that_are_refused(self, wrong: Any) -> None:
        index = self.open()
        fill(index)
        with index.session(), pytest.raises(Invalid, match="sequence"):
            index.checkpoints.stage_checkpoint("source-1", wrong, b"x")
        assert index.checkpoints.read_checkpoint("source-1") == SourceCheckpoint(1, b"position-1")

    @pytest.mark.parametrize("size", [MAX_POSITION_BYTES - 1, MAX_POSITION_BYTES, MAX_POSITION_BYTES + 1])
    def test_positions_at_the_limit(self, size: int) -> None:
        """A position that is too large is refused; the last good one stays."""
        assert MAX_POSITION_BYTES == 65_536
        index = self.open()
        fill(index)
        position = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        with index.session():
            if size > MAX_POSITION_BYTES:
                with pytest.raises(Invalid, match="65536") as caught:
                    index.checkpoints.stage_checkpoint("source-1", 9, position)
                assert caught.value.about == "source_position"
            else:
                index.checkpoints.stage_checkpoint("source-1", 9, position)
        expected = SourceCheckpoint(9, position) if size <= MAX_POSITION_BYTES else SourceCheckpoint(1, b"position-1")
        assert self.reopened(index).checkpoints.read_checkpoint("source-1") == expected

    @pytest.mark.parametrize("given", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXcX")[::2]])
    def test_anything_like_bytes_is_kept_as_it_is_now(self, given: Any) -> None:
        index = self.open()
        given = bytearray(given) if isinstance(given, bytearray) else given
        with index.session():
            index.checkpoints.stage_checkpoint("s", 1, given)
            index.results.put(given, given)
            if isinstance(given, bytearray):
                given[:] = b"xyz"
        assert index.checkpoints.read_checkpoint("s") == SourceCheckpoint(1, b"abc")
        assert contents(index) == {b"abc": b"abc"}

    @pytest.mark.parametrize("wrong", ["text", 1, [1]])
    def test_what_is_not_bytes_is_refused(self, wrong: Any) -> None:
        index = self.open()
        with index.session():
            for call in (
                lambda: index.checkpoints.stage_checkpoint("s", 1, wrong),
                lambda: index.results.put(wrong, b"x"),
                lambda: index.results.put(b"x", wrong),
                lambda: index.results.get(wrong),
                lambda: index.results.delete(wrong),
                lambda: index.results.scan(wrong),
            ):
                with pytest.raises(Invalid):
                    call()
        assert contents(index) == {}

    def test_results_round_trip(self) -> None:
        index = self.open()
        expected = {bytes([number]): bytes([number]) * number for number in range(256)}
        expected |= {b"\xff" * 3: b"high", b"x" * MAX_KEY_BYTES: b"long", b"big": bytes(1 << 20), b"empty": b""}
        with index.session():
            for key, value in expected.items():
                index.results.put(key, value)
        index = self.reopened(index)
        assert contents(index) == expected
        for key, value in expected.items():
            assert index.results.get(key) == value
        assert index.results.get(b"not there") is None

    def test_keys_and_values_that_are_refused(self) -> None:
        index = self.open()
        with index.session():
            wrong: list[Any] = [b"", b"x" * (MAX_KEY_BYTES + 1), None]
            for key in wrong:
                with pytest.raises(Invalid):
                    index.results.put(key, b"v")
                with pytest.raises(Invalid):
                    index.results.delete(key)
                with pytest.raises(Invalid):
                    index.results.get(key)
            wrong = [None, memoryview(bytes(MAX_VALUE_BYTES + 1)), bytes(MAX_VALUE_BYTES + 1)]
            for value in wrong:
                with pytest.raises(Invalid):
                    index.results.put(b"k", value)
        assert contents(index) == {}

    def test_scans(self) -> None:
        index = self.open()
        keys = [
            b"a",
            b"a\x00",
            b"a\xff",
            b"a\xff\xff",
            b"aa",
            b"b",
            b"\xff",
            b"\xff\xff",
            b"\xff\x00",
            b"%",
            b"a%",
            b"*",
        ]
        with index.session():
            for key in reversed(keys):
                index.results.put(key, b"of " + key)
        for prefix in [b"", b"zz", b"b\x00", b"a\xff\xff\xff", *keys]:
            found = list(index.results.scan(prefix))
            assert found == [(key, b"of " + key) for key in sorted(keys) if key.startswith(prefix)]
        assert list(index.results.scan(b"x" * MAX_KEY_BYTES)) == []
        with pytest.raises(Invalid):
            index.results.scan(b"x" * (MAX_KEY_BYTES + 1))

    def test_scan_goes_on_while_others_read_and_commit(self) -> None:
        index = self.open()
        with index.session():
            for number in range(3000):
                index.results.put(b"%06d" % number, b"x")
        scan = index.results.scan()
        assert next(scan) == (b"000000", b"x")
        with index.session():
            index.results.put(b"000000", b"new")
            index.results.delete(b"002999")
        assert index.results.get(b"000000") == b"new"
        assert index.results.get(b"002999") is None
        rest = [key for key, _ in scan]
        assert rest[:2998] == [b"%06d" % number for number in range(1, 2999)]

    def test_many_sources_are_read_in_one_scan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = self.open()
        with index.session():
            for number in range(10_000):
                index.checkpoints.stage_checkpoint(f"source-{number}", number, b"%d" % number)
        index = self.reopened(index)
        store = self._stores[-1]
        calls: list[str] = []
        really = store.scan

        def scan(space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
            calls.append("scan")
            return really(space, start, end, limit)

        monkeypatch.setattr(store, "scan", scan)
        for name in ("get", "get_many"):
            monkeypatch.setattr(store, name, lambda *_: calls.append("get"))
        found = index.checkpoints.read_all_checkpoints()
        assert calls == ["scan"]
        assert len(found) == 10_000
        assert found["source-9999"] == SourceCheckpoint(9999, b"9999")

    # Damage.

    def test_damaged_checkpoint_names_its_source(self) -> None:
        index = self.open()
        fill(index)
        key = records.checkpoint_key(b"source-1")
        good = self.planted("meta", key)
        flipped = [bytes([*good[:at], good[at] ^ 1, *good[at + 1 :]]) for at in range(len(good))]
        for bad in [b"", b"\x01", good[:-1], good + b"x", good[1:], b"12345678", *flipped]:
            self.plant("meta", key, bad)
            with pytest.raises(Corrupt, match="source-1") as caught:
                index.checkpoints.read_checkpoint("source-1")
            assert caught.value.next_step
            with pytest.raises(Corrupt, match="source-1"):
                index.checkpoints.read_all_checkpoints()
            assert index.checkpoints.read_checkpoint("source-2") == SourceCheckpoint(2, b"position-2")
        self.plant("meta", key, self.planted("meta", records.checkpoint_key(b"source-2")))
        with pytest.raises(Corrupt):
            index.checkpoints.read_checkpoint("source-1")
        with index.session():
            index.checkpoints.stage_checkpoint("source-1", 4)
        assert index.checkpoints.read_checkpoint("source-1") == SourceCheckpoint(4)

    def test_damaged_key_of_a_checkpoint(self) -> None:
        index = self.open()
        self.plant("meta", b"s/\xff\xfe", b"x")
        with pytest.raises(Corrupt):
            index.checkpoints.read_all_checkpoints()

    def test_checkpoint_of_a_newer_release(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = self.open()
        with monkeypatch.context() as newer:
            newer.setattr(kv_records, "_HEADER", bytes((kv_records.VERSION + 1,)))
            fill(index)
        for call in (lambda: index.checkpoints.read_checkpoint("source-1"), index.checkpoints.read_all_checkpoints):
            with pytest.raises(Invalid, match="newer release") as caught:
                call()
            assert caught.value.code == "index.newer"

    def test_damaged_configuration_hash(self) -> None:
        index = self.open()
        fill(index)
        index.checkpoints.write_config_hash(7)
        good = self.planted("meta", records.HASH_KEY)
        for bad in (b"", bytes(8), good[:-1], good[:-5] + good[-4:], bytes([*good[:-1], good[-1] ^ 1])):
            self.plant("meta", records.HASH_KEY, bad)
            with pytest.raises(Corrupt):
                index.checkpoints.read_config_hash()
            for policy in get_args(OnChange):
                with pytest.raises(Corrupt):
                    index.configure(7, on_change=policy)
        assert len(contents(index)) == len(index.checkpoints.read_all_checkpoints()) == 3
        index.reset()
        assert index.checkpoints.read_config_hash() is None

    def test_index_of_a_newer_release(self) -> None:
        index = self.open()
        fill(index)
        newer = records.encode_format(records.FORMAT + 1)
        self.plant("meta", records.FORMAT_KEY, newer)
        index.close()
        if not self.abilities.persistent:
            assert contents(self.open()) == {}
            return
        for _ in range(2):
            with pytest.raises(Invalid, match="newer release"):
                self.open()
        store = self.open_store()
        assert store.get("meta", records.FORMAT_KEY) == newer
        assert len(list(store.scan("results", b"", None))) == 3
        store.close()

    @pytest.mark.parametrize("bad", [None, b"", b"\x01\x00\x01xxxx"])
    def test_format_record_that_is_damaged_or_gone(self, bad: bytes | None) -> None:
        index = self.open()
        fill(index)
        self.plant("meta", records.FORMAT_KEY, bad)
        index.close()
        if not self.abilities.persistent:
            assert contents(self.open()) == {}
            return
        for _ in range(2):
            with pytest.raises(Corrupt):
                self.open()
