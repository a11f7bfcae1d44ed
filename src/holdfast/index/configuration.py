"""The configuration that an index's results were made with: its hash, the policy for a change, and the reset.

The hash is the same in every process, on every machine, in every release.
Each value becomes a tag, the length of its content as eight bytes, and the content: `n` None, `t` and `f` True and
False (no content), `i` an integer in hexadecimal digits, `d` a float as eight bytes, `s` text as UTF-8, `b` bytes,
`l` a list or tuple (its items), `u` a set (its items, sorted as bytes), `m` a dict (key, value, key, value, sorted by
key). The hash is the first eight bytes of the SHA-256 of that, as a big-endian number.

So the order of a list matters, that of a dict or a set does not. 1, 1.0, True and "1" have different hashes; 0.0 and
-0.0 have the same one, as have all NaNs.

A reset empties an index in several commits, and survives a crash between them. The first commit writes a marker with
the hash to set at the end. Then all keys are removed, some thousand per commit. The last commit sets the hash and
removes the marker. Opening an index that has a marker finishes the reset first.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, get_args

from msgspec import Struct

from holdfast.base.arguments import check_number, refused
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.index import records
from holdfast.index.session import SessionManager
from holdfast.storage.kv.store import Reader, Row, end_of

RESET_CHUNK = 4096
"""Keys that a reset removes in one commit."""
UNFINISHED = "index.reset-unfinished"
"""The code of the error for an index whose reset is not finished."""
_EMPTIED: tuple[tuple[str, bytes], ...] = (
    ("meta", records.CHECKPOINTS),
    ("meta", records.GAPS),
    ("results", b""),
)
OnChange = Literal["fail", "reset", "accept"]
Action = Literal["first", "resume", "accept", "reset", "refuse"]

_LENGTH = struct.Struct(">Q")
_FLOAT = struct.Struct(">d")
_NAN = _FLOAT.pack(math.nan)


def config_hash(config: Any) -> int:
    """A stable 64-bit hash of plain data: None, bool, int, float, str, bytes; lists, tuples, sets and dicts of them."""
    try:
        return int.from_bytes(hashlib.sha256(_encode(config)).digest()[:8], "big")
    except RecursionError:
        raise refused("config", "it is nested too deeply, or contains itself") from None


def _encode(value: Any) -> bytes:
    match value:
        case None:
            return _tagged(b"n")
        case bool():
            return _tagged(b"t" if value else b"f")
        case int():
            return _tagged(b"i", format(int(value), "x").encode())
        case float():
            return _tagged(b"d", _NAN if math.isnan(value) else _FLOAT.pack(value + 0.0))
        case str():
            try:
                return _tagged(b"s", value.encode())
            except UnicodeEncodeError:
                raise refused("config", f"{value[:40]!r} is not valid Unicode") from None
        case bytes() | bytearray():
            return _tagged(b"b", bytes(value))
        case list() | tuple():
            return _tagged(b"l", b"".join(map(_encode, value)))
        case set() | frozenset():
            return _tagged(b"u", b"".join(sorted(map(_encode, value))))
        case dict():
            pairs = sorted((_encode(key), _encode(item)) for key, item in value.items())
            return _tagged(b"m", b"".join(key + item for key, item in pairs))
    raise refused(
        "config",
        f"a {type(value).__name__} is not plain data: use None, bool, int, float, str, bytes, "
        "and lists, tuples, sets and dicts of them",
    )


def _tagged(tag: bytes, content: bytes = b"") -> bytes:
    return tag + _LENGTH.pack(len(content)) + content


class Start(Struct, frozen=True):
    """The decision of a start about an index."""

    action: Action
    """`first`: the index is empty; `resume`: same configuration; otherwise the policy `on_change` decided."""
    resumes: bool
    """Whether sources resume from their checkpoints; if not, they start from their beginning."""
    writes_hash: bool
    why: str


def decide_start(
    *, stored: int | None, wanted: int, has_anything: bool, policy: OnChange, is_persistent: bool
) -> Start:
    """Decide, from the stored hash, the wanted hash, and whether the index has any data.

    Results without a stored hash are treated like those of another configuration, because theirs is unknown. An
    interrupted reset has been finished before, when the index was opened.
    """
    check_number("config_hash", wanted)
    if policy not in get_args(OnChange):
        raise refused("on_change", f"{policy!r} is none of 'fail', 'reset' and 'accept'")
    if not has_anything:
        return Start("first", False, stored != wanted, "the index is empty")
    if not is_persistent:
        return Start("reset", False, True, "the index is volatile: sources start over, so it is emptied")
    if stored == wanted:
        return Start("resume", True, False, "the configuration is unchanged")
    if stored is None:
        why = "the index holds data, but no record of the configuration it was made with"
    else:
        why = f"the configuration has changed: its hash was {stored:016x} and is {wanted:016x} now"
    if policy == "accept":
        return Start("accept", True, True, why)
    return Start("reset" if policy == "reset" else "refuse", False, policy == "reset", why)


def refuse_change(start: Start, address: str) -> Invalid:
    return Invalid(
        f"{address}: {start.why}.",
        code="config.changed",
        about=address,
        unchanged="the index",
        next_step='start with the old configuration, with on_change="reset" to empty the index and compute it anew, '
        'or with on_change="accept" if the results are right for both',
    )


def has_anything(store: Reader) -> bool:
    """Whether the index has any key that a reset would remove."""
    return any(next(store.scan(space, prefix, end_of(prefix)), None) for space, prefix in _EMPTIED)


def reset_index(store: Reader, sessions: SessionManager, config_hash: int | None) -> None:
    """Empty the index and set this hash, or none. Until it is finished, every other read and write is refused."""
    marker = [(records.RESET_KEY, records.encode_marker(config_hash))]
    sessions.refusal = lambda: _unfinished(store.address)
    try:
        sessions.commit_alone("reset.begin", "meta", marker)
    except BaseException:
        with contextlib.suppress(HoldfastError):  # if the marker cannot be read, everything stays refused
            if store.get("meta", records.RESET_KEY) is None:  # not begun: the index is unchanged
                sessions.refusal = None
        raise
    finish_reset(store, sessions)
    sessions.refusal = None


def finish_reset(store: Reader, sessions: SessionManager) -> None:
    """Finish a reset that was begun, if there is one."""
    value = store.get("meta", records.RESET_KEY)
    if value is None:
        return
    config_hash = records.decode_marker(value, store.address)
    for space, prefix in _EMPTIED:
        removals = ((key, None) for key, _ in store.scan(space, prefix, end_of(prefix)))
        while chunk := list(islice(removals, RESET_CHUNK)):
            sessions.commit_alone("reset.clear", space, chunk)
    new_hash = None if config_hash is None else records.encode_hash(config_hash)
    sessions.commit_alone("reset.finish", "meta", [(records.HASH_KEY, new_hash), (records.RESET_KEY, None)])


def refuse_unfinished(store: Reader) -> None:
    """`Unavailable` if a reset is not finished: a read-only opening cannot finish it, and must not show the rest."""
    if store.get("meta", records.RESET_KEY) is not None:
        raise _unfinished(store.address)


def _unfinished(address: str) -> Unavailable:
    return Unavailable(
        f"{address} is being emptied, and that is not finished.",
        code=UNFINISHED,
        about=address,
        unchanged="nothing: part of the index is gone, and the rest will go",
        next_step="wait for it; if it failed, open the index again, which finishes it",
    )


class ResetGuard:
    """Guards the reads of an index that was opened read-only.

    A writing process may begin a reset at any time, and fail half-way. So each read checks afterwards, a scan at its
    end, whether a reset has begun, and raises `Unavailable` then.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.address = reader.address
        self.is_persistent = reader.is_persistent
        self.close = reader.close

    def get(self, space: str, key: bytes) -> bytes | None:
        found = self._reader.get(space, key)
        refuse_unfinished(self._reader)
        return found

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._reader.get_many(space, keys)
        refuse_unfinished(self._reader)
        return found

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        yield from self._reader.scan(space, start, end, limit)
        refuse_unfinished(self._reader)
