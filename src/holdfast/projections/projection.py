"""The protocol of a projection, and its policy for a handler that fails."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

import msgspec

from holdfast.base.arguments import check_number, check_text, refused
from holdfast.errors import Invalid
from holdfast.projections.event import Event
from holdfast.projections.keys import MAX_STREAM_BYTES, check_name
from holdfast.projections.view import View


class ProjectionLike(Protocol):
    """Anything with a name, a version and a handler."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def handle(self, event: Event, view: View) -> None:
        """Put one event into the read model. Raising leaves the read model as it was before the event."""


class Projection:
    """A projection: inherit, name it, and handle events.

        class Turnover(Projection):
            name = "turnover"

            def handle(self, event, view):
                if event.type == "paid":
                    total = int(view.get(b"total") or 0) + event.json()["cents"]
                    view.put(b"total", b"%d" % total)

    Events of a stream come in their order, and all events in the order of their commits. What the handler does outside
    the view may happen again after a crash.

    On Spark, events with the same `key(event)` are handled together, in that order; without such a method, those of
    one stream are.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Increase it when a change of the handler requires a rebuild of the read model."""
    streams: ClassVar[str] = ""
    """Only streams whose names begin with this prefix."""
    is_volatile: ClassVar[bool] = False
    """True if the read model is in the object itself: no cursor is kept for one."""

    def handle(self, event: Event, view: View) -> None:
        raise NotImplementedError


class OnError(msgspec.Struct, frozen=True, kw_only=True):
    """What to do when a handler raises: retry, then stop or record the event as a dead letter.

    An event is never passed over silently.
    """

    retries: int = 0
    wait: float = 0.1
    """Seconds before the first retry; each later one waits twice as long, a minute at most."""
    then: Literal["stop", "dead-letter"] = "stop"


OnVersion = Literal["fail", "rebuild"]
"""What to do if the read model was made by another version of the projection."""


def check_projection(projection: Any) -> None:
    for needed in ("name", "version", "handle"):
        if not hasattr(projection, needed):
            raise refused("projection", f"{type(projection).__name__} has no {needed}")
    check_name(projection.name)
    check_number("version", projection.version, 0, 2**63 - 1)
    if prefix := streams_of(projection):
        check_text("streams", prefix, MAX_STREAM_BYTES)


def streams_of(projection: ProjectionLike) -> str:
    found: str = getattr(projection, "streams", "")
    return found


def check_kept(projection: ProjectionLike, address: str) -> None:
    """Refuse a durable cursor for a read model that is gone with the process."""
    if getattr(projection, "is_volatile", False):
        raise Invalid(
            f"Projection {projection.name!r} keeps its read model in itself, and cursors in {address} would outlive "
            "it: after a restart its events would never be handled again.",
            code="projection.volatile",
            about=f"projection {projection.name!r}",
            unchanged="everything",
            next_step="keep the read model in the view, or replay it with run_all_streams",
        )


def check_version(projection: ProjectionLike, made_by: int | None) -> None:
    """Refuse a handler that did not make the read model it would go on with."""
    if made_by not in (None, projection.version):
        raise Invalid(
            f"The read model of projection {projection.name!r} was made by version {made_by}, this is version "
            f"{projection.version}.",
            code="projection.version",
            about=f"projection {projection.name!r}",
            unchanged="its read model and its cursors",
            next_step="rebuild it, or run it with on_version='rebuild'",
        )
