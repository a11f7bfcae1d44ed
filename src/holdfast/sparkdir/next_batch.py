"""Which files a batch needs, worked out from those that the batch before it needed. Pure.

A workdir with 200 partitions has tens of thousands of files, nearly all of them known or not needed, and a listing of
them all looks at each. Most batches add one file of a known name to each store, and now and then a snapshot. So the
names in the folders suffice. Whatever is not that plain is left to `state_files.files_for_batch`.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from holdfast.sparkdir.operator_metadata import StateStore
from holdfast.sparkdir.state_files import (
    SHARED,
    VERSIONED,
    ReferredNames,
    is_visible,
    newest_source_logs,
    shared_folder,
)

Names = Callable[[str], Collection[str]]
"""The names in a folder."""

_CHANGES = {"delta": ".snapshot", "changelog": ".zip"}
"""How a provider calls the changes of a version, and how its snapshots."""


def files_of_next_batch(
    before: Collection[str], batch_id: int, stores: Sequence[StateStore], names: Names, referred: ReferredNames
) -> set[str] | None:
    """What `batch_id` needs, if `before` is what the batch before it needed; None if only a listing can tell.

    Guarantees: the same files as `files_for_batch` of a whole listing.
    Does not guarantee: that those it had before are still there; they need not be.
    """
    state, rest = _by_store(before)
    in_sources = [path for path in rest if path.startswith("sources/")]
    if set(state) != {store.folder for store in stores} or any(store.ids for store in stores):
        return None
    if any(path.count("/") != 2 for path in in_sources) or (not stores and names("state")):
        return None  # a source with a folder of its own making, or state that nothing describes
    needed = {path for path in rest if not path.startswith(("offsets/", "commits/", "sources/"))}
    needed |= {f"offsets/{batch_id}", f"offsets/{batch_id - 1}", f"commits/{batch_id - 1}"}
    needed.update(_source_logs(names))
    for folder, files in state.items():
        found = _next_version(folder, files, batch_id, names(folder), referred)
        if found is None:
            return None
        needed |= found
    return needed


def likely_names(before: Collection[str], batch_id: int, names: Names) -> Names:
    """A function in place of `names` that lists no folder of state: those there were, and those of the next version.

    A name that turns out not to be there is found missing when it is read. New snapshots are not seen.
    """
    known: dict[str, set[str]] = defaultdict(set)
    for path in before:
        folder, name = posixpath.split(path)
        known[folder].add(name)

    def likely(folder: str) -> Collection[str]:
        if not folder.startswith("state/"):
            return names(folder)
        return known[folder] | {f"{batch_id}.{kind}" for kind in _CHANGES}

    return likely


def _by_store(paths: Iterable[str]) -> tuple[dict[str, dict[str, int]], set[str]]:
    """The files of each state store with their versions (-1: shared by several), and all other files."""
    state: dict[str, dict[str, int]] = defaultdict(dict)
    rest = set()
    for path in paths:
        folder, name = posixpath.split(path)
        if path.startswith("state/") and (match := VERSIONED.fullmatch(name)):
            state[folder][path] = int(match[1])
        elif path.startswith("state/") and posixpath.basename(folder) in SHARED:
            state[posixpath.dirname(folder)][path] = -1
        else:
            rest.add(path)
    return state, rest


def _next_version(
    folder: str, files: dict[str, int], version: int, names: Collection[str], referred: ReferredNames
) -> set[str] | None:
    """A store's files with one version more; None if how it goes on cannot be told from the last one."""
    last = {posixpath.basename(path) for path, found in files.items() if found == version - 1}
    if any(name.endswith(".crc") for name in last):
        return None
    for kind, suffix in _CHANGES.items():
        if f"{version - 1}.{kind}" in last and f"{version}.{kind}" in names:
            base = max(_snapshots(names, suffix, version), default=0)
            chain = {path for path, found in files.items() if found >= base} | {f"{folder}/{version}.{kind}"}
            return chain | _snapshot(folder, base, suffix, referred) if base else chain
    return _snapshot(folder, version, ".zip", referred) if last == {f"{version - 1}.zip"} else None


def _snapshots(names: Iterable[str], suffix: str, version: int) -> Iterator[int]:
    numbers = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    found = (int(number) for number in numbers if number.isascii() and number.isdigit())
    return (number for number in found if number <= version)


def _snapshot(folder: str, version: int, suffix: str, referred: ReferredNames) -> set[str]:
    """A snapshot, and the files that it refers to."""
    path = f"{folder}/{version}{suffix}"
    shared = referred(path) if suffix == ".zip" else ()
    return {path, *(f"{folder}/{shared_folder(name)}/{name}" for name in shared)}


def _source_logs(names: Names) -> Iterator[str]:
    for source in names("sources"):
        if is_visible(source):
            folder = f"sources/{source}"
            yield from newest_source_logs([f"{folder}/{name}" for name in names(folder) if is_visible(name)])
