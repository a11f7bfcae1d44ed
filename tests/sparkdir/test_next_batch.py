"""What a batch needs, by what the batch before needed: the same as a listing of everything says, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sparkdir.next_batch import files_of_next_batch
from holdfast.sparkdir.operator_metadata import StateStore
from holdfast.sparkdir.state_files import files_for_batch

STORE = "state/0/0"
LOGS = {"metadata", "offsets/4", "offsets/5", "commits/4"}


def names_among(paths: set[str]) -> dict[str, set[str]]:
    folders: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        while True:
            folders.setdefault(folder, set()).add(name)
            if not folder:
                break
            folder, _, name = folder.rpartition("/")
    return folders


def next_files(before: set[str], there: set[str], batch_id: int, *stores: StateStore) -> set[str] | None:
    folders = names_among(there)
    return files_of_next_batch(
        before, batch_id, stores, lambda folder: folders.get(folder, set()), lambda path: referred(path)
    )


def referred(archive: str) -> set[str]:
    """Every archive refers to a file of its own and to one that all have."""
    return {f"{archive.rpartition('/')[2]}.sst", "all.log"}


@given(
    st.sampled_from(["delta", "changelog"]),
    st.sets(st.integers(1, 12)),
    st.sets(st.integers(1, 12)),
    st.integers(2, 11),
)
def test_the_same_as_a_listing(kind: str, snapshots: set[int], late: set[int], batch_id: int) -> None:
    """Snapshots are made in the background: some were there when the batch before was captured, some are new."""
    suffix = "snapshot" if kind == "delta" else "zip"
    changes = {f"{STORE}/{version}.{kind}" for version in range(1, 13)}
    shared = {f"{STORE}/SSTs/{version}.zip.sst" for version in range(1, 13)} | {f"{STORE}/logs/all.log"}
    logs = {f"{log}/{number}" for log in ("offsets", "commits") for number in range(13)}
    earlier = changes | shared | logs | {f"{STORE}/{version}.{suffix}" for version in snapshots}
    there = earlier | {f"{STORE}/{version}.{suffix}" for version in late}
    before = files_for_batch(earlier, batch_id - 1, referred)
    assert next_files(before, there, batch_id, StateStore(STORE, 0)) == files_for_batch(there, batch_id, referred)


def test_an_archive_for_each_version() -> None:
    before = LOGS | {f"{STORE}/4.zip", f"{STORE}/SSTs/4.zip.sst", f"{STORE}/logs/all.log"}
    found = next_files(before, before | {f"{STORE}/5.zip"}, 5, StateStore(STORE, 0))
    assert found == LOGS | {f"{STORE}/5.zip", f"{STORE}/SSTs/5.zip.sst", f"{STORE}/logs/all.log"}


def test_the_logs_of_sources() -> None:
    before = LOGS | {"sources/0/3", "sources/0/4"}
    there = before | {"sources/0/5.compact", "sources/0/.5.crc", "sources/1/0", "sources/1/notes"}
    assert next_files(before, there, 5) == LOGS | {"sources/0/5.compact", "sources/1/0", "sources/1/notes"}


ONE = StateStore(STORE, 0)
CHAIN = {f"{STORE}/4.delta"}


@pytest.mark.parametrize(
    ("before", "there", "stores"),
    [
        (CHAIN, CHAIN, [ONE]),
        (CHAIN, {f"{STORE}/5.changelog"}, [ONE]),
        (set(), {f"{STORE}/5.delta"}, [ONE]),
        (CHAIN, {f"{STORE}/5.delta"}, [ONE, StateStore("state/0/1", 1)]),
        (CHAIN, {f"{STORE}/5.delta"}, []),
        (set(), {"state/0/_metadata/unknown"}, []),
        (CHAIN, {f"{STORE}/5.delta"}, [StateStore(STORE, 0, ("3f-a",))]),
        (CHAIN | {f"{STORE}/4.delta.crc"}, {f"{STORE}/5.delta"}, [ONE]),
        ({f"{STORE}/4.snapshot"}, {f"{STORE}/5.delta"}, [ONE]),
        ({f"{STORE}/3.delta"}, {f"{STORE}/5.delta"}, [ONE]),
        ({"sources/0/deep/1"}, set(), []),
    ],
)
def test_what_only_a_listing_can_tell(before: set[str], there: set[str], stores: list[StateStore]) -> None:
    assert next_files(LOGS | before, LOGS | before | there, 5, *stores) is None
