"""The batch format: compatible to the byte, and unimpressed by damage."""

from __future__ import annotations

import contextlib
import mmap
import struct
import tracemalloc
from pathlib import Path

import google_crc32c
import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints import batch_format
from holdfast.errors import Corrupt, Invalid, NotFound

ENTRIES = [("partition-0/agg", b"first"), ("partition-1/agg", b""), ("größe", b"\x00\xff" * 40)]


def joined(entries: list[tuple[str, bytes]]) -> bytes:
    return b"".join(batch_format.encode(entries))


def frames_by_hand(entries: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(struct.pack("<I", len(k)) + k + struct.pack("<I", len(d)) + d for k, d in entries)


def file_by_hand(
    raw: bytes, count: int, *, version: int = 2, size: int | None = None, inner: int | None = None, block: bytes = b""
) -> bytes:
    """A whole file built without the code under test, with a CRC that is right whatever else is wrong."""
    size = len(raw) if size is None else size
    block = block or lz4.block.compress(raw, store_size=False)
    body = struct.pack("<I", size if inner is None else inner) + block
    crc = struct.pack("<I", google_crc32c.value(body)) if version >= 2 else b""
    return b"LCB1" + struct.pack("<III", version, count, size) + crc + body


def refusal(body: bytes, *, limit: int = batch_format.MAX_RAW) -> str:
    with pytest.raises(Corrupt) as caught:
        batch_format.Batch(body, about="checkpoints/batch-000007.lz4", limit=limit)
    assert "checkpoints/batch-000007.lz4" in str(caught.value)
    return caught.value.code


def test_round_trip_keeps_entries_and_order() -> None:
    assert batch_format.decode(joined(ENTRIES), about="x") == ENTRIES


@given(st.lists(st.tuples(st.text(), st.binary(max_size=200)), unique_by=lambda entry: entry[0]))
def test_every_batch_round_trips(entries: list[tuple[str, bytes]]) -> None:
    assert batch_format.decode(joined(entries), about="x") == entries


def test_written_bytes_are_laminardb_s() -> None:
    body = joined(ENTRIES)
    raw = frames_by_hand([(key.encode(), data) for key, data in ENTRIES])
    assert body[:16] == b"LCB1" + struct.pack("<III", 2, 3, len(raw))
    assert struct.unpack("<I", body[16:20]) == (google_crc32c.value(body[20:]),)
    assert struct.unpack("<I", body[20:24]) == (len(raw),)
    assert lz4.block.decompress(body[24:], uncompressed_size=len(raw)) == raw


@pytest.mark.parametrize("version", [1, 2])
def test_reads_files_built_by_hand(version: int) -> None:
    raw = frames_by_hand([(b"a", b"1"), ("ö".encode(), b"22")])
    batch = batch_format.Batch(file_by_hand(raw, 2, version=version), about="x")
    assert batch.version == version
    assert list(batch.entries()) == [("a", b"1"), ("ö", b"22")]


def test_crc_is_castagnoli() -> None:
    assert google_crc32c.value(b"123456789") == 0xE3069283  # the check value of CRC-32C, RFC 3720
    long_enough_for_three_pieces = bytes(range(256)) * 10_000
    assert batch_format._crc32c(memoryview(long_enough_for_three_pieces)) == google_crc32c.value(
        long_enough_for_three_pieces
    )


def test_reads_one_entry_without_copying() -> None:
    batch = batch_format.Batch(joined([("small", b"s"), ("large", bytes(10_000_000))]), about="x")
    tracemalloc.start()
    assert batch.read("small") == b"s"
    assert batch.read("large").nbytes == 10_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert list(batch.keys()) == ["small", "large"]
    assert (len(batch), "large" in batch, "other" in batch) == (2, True, False)
    assert batch.read("large").readonly


def test_an_absent_entry_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"batch-1.*'other'|'other'.*batch-1"):
        batch_format.Batch(joined(ENTRIES), about="batch-1").read("other")


def test_accepts_any_buffer_and_copies_it() -> None:
    packer = batch_format.Packer()
    changing = bytearray(b"abcdef")
    packer.add("array", changing)
    packer.add("every other", memoryview(changing)[::2])
    packer.add("wide", memoryview(struct.pack("<3I", 1, 2, 3)).cast("I"))
    changing[:] = b"xxxxxx"
    entries = batch_format.decode(memoryview(bytearray(b"".join(packer.encode()))), about="x")
    assert entries == [("array", b"abcdef"), ("every other", b"ace"), ("wide", struct.pack("<3I", 1, 2, 3))]


