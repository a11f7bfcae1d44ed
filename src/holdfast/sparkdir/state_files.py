"""Which files of a workdir Spark needs to run one batch again. Pure: what must be read is read by its caller.

To run batch N, Spark reads the offsets of N and N-1, the commit of N-1, the logs that sources keep, and state of
version N: for each store the newest snapshot up to N and every change after it.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

import msgspec

from holdfast.errors import Corrupt
from holdfast.sparkdir.operator_metadata import StateStore

VERSIONED = re.compile(r"(\d+)(?:_([0-9A-Za-z-]+))?\.(delta|snapshot|zip|changelog)(?:\.crc)?")
_SOURCE_LOG = re.compile(r"(\d+)(\.compact)?")
_SNAPSHOTS = {"snapshot", "zip"}
CHECKSUM = ".crc"
UNDESCRIBED = "state/0/_metadata, the description of the query's state"
SHARED = ("SSTs", "logs")
"""Folders of a RocksDB store with files that its archives refer to."""

ReferredNames = Callable[[str], Collection[str]]
"""The names that one of RocksDB's archives refers to, by its path: see `referred_names`."""


def is_visible(path: str) -> bool:
    """Whether Spark can see a file: nothing hidden, so no checksum or temporary file of Hadoop's."""
    return not any(part.startswith(".") for part in path.split("/"))


def is_archive(path: str) -> bool:
    """Whether a file is a snapshot of RocksDB's, which names files in the folders that its store shares."""
    return path.startswith("state/") and path.endswith(".zip")


def is_immutable(path: str) -> bool:
    """Whether the content of a needed file never changes: a version of state, or an entry of a log.

    An archive is none: an executor whose attempt at a task did not count may upload it late, and then the one whose
    attempt counted writes it again, with the names of other files.
    """
    folder, name = posixpath.split(path)
    if is_archive(path.removesuffix(CHECKSUM)):
        return False
    if path.startswith("state/"):
        return bool(VERSIONED.fullmatch(name)) or posixpath.basename(folder) in SHARED
    return folder in ("offsets", "commits") or is_compacted_log(path)


def is_compacted_log(path: str) -> bool:
    """Whether a file has all that a source's log had so far. Spark writes it once; the next one takes its place.

    Nothing of the kind is known of a source's other files: a source may keep there what it likes.
    """
    match = _SOURCE_LOG.fullmatch(posixpath.basename(path))
    return path.startswith("sources/") and match is not None and match[2] is not None


def is_newer_than(path: str, batch_id: int) -> bool:
    """Whether Spark may read a file when it resumes after `batch_id` that a checkpoint of that batch does not hold."""
    folder, name = posixpath.split(path)
    if folder in ("offsets", "commits"):
        return name.isascii() and name.isdigit() and int(name) >= batch_id
    version = VERSIONED.fullmatch(name)
    return path.startswith("sources/") or (path.startswith("state/") and (not version or int(version[1]) > batch_id))


def files_for_batch(paths: Iterable[str], batch_id: int, referred: ReferredNames) -> set[str]:
    """The files among `paths` (relative, with slashes) that Spark needs to run batch `batch_id` as it was planned."""
    found = [path for path in paths if is_visible(path)]
    needed: set[str] = set()
    stores: dict[str, list[str]] = defaultdict(list)
    sources: dict[str, list[str]] = defaultdict(list)
    shared: dict[str, list[str]] = defaultdict(list)
    for path in found:
        top, _, rest = path.partition("/")
        folder, name = posixpath.split(path)
        if top == "offsets":
            if name in (str(batch_id), str(batch_id - 1)):
                needed.add(path)
        elif top == "commits":
            if name == str(batch_id - 1):
                needed.add(path)
        elif top == "sources":
            sources[folder].append(path)
        elif top == "state" and VERSIONED.fullmatch(name):
            stores[folder].append(path)
        elif top == "state" and posixpath.basename(folder) in SHARED:
            shared[posixpath.dirname(folder)].append(path)
        elif path == "metadata" or (top == "state" and rest):
            needed.add(path)
    for logs in sources.values():
        needed.update(newest_source_logs(logs))
    for folder, files in stores.items():
        chosen = state_files(files, batch_id)
        needed.update(chosen)
        needed.update(_referred_files(chosen, shared.get(folder, ()), referred))
    return needed


def newest_versions(paths: Iterable[str]) -> dict[str, int]:
    """The newest version of each state store that has files among `paths`."""
    newest: dict[str, int] = {}
    for path in paths:
        folder, name = posixpath.split(path)
        if (match := VERSIONED.fullmatch(name)) and not name.endswith(CHECKSUM):
            newest[folder] = max(newest.get(folder, 0), int(match[1]))
    return newest


