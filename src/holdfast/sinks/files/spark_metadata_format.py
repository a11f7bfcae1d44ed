"""The log `_spark_metadata`, by which Spark's readers know the files of a directory. Pure.

Spark's own file sink writes it, and `spark.read` and `readStream` take the files that it lists, and no others. An entry
is `v1` and then a JSON document per line. Entries are numbered from 0; every tenth is called `N.compact` and repeats
everything before it, so that a reader needs the newest of those and what follows.

Ours have one more line per epoch, for its directory, with the field `holdfast`. Spark passes over lines of directories
and over fields that it does not know.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.base.codec import json_decoder

VERSION = b"v1"
INTERVAL = 10
"""How often an entry is a compact one. Spark's readers assume it, unless they find two compact ones and subtract."""
COMPACT = ".compact"
BLOCK_SIZE = 32 << 20  # what Spark notes for files on S3
_NAME = re.compile(r"(\d{1,18})(\.compact)?", re.ASCII)
_NOT_OURS = "it lists a file that belongs to no epoch of Holdfast's"
_PLAIN = "/:=@+,;~!$&'()"


class LoggedFile(msgspec.Struct, frozen=True):
    """One data file of an epoch."""

    name: str
    size: int
    modified_ms: int


class LoggedEpoch(msgspec.Struct, frozen=True):
    """One committed epoch."""

    lineage: int
    epoch: int
    mark: str | None = None
    """See `Delivery.mark`."""
    files: tuple[LoggedFile, ...] = ()
    is_forgotten: bool = False
    """Whether the files of this epoch, and everything of those of its lineage before, have left the log (`forget`)."""


class _Ours(msgspec.Struct, frozen=True):
    lineage: int
    epoch: int
    mark: str | None = None
    forgotten: bool | msgspec.UnsetType = msgspec.UNSET


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    """Spark's `SinkFileStatus`."""

    path: str
    size: int
    is_dir: bool
    modification_time: int
    block_replication: int = 1
    block_size: int = BLOCK_SIZE
    action: str = "add"
    holdfast: _Ours | msgspec.UnsetType = msgspec.UNSET


def entry_name(number: int) -> str:
    return f"{number}{COMPACT}" if is_compact(number) else str(number)


def is_compact(number: int) -> bool:
    return number % INTERVAL == INTERVAL - 1


def number_in(name: str) -> int | None:
    """The number of the entry with this name; None for anything that is not an entry."""
    found = _NAME.fullmatch(name)
    number = int(found[1]) if found else None
    return number if number is not None and entry_name(number) == name else None


def needed(numbers: Iterable[int]) -> list[int]:
    """The entries that tell everything, of those that are there: the newest compact one and all after it.

    `ValueError` if one of them is missing, or there is none at all.
    """
    there = set(numbers)
    if not there:
        raise ValueError("the log has no entry")
    newest = max(there)
    begin = newest if is_compact(newest) else max(newest - newest % INTERVAL - 1, 0)
    wanted = list(range(begin, newest + 1))
    missing = [number for number in wanted if number not in there]
    if missing:
        raise ValueError(f"entry {entry_name(missing[0])} is missing, and {entry_name(newest)} is there")
    return wanted


def removable(numbers: Iterable[int]) -> list[int]:
    """The entries that nobody needs: those before the newest compact one but one.

    A reader that has just listed the log still finds what it needs, and from two compact entries it knows their
    distance, whatever its own settings say.
    """
    there = sorted(numbers)
    compact = [number for number in there if is_compact(number)]
    return [number for number in there if len(compact) > 1 and number < compact[-2]]


def encode(address: str, directory: str, logged: LoggedEpoch) -> bytes:
    """The lines of one epoch, whose files lie in a directory below `address`."""
    at = f"{address}/{directory}"
    newest = max((file.modified_ms for file in logged.files), default=0)
    ours = _Ours(logged.lineage, logged.epoch, logged.mark)
    lines = [_Line(_as_url(at), 0, True, newest, holdfast=ours)]
    lines += [_Line(_as_url(f"{at}/{file.name}"), file.size, False, file.modified_ms) for file in logged.files]
    return b"\n".join(msgspec.json.encode(line) for line in lines)


def entry(parts: Sequence[bytes]) -> bytes:
    """A whole entry of the lines of any number of epochs."""
    return b"\n".join([VERSION, *(part for part in parts if part)])


def lines_of(body: bytes) -> bytes:
    """The lines of an entry without its version. `ValueError` if it has another version."""
    version, _, rest = body.partition(b"\n")
    if version != VERSION:
        raise ValueError(f"it begins with {version[:20]!r} instead of {VERSION!r}")
    return rest


def forget(lines: bytes, keep_ms: int) -> bytes:
    """The lines without the oldest epochs: those at the beginning whose files are `keep_ms` older than the newest file.

    The newest epoch stays. Of each lineage that loses epochs a line says up to which one.
    """
    epochs: list[tuple[_Line, list[bytes]]] = []
    modified: list[int] = []
    for text in filter(None, lines.split(b"\n")):
        line = json_decoder(_Line).decode(text)
        if isinstance(line.holdfast, _Ours):
            epochs.append((line, []))
            modified.append(0)
        elif not epochs:
            raise ValueError(_NOT_OURS)
        epochs[-1][1].append(text)
        modified[-1] = max(modified[-1], 0 if line.is_dir else line.modification_time)
    limit = max(modified, default=0) - keep_ms
    first = next((number for number, newest in enumerate(modified[:-1]) if newest >= limit), len(epochs) - 1)
    gone, kept = epochs[: max(first, 0)], epochs[max(first, 0) :]
    last: dict[int, tuple[int, _Line]] = {}
    for line, _ in gone:
        assert isinstance(line.holdfast, _Ours)
        lineage, epoch = line.holdfast.lineage, line.holdfast.epoch
        if epoch > last.get(lineage, (0, line))[0]:
            marked = msgspec.structs.replace(line.holdfast, forgotten=True)
            last[lineage] = epoch, msgspec.structs.replace(line, holdfast=marked)
    left = [msgspec.json.encode(line) for _, line in last.values()]
    return b"\n".join([*left, *(text for _, texts in kept for text in texts)])


def decode(body: bytes) -> list[LoggedEpoch]:
    """The epochs of an entry, in its order. `ValueError` if it makes no sense, or another program wrote it."""
    found: list[tuple[_Ours, list[LoggedFile]]] = []
    for text in lines_of(body).split(b"\n"):
        if not text:
            continue
        line = json_decoder(_Line).decode(text)  # msgspec's errors are ValueErrors
        if isinstance(line.holdfast, _Ours):
            found.append((line.holdfast, []))
        elif not found:
            raise ValueError(_NOT_OURS)
        elif not line.is_dir:
            name = urllib.parse.unquote(line.path.rpartition("/")[2])
            found[-1][1].append(LoggedFile(name, line.size, line.modification_time))
    return [
        LoggedEpoch(ours.lineage, ours.epoch, ours.mark, tuple(files), ours.forgotten is True) for ours, files in found
    ]


def _as_url(path: str) -> str:
    return urllib.parse.quote(path, safe=_PLAIN)
