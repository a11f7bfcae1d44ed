"""Hadoop's checksum files, held against bytes that Spark wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.sparkdir.checksums import checksum_file, differs_from_checksum, orphaned_checksums

COMMIT = b'v1\n{"nextBatchWatermarkMs":1767225679000}'
SUMS = bytes.fromhex("63726300 00000200 988a736f")
"""What Spark 4.3 left in `commits/.1.crc` beside it."""


@pytest.fixture
def commit(tmp_path: Path) -> Path:
    path = tmp_path / "1"
    path.write_bytes(COMMIT)
    checksum_file(path).write_bytes(SUMS)
    return path


def test_what_spark_wrote_is_right(commit: Path) -> None:
    assert not differs_from_checksum(commit)


def test_every_flipped_bit_shows(commit: Path) -> None:
    for place in range(len(COMMIT) * 8):
        damaged = bytearray(COMMIT)
        damaged[place // 8] ^= 1 << place % 8
        commit.write_bytes(damaged)
        assert differs_from_checksum(commit), place


@pytest.mark.parametrize("sums", [b"", b"crc", b"nope" + SUMS[4:], SUMS[:8], SUMS + b"\0" * 4, b"crc\0" + b"\0" * 8])
def test_a_checksum_file_that_is_none(commit: Path, sums: bytes) -> None:
    checksum_file(commit).write_bytes(sums)
    assert differs_from_checksum(commit)


def test_without_checksums_nothing_is_said(commit: Path) -> None:
    checksum_file(commit).unlink()
    assert not differs_from_checksum(commit)


def test_a_file_that_is_gone_leaves_its_checksums(commit: Path) -> None:
    assert orphaned_checksums(commit.parent) == set()
    commit.unlink()
    assert orphaned_checksums(commit.parent) == {"1"}
    assert orphaned_checksums(commit.parent / "nowhere") == set()