def test_a_batch_grows_beyond_its_first_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_format, "_FIRST_MEMORY", 4 << 20)
    packer = batch_format.Packer()
    entries = [(str(n), bytes([n]) * 1_000_000) for n in range(30)]
    for count in (7, 30, 30):  # grown, grown again from kept memory, begun anew
        for key, data in entries[:count]:
            packer.add(key, data)
        assert batch_format.decode(b"".join(packer.encode()), about="x") == entries[:count]
        packer.clear()
        assert (len(packer), packer.size) == (0, 0)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_a_small_batch_takes_little_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    packers = [batch_format.Packer() for _ in range(100)]
    for packer in packers:
        packer.add("small", bytes(1000))
    assert resident() - before < 50_000_000


def test_memory_is_kept_for_the_next_batch_but_not_all_of_it() -> None:
    packer = batch_format.Packer()
    packer.add("usual", bytes(9_000_000))
    usual = packer._memory
    packer.clear()
    assert usual is not None
    assert packer._memory is usual
    packer.add("huge", bytes(60_000_000))
    packer.clear()
    assert packer._memory is None


@pytest.mark.parametrize(
    ("key", "data", "code"),
    [
        ("twice", b"2", "batch.duplicate-key"),
        ("half a pair \ud800", b"", "batch.key"),
        (b"bytes", b"", "batch.key"),
        ("text", "text", "batch.data"),
        ("number", 5, "batch.data"),
    ],
)
def test_a_refused_entry_changes_nothing(key: str, data: bytes, code: str) -> None:
    packer = batch_format.Packer()
    packer.add("twice", b"1")
    before = packer.encode()
    with pytest.raises(Invalid) as caught:
        packer.add(key, data)
    assert caught.value.code == code
    assert packer.encode() == before


