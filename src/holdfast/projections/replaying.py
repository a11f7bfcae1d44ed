"""Replays whose progress nobody keeps: over events in hand, over one stream, over many, over those that begin alike."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from holdfast.projections.arguments import check_number
from holdfast.projections.checkpoint import GlobalProjectionCheckpoint
from holdfast.projections.event import Event
from holdfast.projections.event_log import PAGE
from holdfast.projections.projection import Handles, check_projection
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import MemoryView, View


class Replays:
    """The forms that write nothing to the store. What a handler raises is raised, and what came before stays done.

    Without a `view` the read model is a new one in memory, of use to projections that keep theirs in themselves.
    """

    def __init__(self, store: ProjectionStore) -> None:
        self.store = store

    def run(self, projection: Handles, events: Iterable[Event], view: View | None = None) -> View:
        """Handle all of these events; the view they went into."""
        return self.run_all([projection], events, view)

    def run_all(self, projections: Sequence[Handles], events: Iterable[Event], view: View | None = None) -> View:
        """Handle all of these events with several projections, in one pass."""
        view = MemoryView() if view is None else view
        for projection in projections:
            check_projection(projection)
        for event in events:
            for projection in projections:
                projection.handle(event, view)
        return view

    def catch_up(self, projection: Handles, events: Sequence[Event], after: int = 0, view: View | None = None) -> View:
        """Handle those of one stream's events that follow a sequence; they must be in order."""
        check_number("after", after)
        return self.run(projection, events[bisect_right(events, after, key=lambda event: event.sequence) :], view)

    def run_from_store(self, projection: Handles, stream: str, view: View | None = None) -> int:
        """Handle a stream from its first event; the sequence of the last."""
        return self.catch_up_from_store(projection, stream, 0, view)

    def catch_up_from_store(self, projection: Handles, stream: str, after: int, view: View | None = None) -> int:
        """Handle the events of a stream that follow a sequence; the sequence of the last."""
        view = MemoryView() if view is None else view
        check_projection(projection)
        for event in self.store.read_stream(stream, after):
            projection.handle(event, view)
            after = event.sequence
        return after

    def run_all_streams(
        self, projection: Handles, streams: Iterable[str] | None = None, view: View | None = None
    ) -> GlobalProjectionCheckpoint:
        """Handle these streams, one after the other, from their first events; without `streams`, all there are."""
        return self.catch_up_all_streams(projection, GlobalProjectionCheckpoint(), streams, view)

    def catch_up_all_streams(
        self,
        projection: Handles,
        checkpoint: GlobalProjectionCheckpoint,
        streams: Iterable[str] | None = None,
        view: View | None = None,
    ) -> GlobalProjectionCheckpoint:
        """Handle what follows a checkpoint; the checkpoint to go on from next time. The one given stays as it is."""
        view = MemoryView() if view is None else view
        reached = checkpoint.copy()
        for stream in self._streams("") if streams is None else streams:
            reached.advance(stream, self.catch_up_from_store(projection, stream, checkpoint.cursor_for(stream), view))
        return reached

    def run_matching_streams(
        self, projection: Handles, prefix: str, view: View | None = None
    ) -> GlobalProjectionCheckpoint:
        """Handle the streams that begin so, from their first events."""
        return self.catch_up_all_streams(projection, GlobalProjectionCheckpoint(), self._streams(prefix), view)

    def catch_up_matching_streams(
        self, projection: Handles, prefix: str, checkpoint: GlobalProjectionCheckpoint, view: View | None = None
    ) -> GlobalProjectionCheckpoint:
        """Handle what follows a checkpoint in the streams that begin so; the checkpoint to go on from next time."""
        return self.catch_up_all_streams(projection, checkpoint, self._streams(prefix), view)

    def _streams(self, prefix: str) -> Iterator[str]:
        after: str | None = None
        while names := self.store.list_streams(prefix, after=after, limit=PAGE):
            yield from names
            after = names[-1]
