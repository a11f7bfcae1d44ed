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
        """Apply one event to the read model. If this raises, the read model stays as it was before the event."""


class Projection:
    """A projection: inherit, name it, and handle events.

        class Turnover(Projection):
            name = "turnover"

            def handle(self, event, view):
                if event.type == "paid":
                    total = int(view.get(b"total") or 0) + event.json()["cents"]
                    view.put(b"total", b"%d" % total)

    Events arrive in commit order, so those of one stream in the order of their sequences. After a crash, effects of the
    handler outside the view may be repeated.

    On Spark, events with the same `key(event)` are handled together, in that order. Without a method `key`, events of
    the same stream are.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Increase it when a change of the handler requires a rebuild of the read model."""
    streams: ClassVar[str] = ""
    """Only streams whose names begin with this prefix."""
    is_volatile: ClassVar[bool] = False
    """True if the read model is kept in this object. A persistent store then refuses to keep cursors for it."""

    def handle(self, event: Event, view: View) -> None:
        raise NotImplementedError


class OnError(msgspec.Struct, frozen=True, kw_only=True):
    """What to do when a handler raises: retry, then stop or record the event as a dead letter.

    An event is never skipped silently.
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
    """Refuse durable cursors for a read model that is lost when the process ends."""
    if getattr(projection, "is_volatile", False):
        raise Invalid(
            f"Projection {projection.name!r} keeps its read model in memory, and cursors in {address} would outlive "
            "it: after a restart its events would never be handled again.",
            code="projection.volatile",
            about=f"projection {projection.name!r}",
            unchanged="everything",
            next_step="keep the read model in the view, or replay it with run_all_streams",
        )


def check_version(projection: ProjectionLike, made_by: int | None) -> None:
    """Refuse to continue a read model that another version of the projection made."""
    if made_by not in (None, projection.version):
        raise Invalid(
            f"The read model of projection {projection.name!r} was made by version {made_by}, this is version "
            f"{projection.version}.",
            code="projection.version",
            about=f"projection {projection.name!r}",
            unchanged="its read model and its cursors",
            next_step="rebuild it, or run it with on_version='rebuild'",
        )
