"""Emptying an index so that a crash half-way does no harm.

A marker with the hash to set at the end is committed first. Then everything goes, some thousand keys per commit. The
last commit sets the hash and removes the marker. Whoever opens an index with a marker finishes this first.
"""

from __future__ import annotations

from itertools import islice

from holdfast.errors import Unavailable
from holdfast.index import records
from holdfast.index.session import Sessions
from holdfast.storage.kv.backend import Backend, Looker, Space

CHUNK = 4096
UNFINISHED = "index.reset-unfinished"
"""The code of the error for an index that is half emptied."""
_EMPTIED: tuple[tuple[Space, bytes], ...] = (
    ("meta", records.CHECKPOINTS),
    ("meta", records.GAPS),
    ("results", b""),
)


def has_anything(backend: Backend) -> bool:
    """Whether there is something that a reset would remove."""
    return any(next(backend.scan(space, prefix), None) for space, prefix in _EMPTIED)


def reset(backend: Backend, sessions: Sessions, config_hash: int | None) -> None:
    """Empty the index and leave this hash, or none. Until it is done, nobody reads or writes anything else."""
    marker = [(records.RESET_KEY, records.encode_marker(config_hash))]
    sessions.refusal = lambda: _unfinished(backend.address)
    try:
        sessions.commit_alone("reset.begin", "meta", marker)
    except BaseException:
        if backend.read("meta", records.RESET_KEY) is None:  # as it was; if it cannot be told, it stays refused
            sessions.refusal = None
        raise
    finish(backend, sessions)
    sessions.refusal = None


def finish(backend: Backend, sessions: Sessions) -> None:
    """Finish a reset that was begun, if there is one."""
    value = backend.read("meta", records.RESET_KEY)
    if value is None:
        return
    config_hash = records.decode_marker(value, backend.address)
    for space, prefix in _EMPTIED:
        removals = ((key, None) for key, _ in backend.scan(space, prefix))
        while chunk := list(islice(removals, CHUNK)):
            sessions.commit_alone("reset.clear", space, chunk)
    new_hash = None if config_hash is None else records.encode_hash(config_hash)
    sessions.commit_alone("reset.finish", "meta", [(records.HASH_KEY, new_hash), (records.RESET_KEY, None)])


def refuse_unfinished(backend: Looker) -> None:
    """Whoever only looks cannot finish it, and must not take what is left for the whole."""
    if backend.read("meta", records.RESET_KEY) is not None:
        raise _unfinished(backend.address)


def _unfinished(address: str) -> Unavailable:
    return Unavailable(
        f"{address} is being emptied, and that is not finished.",
        code=UNFINISHED,
        about=address,
        unchanged="nothing: part of the index is gone, and the rest will go",
        next_step="wait for it; if it failed, open the index again, which finishes it",
    )
