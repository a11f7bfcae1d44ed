"""Which files of a workdir Spark needs to run one batch again. Pure, but for a look into RocksDB's archives.

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

_VERSIONED = re.compile(r"(\d+)(?:_([0-9A-Za-z-]+))?\.(delta|snapshot|zip|changelog)(?:\.crc)?")
_SOURCE_LOG = re.compile(r"(\d+)(\.compact)?")
_SNAPSHOTS = {"snapshot", "zip"}
_SHARED = ("SSTs", "logs")
"""Folders of a RocksDB store with files that its archives refer to."""

ReadArchive = Callable[[str], bytes]


def is_visible(path: str) -> bool:
    """Whether Spark can see a file: nothing hidden, so no checksum or temporary file of Hadoop's."""
    return not any(part.startswith(".") for part in path.split("/"))


def is_immutable(path: str) -> bool:
    """Whether a needed file has its content for ever: a version of state, or an entry of a log."""
    folder, name = posixpath.split(path)
    if path.startswith("state/"):
        return bool(_VERSIONED.fullmatch(name)) or posixpath.basename(folder) in _SHARED
    return folder in ("offsets", "commits")


def is_newer_than(path: str, batch_id: int) -> bool:
    """Whether Spark may read a file when it goes on after `batch_id`, beyond what a checkpoint of that batch holds."""
    folder, name = posixpath.split(path)
    if folder in ("offsets", "commits"):
        return name.isascii() and name.isdigit() and int(name) >= batch_id
    version = _VERSIONED.fullmatch(name)
    return path.startswith("sources/") or (path.startswith("state/") and (not version or int(version[1]) > batch_id))


def files_for_batch(paths: Iterable[str], batch_id: int, read_archive: ReadArchive) -> set[str]:
    """Those of `paths` (relative, with slashes) without which batch `batch_id` could not be run as it was planned."""
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
        elif top == "state" and _VERSIONED.fullmatch(name):
            stores[folder].append(path)
        elif top == "state" and posixpath.basename(folder) in _SHARED:
            shared[posixpath.dirname(folder)].append(path)
        elif path == "metadata" or (top == "state" and rest):
            needed.add(path)
    for logs in sources.values():
        needed.update(_source_logs(logs))
    for folder, files in stores.items():
        chosen = state_files(files, batch_id)
        needed.update(chosen)
        needed.update(_referred(chosen, shared.get(folder, ()), read_archive))
    return needed


def newest_versions(paths: Iterable[str]) -> dict[str, int]:
    """The newest version of each state store that has files among `paths`."""
    newest: dict[str, int] = {}
    for path in paths:
        folder, name = posixpath.split(path)
        if match := _VERSIONED.fullmatch(name):
            newest[folder] = max(newest.get(folder, 0), int(match[1]))
    return newest


def state_files(paths: Collection[str], version: int) -> set[str]:
    """The files of one state store that loading `version` may read.

    Where file names carry an id of the attempt that wrote them, a snapshot may be of an attempt that did not count:
    then one snapshot more is kept, and the changes since. `Corrupt` if a change in between is missing.
    """
    parsed = [(match, path) for path in paths if (match := _VERSIONED.fullmatch(posixpath.basename(path)))]
    bases = sorted({int(m[1]) for m, _ in parsed if m[3] in _SNAPSHOTS and int(m[1]) <= version}, reverse=True)
    spare = 1 if any(m[2] for m, _ in parsed) else 0
    base = bases[min(spare, len(bases) - 1)] if bases else 0
    there = {int(m[1]) for m, _ in parsed}
    if version in there:  # else it is not in use: what a change of the number of partitions leaves
        missing = sorted(set(range(bases[0] if bases else 1, version)) - there)
        if missing:
            raise Corrupt(
                f"{posixpath.dirname(min(paths))} lacks version {missing[0]}; {version} cannot be loaded without it.",
                code="workdir.state-file",
                about=posixpath.dirname(min(paths)),
            )
    return {path for m, path in parsed if base <= int(m[1]) <= version}


def _source_logs(paths: Collection[str]) -> set[str]:
    """A source's log from its newest compaction on; files of any other name as they are."""
    numbered = [(match, path) for path in paths if (match := _SOURCE_LOG.fullmatch(posixpath.basename(path)))]
    newest = max((int(m[1]) for m, _ in numbered if m[2]), default=-1)
    dropped = {path for m, path in numbered if int(m[1]) < newest or (int(m[1]) == newest and not m[2])}
    return set(paths) - dropped


def _referred(chosen: Collection[str], shared: Collection[str], read_archive: ReadArchive) -> set[str]:
    """The files in a RocksDB store's shared folders that the chosen archives name."""
    archives = [path for path in chosen if path.endswith(".zip")]
    if not archives:
        return set()
    names = {name for path in archives for name in referred_names(read_archive(path), path)}
    found = {path for path in shared if posixpath.basename(path).removesuffix(".crc") in names}
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
