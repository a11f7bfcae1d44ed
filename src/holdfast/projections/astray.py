"""Cursors that do not fit the store: the projection cannot go on without losing events or handling them twice."""

from __future__ import annotations

from holdfast.errors import Invalid
from holdfast.projections.event_log import EventLog
from holdfast.projections.state import Track


def check_was_seen(log: EventLog, track: Track, stream: str, cursor: int) -> None:
    """An event at or before the cursor is in the read model already, if the stream ever went as far."""
    version = log.version(stream)
    if version < cursor:
        raise _astray(
            track,
            f"its cursor for stream {stream[:200]!r} is at {cursor}, and the stream has {version} events",
            "cursor.ahead",
        )


def gap(track: Track, stream: str, cursor: int, sequence: int) -> Invalid:
    return _astray(
        track,
        f"its cursor for stream {stream[:200]!r} is at {cursor}, and the next event that it would be given is "
        f"{sequence}, as if it read other streams before",
        "cursor.gap",
    )


def _astray(track: Track, why: str, code: str) -> Invalid:
    return Invalid(
        f"Projection {track.name[:200]!r} cannot go on: {why}.",
        code=code,
        about=f"projection {track.name[:200]!r}",
        unchanged="its read model and its cursors",
        next_step="rebuild it, or save the checkpoint that its read model has",
    )
