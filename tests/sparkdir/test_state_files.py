"""Which files a batch needs: chains of state, shared files, logs, and nothing else."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt, HoldfastError
from holdfast.sparkdir.state_files import files_for_batch, is_immutable, is_visible, referred_names, state_files
from workdir_files import archive, archive_with, states_of


def unread(path: str) -> set[str]:
    raise AssertionError(f"{path} need not be read")


def needed(paths: Iterable[str], batch_id: int, **archives: bytes) -> set[str]:
    """Archives by version, of the one store that these tests have."""
    found = {f"state/0/0/{name.removeprefix('v')}.zip": body for name, body in archives.items()}
    return files_for_batch(paths, batch_id, lambda path: referred_names(found[path], path))


# What Spark's own files are


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata", True),
        ("offsets/0", True),
        ("state/0/0/SSTs/1.sst", True),
        (".metadata.crc", False),
        ("offsets/.0.crc", False),
        ("state/0/.0/1.delta", False),
        ("state/0/0/.1.delta.8a1c.TID7.tmp", False),
        (".holdfast.json", False),
        ("../metadata", False),
        ("state/./x", False),
    ],
)
def test_hidden_files_are_not_captured(path: str, expected: bool) -> None:
    assert is_visible(path) == expected
    if not expected:
        assert files_for_batch([path, f"state/0/{path}"], 0, unread) == set()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("state/0/0/1.delta", True),
        ("state/0/0/left/1_3f-a.changelog", True),
        ("state/0/0/1.snapshot.crc", True),
        ("state/0/0/1.zip", False),
        ("state/0/0/1.zip.crc", False),
        ("state/0/0/SSTs/000008-5f.sst", True),
        ("state/0/0/logs/000009.log", True),
        ("offsets/5", True),
        ("commits/5", True),
        ("metadata", False),
        ("sources/0/5", False),
        ("state/0/_metadata/v2/0", False),
        ("state/0/0/_metadata/schema", False),
    ],
)
def test_what_has_its_content_for_ever(path: str, expected: bool) -> None:
    assert is_immutable(path) == expected


# Logs

LOGS = ["metadata", *(f"{log}/{number}" for log in ("offsets", "commits") for number in range(8, 13))]


@pytest.mark.parametrize(
    ("batch_id", "expected"),
    [
        (10, {"metadata", "offsets/10", "offsets/9", "commits/9"}),
        (8, {"metadata", "offsets/8"}),
        (9, {"metadata", "offsets/9", "offsets/8", "commits/8"}),
        (0, {"metadata"}),
        (1, {"metadata"}),
    ],
)
def test_the_logs_that_a_batch_needs(batch_id: int, expected: set[str]) -> None:
    assert files_for_batch(LOGS, batch_id, unread) == expected


def test_unknown_places_are_left_alone() -> None:
    strangers = ["notes.txt", "data/part-0.parquet", "_spark_metadata/0", "offset/5", "statement/0", "metadata/x"]
    assert files_for_batch(strangers, 5, unread) == set()


SOURCES: list[tuple[str, list[str], list[str]]] = [
    ("no compaction yet", ["0", "1", "2"], ["0", "1", "2"]),
    ("after a compaction", ["7", "8", "9.compact", "10", "11"], ["9.compact", "10", "11"]),
    ("the newest of two", ["9.compact", "10", "19.compact", "20"], ["19.compact", "20"]),
    ("both forms of one number", ["8", "9", "9.compact"], ["9.compact"]),
    ("the newest number is a compaction", ["18", "19.compact"], ["19.compact"]),
    ("other names", ["0", "initial", "x.compact", "1.tmp"], ["0", "initial", "x.compact", "1.tmp"]),
]


@pytest.mark.parametrize(("names", "expected"), [case[1:] for case in SOURCES], ids=[case[0] for case in SOURCES])
def test_logs_of_sources(names: list[str], expected: list[str]) -> None:
    paths = [f"sources/0/{name}" for name in names]
    others = ["sources/1/0", "sources/orders/3"]  # another source has its own numbers
    assert files_for_batch([*paths, *others, "sources/0/.5.crc"], 30, unread) == {
        *others,
        *(f"sources/0/{name}" for name in expected),
    }


# State of the default provider


def deltas(*versions: int, folder: str = "state/0/0") -> list[str]:
    return [f"{folder}/{version}.delta" for version in versions]


HDFS: list[tuple[str, list[str], int, dict[str, list[int]]]] = [
    ("nothing", [], 3, {}),
    ("only changes", deltas(1, 2, 3), 3, {"delta": [1, 2, 3]}),
    ("nothing newer", deltas(1, 2, 3, 4, 5), 3, {"delta": [1, 2, 3]}),
    ("a snapshot", [*deltas(*range(1, 8)), "state/0/0/5.snapshot"], 7, {"delta": [5, 6, 7], "snapshot": [5]}),
    ("a snapshot of the version itself", [*deltas(4, 5), "state/0/0/5.snapshot"], 5, {"delta": [5], "snapshot": [5]}),
    ("a snapshot that is too new", [*deltas(1, 2, 3), "state/0/0/3.snapshot"], 2, {"delta": [1, 2]}),
    (
        "the newest of several",
        [*deltas(*range(1, 30)), *(f"state/0/0/{version}.snapshot" for version in (10, 20, 27))],
        25,
        {"delta": [20, 21, 22, 23, 24, 25], "snapshot": [20]},
    ),
    ("by number, not by name", ["state/0/0/9.snapshot", "state/0/0/10.snapshot"], 10, {"snapshot": [10]}),
    ("version 0", deltas(1), 0, {}),
]


@pytest.mark.parametrize(("paths", "version", "expected"), [case[1:] for case in HDFS], ids=[case[0] for case in HDFS])
def test_state_with_deltas(paths: list[str], version: int, expected: dict[str, list[int]]) -> None:
    assert states_of(state_files(paths, version)) == expected
    assert states_of(files_for_batch(paths, version, unread)) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["1.delta", "3.delta"],
        ["2.delta", "3.delta"],
        ["1.snapshot", "3.delta"],
        ["1.changelog", "3.changelog"],
    ],
)
def test_a_chain_with_a_hole(names: list[str]) -> None:
    """Spark has such state in memory and does not notice; a checkpoint of it could never be loaded."""
    with pytest.raises(Corrupt) as found:
        files_for_batch([f"state/0/0/{name}" for name in names], 3, unread)
    assert found.value.code == "workdir.state-file"
    assert found.value.about == "state/0/0"


def test_a_store_that_is_not_in_use_any_more() -> None:
    """Of a partition that there is no longer."""
    files_for_batch(deltas(1, 2, 3, folder="state/0/7"), 30, unread)


def test_every_store_has_its_own_chain() -> None:
    paths = [
        *deltas(8, 9, 10, folder="state/0/0"),
        "state/0/0/9.snapshot",
        *deltas(*range(1, 11), folder="state/0/1"),
        *deltas(9, 10, folder="state/1/0/left-keyToNumValues"),
        "state/1/0/left-keyToNumValues/10.snapshot",
    ]
    assert files_for_batch(paths, 10, unread) == {
        *deltas(9, 10, folder="state/0/0"),
        "state/0/0/9.snapshot",
        *deltas(*range(1, 11), folder="state/0/1"),
        *deltas(10, folder="state/1/0/left-keyToNumValues"),
        "state/1/0/left-keyToNumValues/10.snapshot",
    }


def test_what_describes_state_is_always_needed() -> None:
    paths = [
        "state/0/_metadata/metadata",
        "state/0/_metadata/v2/0",
        "state/0/0/_metadata/schema",
        "state/0/_stateSchema/default/0_3f2b",
    ]
    assert files_for_batch(paths, 99, unread) == set(paths)


def test_checksums_of_spark_go_with_their_files() -> None:
    kept = ["4.delta", "4.delta.crc", "4.snapshot", "4.snapshot.crc"]
    paths = [f"state/0/0/{name}" for name in [*kept, "3.delta.crc", "5.delta", "5.delta.crc"]]
    assert files_for_batch(paths, 4, unread) == {f"state/0/0/{name}" for name in kept}


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[str], int]:
    """A store as Spark leaves it: unbroken changes from some version on, and snapshots here and there."""
    oldest, newest = sorted((draw(st.integers(1, 30)), draw(st.integers(1, 30))))
    change, base = draw(st.sampled_from([("delta", "snapshot"), ("changelog", "zip")]))
    snapshots = draw(st.sets(st.integers(oldest, newest)))
    if oldest > 1:
        snapshots.add(oldest)
    paths = [f"{version}.{change}" for version in range(oldest, newest + 1)]
    return paths + [f"{version}.{base}" for version in snapshots], draw(st.integers(oldest, newest))


@given(chains())
def test_what_is_needed_is_closed(chain: tuple[list[str], int]) -> None:
    """From the newest snapshot up to the version on, every change up to it, and nothing more."""
    paths, version = chain
    snapshots = [int(path.partition(".")[0]) for path in paths if path.endswith((".zip", ".snapshot"))]
    base = max((number for number in snapshots if number <= version), default=0)
    found = state_files(paths, version)
    expected = {path for path in paths if base <= int(path.partition(".")[0]) <= version}
    assert found == expected
    changes = {int(path.partition(".")[0]) for path in found if path.endswith((".delta", ".changelog"))}
    assert changes >= set(range(base + 1, version + 1))
    assert state_files(found, version) == found


# RocksDB


def test_an_archive_and_what_it_refers_to() -> None:
    paths = [
        *(f"state/0/0/{version}.zip" for version in (3, 4, 5, 6)),
        *(f"state/0/0/SSTs/{name}" for name in ("a.sst", "b.sst", "c.sst", "d.sst")),
        "state/0/0/logs/w.log",
        "state/0/1/SSTs/a.sst",
    ]
    assert needed(paths, 5, v5=archive("a.sst", "c.sst", "w.log")) == {
        "state/0/0/5.zip",
        "state/0/0/SSTs/a.sst",
        "state/0/0/SSTs/c.sst",
        "state/0/0/logs/w.log",
    }


def test_changes_since_an_archive() -> None:
    paths = [
        *(f"state/0/0/{version}.changelog" for version in range(1, 10)),
        "state/0/0/4.zip",
        "state/0/0/8.zip",
        "state/0/0/SSTs/a.sst",
        "state/0/0/SSTs/b.sst",
    ]
    found = needed(paths, 7, v4=archive("a.sst"))
    assert states_of(found - {"state/0/0/SSTs/a.sst"}) == {"changelog": [4, 5, 6, 7], "zip": [4]}
    assert "state/0/0/SSTs/b.sst" not in found


def test_only_changes_so_far() -> None:
    paths = ["state/0/0/1.changelog", "state/0/0/2.changelog", "state/0/0/SSTs/left.sst"]
    assert files_for_batch(paths, 2, unread) == {"state/0/0/1.changelog", "state/0/0/2.changelog"}


def test_an_archive_without_files() -> None:
    assert needed(["state/0/0/1.zip"], 1, v1=archive()) == {"state/0/0/1.zip"}


def test_checksums_of_shared_files() -> None:
    paths = ["state/0/0/1.zip", "state/0/0/1.zip.crc", "state/0/0/SSTs/a.sst", "state/0/0/SSTs/a.sst.crc"]
    assert needed(paths, 1, v1=archive("a.sst")) == set(paths)


@pytest.mark.parametrize(
    "there", [[], ["state/0/0/SSTs/b.sst"], ["state/0/1/SSTs/a.sst"], ["state/0/0/SSTs/a.sst.crc"]]
)
def test_a_shared_file_that_is_missing(there: list[str]) -> None:
    with pytest.raises(Corrupt) as found:
        needed(["state/0/0/7.zip", *there], 7, v7=archive("a.sst"))
    assert found.value.code == "workdir.state-file"
    assert "a.sst" in found.value.message
    assert "state/0/0/7.zip" in found.value.message


def test_archives_that_are_not_needed_are_not_read() -> None:
    paths = ["state/0/0/3.zip", "state/0/0/9.zip", "state/0/0/6.zip"]
    read: list[str] = []

    def look(path: str) -> set[str]:
        read.append(path)
        return set()

    files_for_batch(paths, 7, look)
    assert read == ["state/0/0/6.zip"]


# Files that carry the id of the attempt that wrote them


def test_ids_in_names_keep_one_snapshot_more() -> None:
    names = [
        *(f"{version}_u{version}.changelog" for version in range(1, 12)),
        "3_aa.zip",
        "6_bb.zip",
        "9_cc.zip",
        "9_dd.zip",
        "12_ee.zip",
    ]
    found = state_files([f"state/0/0/{name}" for name in names], 10)
    assert states_of(found) == {"changelog": [6, 7, 8, 9, 10], "zip": [6, 9, 9]}


def test_ids_in_names_with_a_single_snapshot() -> None:
    paths = ["state/0/0/4_a.zip", "state/0/0/4_a.changelog", "state/0/0/5_b.changelog", "state/0/0/3_c.changelog"]
    assert states_of(state_files(paths, 5)) == {"changelog": [4, 5], "zip": [4]}


def test_shared_files_of_both_snapshots() -> None:
    bodies = {"state/0/0/4_a.zip": archive("old.sst"), "state/0/0/8_b.zip": archive("new.sst")}
    shared = ["state/0/0/SSTs/old.sst", "state/0/0/SSTs/new.sst", "state/0/0/SSTs/none.sst"]
    assert files_for_batch([*bodies, *shared], 8, lambda path: referred_names(bodies[path], path)) == {
        *bodies,
        *shared[:2],
    }


# Archives that are not what they should be


def test_names_in_an_archive() -> None:
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        assert referred_names(archive("a.sst", "w.log", compression=compression), "x.zip") == {"a.sst", "w.log"}


STRANGE = {
    "no archive": b"",
    "garbage": b"\x00garbage" * 50,
    "text": b"v1\n{}",
    "no metadata": archive_with("v1\n{}", name="other"),
    "another format": archive_with("v2\n{}"),
    "no version": archive_with("{}"),
    "not json": archive_with("v1\n{"),
    "a list": archive_with("v1\n[]"),
    "empty": archive_with(""),
    "not text": archive_with(b"v1\n\xff\xff"),
    "an entry of another kind": archive_with('v1\n{"sstFiles":[{"localFileName":"1"}]}'),
    "an entry with two names": archive_with('v1\n{"sstFiles":[{"dfsSstFileName":"1","dfsX":"2"}]}'),
    "a name that is a number": archive_with('v1\n{"sstFiles":[{"dfsSstFileName":1}]}'),
    "nested without end": archive_with('v1\n{"sstFiles":' + "[" * 100_000),
}


@pytest.mark.parametrize("body", STRANGE.values(), ids=STRANGE.keys())
def test_strange_archives(body: bytes) -> None:
    with pytest.raises(Corrupt) as found:
        referred_names(body, "state/0/0/7.zip")
    assert found.value.about == "state/0/0/7.zip"


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED], ids=["deflated", "stored"])
def test_any_flipped_bit_is_corrupt_or_harmless(compression: int) -> None:
    whole = archive("000008-5f.sst", "000009-6a.sst", compression=compression)
    names = referred_names(whole, "7.zip")
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            try:
                assert referred_names(bytes(damaged), "7.zip") == names
            except Corrupt as error:
                assert error.about == "7.zip"  # noqa: PT017 - not raising is fine as well


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_raise_anything_else(noise: bytes, cut: int) -> None:
    for body in (noise, archive("a.sst")[:cut] + noise):
        try:
            referred_names(body, "7.zip")
        except HoldfastError as error:
            assert error.about == "7.zip"  # noqa: PT017