def test_sizes_never_wrap() -> None:
    nothing_touches_these_pages = mmap.mmap(-1, batch_format.MAX_RAW, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    packer = batch_format.Packer()
    with memoryview(nothing_touches_these_pages) as view:
        for size in (batch_format.MAX_RAW, batch_format.MAX_RAW - 8):
            with pytest.raises(Invalid) as caught:
                packer.add("k", view[:size])
            assert caught.value.code == "batch.too-large"
        packer.add("k", view[:100])
        with pytest.raises(Invalid):
            packer.add("l", view[: batch_format.MAX_RAW - 100 - 9 - 8])
    assert (len(packer), packer.size) == (1, 109)
    assert packer._memory is not None
    assert len(packer._memory) == batch_format._FIRST_MEMORY
    assert batch_format.MAX_RAW < 2**32


def test_every_flipped_bit_is_noticed() -> None:
    body = joined(ENTRIES)
    for position in range(len(body) * 8):
        damaged = bytearray(body)
        damaged[position // 8] ^= 1 << position % 8
        refusal(bytes(damaged))


@pytest.mark.parametrize("version", [1, 2])
def test_every_truncation_is_noticed(version: int) -> None:
    raw = frames_by_hand([(b"a", b"1" * 100), (b"b", bytes(range(200)))])
    body = file_by_hand(raw, 2, version=version)
    assert len(batch_format.decode(body, about="x")) == 2
    codes = {refusal(body[:length]) for length in range(len(body))}
    assert codes == {"batch.short", *(["batch.crc"] if version == 2 else ["batch.lz4", "batch.size"])}


@given(st.binary(max_size=300))
def test_random_bytes_are_corrupt_and_nothing_worse(tail: bytes) -> None:
    for body in (tail, b"LCB1" + tail, b"LCB1\x02\0\0\0" + tail):
        refusal(body)
    with contextlib.suppress(Corrupt):  # without a CRC, a few zeros are an empty batch
        batch_format.decode(b"LCB1\x01\0\0\0" + tail, about="x")


@given(st.binary(max_size=300), st.integers(0, 40), st.sampled_from([1, 2]))
def test_random_frames_are_corrupt_or_exactly_what_they_say(raw: bytes, count: int, version: int) -> None:
    body = file_by_hand(raw, count, version=version)
    with contextlib.suppress(Corrupt):
        entries = batch_format.decode(body, about="x")
        assert len(entries) == count
        assert frames_by_hand([(key.encode(), data) for key, data in entries]) == raw


@given(st.binary(min_size=1, max_size=60), st.integers(0, 20_000))
def test_random_blocks_are_corrupt_and_nothing_worse(block: bytes, size: int) -> None:
    for version in (1, 2):
        with contextlib.suppress(Corrupt):
            batch_format.decode(file_by_hand(b"", 1, version=version, size=size, block=block), about="x")


@pytest.mark.parametrize("version", [1, 2])
def test_a_tiny_file_that_claims_gigabytes_allocates_nothing(version: int) -> None:
    body = file_by_hand(b"", 0, version=version, size=0xFFFF_FFFF, block=b"\x00")
    modest = file_by_hand(b"", 0, version=version, size=batch_format.MAX_RAW, block=b"\x1f" + b"\xff" * 60)
    many = file_by_hand(b"", 0xFFFF_FFFF, version=version)
    tracemalloc.start()
    for hostile in (body, modest, many):
        assert refusal(hostile) == "batch.size"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_the_best_ratio_that_lz4_reaches_is_accepted() -> None:
    entries = [("zeros", bytes(20_000_000))]
    body = joined(entries)
    assert 20_000_000 / len(body) > 250
    assert batch_format.decode(body, about="x") == entries


def test_content_above_the_limit_is_refused_before_decompressing() -> None:
    body = joined([("zeros", bytes(1000))])
    assert refusal(body, limit=1012) == "batch.size"
    assert len(batch_format.Batch(body, about="x", limit=1013)) == 1


GOOD = frames_by_hand([(b"a", b"1"), (b"b", b"2")])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "batch.short"),
        (b"LCB1", "batch.short"),
        (b"LCB2" + file_by_hand(GOOD, 2)[4:], "batch.magic"),
        (file_by_hand(GOOD, 2, version=0), "batch.version"),
        (file_by_hand(GOOD, 2, version=3), "batch.version"),
        (file_by_hand(GOOD, 2)[:20], "batch.short"),
        (file_by_hand(GOOD, 2, version=1)[:20], "batch.short"),
        (file_by_hand(GOOD, 2) + b"\x00", "batch.crc"),
        (file_by_hand(GOOD, 2, version=1) + b"\x00", "batch.lz4"),
        (file_by_hand(GOOD, 2, inner=len(GOOD) + 1), "batch.size"),
        (file_by_hand(GOOD, 2, size=len(GOOD) + 1), "batch.lz4"),
        (file_by_hand(GOOD, 2, size=len(GOOD) - 1), "batch.lz4"),
        (file_by_hand(GOOD, 3), "batch.size"),
        (file_by_hand(GOOD, 1), "batch.frames"),
        (file_by_hand(GOOD, 0), "batch.frames"),
        (file_by_hand(GOOD + bytes(4), 2), "batch.frames"),
        (file_by_hand(frames_by_hand([(b"a", b"1" * 20)]), 2), "batch.frames"),
        (file_by_hand(frames_by_hand([(b"a", b"1"), (b"a", b"2")]), 2), "batch.frames"),
        (file_by_hand(frames_by_hand([(b"\xff", b"1")]), 1), "batch.frames"),
        (file_by_hand(frames_by_hand([(b"\xed\xa0\x80", b"1")]), 1), "batch.frames"),
        (file_by_hand(struct.pack("<II", 0xFFFF_FFFF, 0), 1), "batch.frames"),
        (file_by_hand(struct.pack("<II", 0, 0xFFFF_FFFF), 1), "batch.frames"),
        (file_by_hand(struct.pack("<I", 3) + b"abc\x01", 1), "batch.frames"),
    ],
)
def test_each_kind_of_damage_has_its_code(body: bytes, code: str) -> None:
    assert refusal(body) == code


@pytest.mark.parametrize(
    ("frames", "count", "problem"),
    [
        ([(b"a", b"1"), (b"a", b"2")], 2, "the key 'a' is there twice"),
        ([(b"a", b"1"), (b"b", b"2")], 1, "10 bytes follow the last of its 1 entries"),
    ],
)
def test_damage_is_described(frames: list[tuple[bytes, bytes]], count: int, problem: str) -> None:
    with pytest.raises(Corrupt, match=problem):
        batch_format.decode(file_by_hand(frames_by_hand(frames), count), about="x")


def test_a_newer_version_is_named_as_a_possibility() -> None:
    with pytest.raises(Corrupt, match="version 3 is either damage or newer"):
        batch_format.decode(file_by_hand(GOOD, 2, version=3), about="x")


def test_an_empty_batch_is_a_batch() -> None:
    assert batch_format.decode(joined([]), about="x") == []