def missing_files(
    paths: Collection[str], batch_id: int, stores: Collection[StateStore], *, is_stateful: bool
) -> list[str]:
    """What running `batch_id` needs and is not among `paths`: logs, and this version of the stores that it loads.

    A query that `is_stateful` has stores from its second batch on: Spark describes every stateful operator with the
    first batch, whether it has rows or not. Without one, what describes them is lost, and nothing says what else is.
    """
    wanted = {"metadata", f"offsets/{batch_id}"}
    if batch_id > 0:
        wanted |= {f"offsets/{batch_id - 1}", f"commits/{batch_id - 1}"}
    missing = sorted(wanted - set(paths))
    if missing:
        return missing
    if is_stateful and batch_id > 0 and not stores:
        return [UNDESCRIBED]
    there: dict[str, set[str | None]] = defaultdict(set)
    for path in paths:
        folder, name = posixpath.split(path)
        match = VERSIONED.fullmatch(name)
        if match and int(match[1]) == batch_id and not name.endswith(CHECKSUM):
            there[folder].add(match[2])
    return [
        f"{store.folder}, version {batch_id}"
        for store in stores
        if not _has_version(store, there.get(store.folder, set()))
    ]


def partition_versions(paths: Iterable[str], stores: Iterable[StateStore]) -> list[int]:
    """The version that each state partition has among `paths`: the oldest of its stores, over all operators."""
    newest = newest_versions(paths)
    versions: dict[int, int] = {}
    for store in stores:
        version = newest.get(store.folder, 0)
        versions[store.partition] = min(versions.get(store.partition, version), version)
    return [versions[partition] for partition in sorted(versions)]


def _has_version(store: StateStore, attempts: Collection[str | None]) -> bool:
    """Whether one of the attempts that wrote the version is the one that counts."""
    return any(attempt in store.ids for attempt in attempts) if store.ids else bool(attempts)


def state_files(paths: Collection[str], version: int) -> set[str]:
    """The files of one state store that loading `version` may read.

    Where file names carry the id of the attempt that wrote them, the newest snapshot may be of an attempt that did not
    count, so one more snapshot is included, with the changes since. `Corrupt` if a change in between is missing.
    """
    parsed = [(match, path) for path in paths if (match := VERSIONED.fullmatch(posixpath.basename(path)))]
    bodies = [match for match, path in parsed if not path.endswith(CHECKSUM)]
    bases = sorted({int(m[1]) for m in bodies if m[3] in _SNAPSHOTS and int(m[1]) <= version}, reverse=True)
    spare = 1 if any(m[2] for m in bodies) else 0
    base = bases[min(spare, len(bases) - 1)] if bases else 0
    there = {int(m[1]) for m in bodies}
    if version in there:  # else the store is not in use: the number of partitions was changed
        missing = sorted(set(range(bases[0] if bases else 1, version)) - there)
        if missing:
            raise Corrupt(
                f"{posixpath.dirname(min(paths))} lacks version {missing[0]}; {version} cannot be loaded without it.",
                code="workdir.state-file",
                about=posixpath.dirname(min(paths)),
            )
    return {path for m, path in parsed if base <= int(m[1]) <= version}


def shared_folder(name: str) -> str:
    """The folder of a RocksDB store that a file lies in which an archive refers to."""
    return "SSTs" if name.endswith(".sst") else "logs"


def newest_source_logs(paths: Collection[str]) -> set[str]:
    """A source's log from its newest compaction on, and every file with any other name."""
    numbered = [(match, path) for path in paths if (match := _SOURCE_LOG.fullmatch(posixpath.basename(path)))]
    newest = max((int(m[1]) for m, _ in numbered if m[2]), default=-1)
    dropped = {path for m, path in numbered if int(m[1]) < newest or (int(m[1]) == newest and not m[2])}
    return set(paths) - dropped


def missing_shared_files(paths: Collection[str], referred: ReferredNames) -> list[str]:
    """The files that archives among `paths` name and that are not among them."""
    there = set(paths)
    named = {
        f"{posixpath.dirname(archive)}/{shared_folder(name)}/{name}"
        for archive in filter(is_archive, paths)
        for name in referred(archive)
    }
    return sorted(named - there)


def _referred_files(chosen: Collection[str], shared: Collection[str], referred: ReferredNames) -> set[str]:
    """The files in a RocksDB store's shared folders that the chosen archives name."""
    archives = [path for path in chosen if path.endswith(".zip")]
    if not archives:
        return set()
    names = {name for path in archives for name in referred(path)}
    found = {path for path in shared if posixpath.basename(path).removesuffix(CHECKSUM) in names}
    missing = names - {posixpath.basename(path) for path in found}
    if missing:
        raise Corrupt(
            f"{sorted(missing)[0]} is not there, and {sorted(archives)[-1]} refers to it.",
            code="workdir.state-file",
            about=posixpath.dirname(archives[0]),
        )
    return found


def referred_names(archive: bytes, about: str) -> set[str]:
    """The file names that a RocksDB snapshot archive refers to."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            text = opened.read("metadata").decode()
        head, _, body = text.partition("\n")
        listed = msgspec.json.decode(body, type=dict[str, object])
        if head != "v1":
            raise ValueError(f"it has format {head!r}")
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, KeyError, ValueError) as error:
        raise Corrupt(f"{about} is not a snapshot archive that is known here: {error}.", about=about) from None
    return {_stored_name(file, about) for key in ("sstFiles", "logFiles") for file in _entries(listed.get(key))}


def _entries(value: object) -> list[dict[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _stored_name(file: dict[str, object], about: str) -> str:
    names = [name for key, name in file.items() if key.startswith("dfs") and isinstance(name, str)]
    if len(names) != 1:
        raise Corrupt(f"{about} refers to a file in a way that is not known here: {sorted(file)}.", about=about)
    return names[0]
