"""Hadoop's checksum files, held against bytes that Spark wrote."""

from __future__ import annotations

import pytest

from holdfast.sparkdir.checksums import checksum_path, matches_checksum, orphaned_checksums

COMMIT = b'v1\n{"nextBatchWatermarkMs":1767225679000}'
SUMS = bytes.fromhex("63726300 00000200 988a736f")
"""What Spark 4.3 left in `commits/.1.crc` beside it."""


def test_what_spark_wrote_is_right() -> None:
    assert matches_checksum(COMMIT, SUMS)


def test_every_flipped_bit_shows() -> None:
    for place in range(len(COMMIT) * 8):
        damaged = bytearray(COMMIT)
        damaged[place // 8] ^= 1 << place % 8
        assert not matches_checksum(bytes(damaged), SUMS), place


@pytest.mark.parametrize("sums", [b"", b"crc", b"nope" + SUMS[4:], SUMS[:8], SUMS + b"\0" * 4, b"crc\0" + b"\0" * 8])
def test_a_checksum_file_that_is_none(sums: bytes) -> None:
    assert not matches_checksum(COMMIT, sums)


@pytest.mark.parametrize(("path", "expected"), [("metadata", ".metadata.crc"), ("commits/1", "commits/.1.crc")])
def test_where_they_are(path: str, expected: str) -> None:
    assert checksum_path(path) == expected


def test_a_file_that_is_gone_leaves_its_checksums() -> None:
    assert orphaned_checksums(["1", ".1.crc"]) == set()
    assert orphaned_checksums([".1.crc", "2", ".2.crc"]) == {"1"}
    assert orphaned_checksums([]) == set()
