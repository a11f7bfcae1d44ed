"""The results that executors report for their groups, and their merge into changes of the read model."""

from __future__ import annotations

import pickle
from bisect import bisect_left

import msgspec

from holdfast import errors
from holdfast.base.codec import msgpack_decoder
from holdfast.errors import HoldfastError, Invalid, Unavailable, one_line
from holdfast.projections import cursors, keys
from holdfast.projections.batch import Failure
from holdfast.projections.spark.events import decode_record
from holdfast.projections.state import BuildRef


class StreamRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The events of one stream in one group, after the stream's cursor."""

    stream: str
    cursor: int
    first: int
    last: int
    position: int
    """The position of the first event."""


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """An event that could not be handled."""

    record: bytes
    why: str
    attempts: int
    trace: str
    """The traceback, for the author of the handler."""


class RaisedElsewhere(Exception):
    """The exception of a handler on an executor, as the text of its traceback."""


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """A `HoldfastError` from an executor that no event caused, as data."""

    kind: str
    message: str
    code: str
    about: str | None
    unchanged: str | None
    next_step: str | None

    def error(self) -> HoldfastError:
        kind: type[HoldfastError] = getattr(errors, self.kind)
        return kind(self.message, code=self.code, about=self.about, unchanged=self.unchanged, next_step=self.next_step)


def fault(error: HoldfastError) -> Fault:
    """Encode an error. A subclass from outside `holdfast.errors` is sent as its nearest base class in it."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return Fault(kind, error.message, error.code, error.about, error.unchanged, error.next_step)


class GroupResult(msgspec.Struct, frozen=True, array_like=True):
    """The results of several whole groups of one partition. Flat lists, because there may be millions of keys."""

    handled: int = 0
    keys: list[bytes] = []
    """The keys of the read model that were written; each group lists a key once."""
    values: list[bytes | None] = []
    """The new values, in the order of `keys`; None deletes the key."""
    writers: list[bytes] = []
    """The groups that wrote them, in the order of `keys`."""
    reads: list[tuple[bytes, bytes]] = []
    """Pairs of a group and a key whose committed value the group read and did not write."""
    scans: list[tuple[bytes, bytes]] = []
    """Pairs of a group and a prefix that it scanned."""
    spans: list[StreamRange] = []
    letters: list[Failed] = []
    failed: list[Failed] = []
    faults: list[Fault] = []


encode_part = msgspec.msgpack.Encoder().encode
decode_part = msgpack_decoder(GroupResult).decode


class MergedResult:
    """All results of a batch, merged in any order.

    Groups are handled in parallel, none seeing another's writes. The result equals that of the log's order if no group
    has written a key that another group has read or written. `add` and `check` verify that.
    """

    def __init__(self, ref: BuildRef) -> None:
        self._ref = ref
        self._written: dict[bytes, bytes | None] = {}
        self._writer: dict[bytes, bytes] = {}
        self._reads: list[tuple[bytes, bytes]] = []
        self._scans: list[tuple[bytes, bytes]] = []
        self._spans: dict[str, StreamRange] = {}
        self._failed: list[Failed] = []
        self.letters: list[Failure] = []
        self.handled = 0

    def add(self, part: GroupResult) -> None:
        """Add one result. Raises an executor's error, or `Invalid` if two groups have written one key."""
        for found in part.faults:
            raise found.error()
        self.handled += part.handled
        wrote = dict(zip(part.keys, part.writers, strict=True))
        if len(wrote) < len(part.keys) or not self._writer.keys().isdisjoint(wrote):
            raise self._written_twice(part)
        self._writer.update(wrote)
        self._written.update(zip(part.keys, part.values, strict=True))
        self._reads += part.reads
        self._scans += part.scans
        for span in part.spans:
            self._add_span(span)
        self._failed += part.failed
        self.letters += [_failure(letter) for letter in part.letters]

    def check(self) -> None:
        """`Invalid` if one group has read a key that another group has written."""
        writer = self._writer
        for group, key in self._reads:
            if writer.get(key, group) != group:
                raise self._dependent(key, writer[key], group, "read by")
        in_order = sorted(writer) if self._scans else []
        for group, prefix in self._scans:
            self._check_scan(group, prefix, in_order)

    @property
    def failure(self) -> Failure | None:
        """The failed event with the lowest position that was not dead-lettered; None if there is none."""
        return min(map(_failure, self._failed), key=lambda failure: failure.event.position, default=None)

    @property
    def failed_positions(self) -> set[int]:
        """The positions of all events that failed and were not dead-lettered."""
        return {_failure(failed).event.position for failed in self._failed}

    def cursors(self) -> dict[str, int]:
        """The new cursor of each stream. `Invalid` if there is a gap between the stored cursor and these events."""
        gaps = [span for span in self._spans.values() if span.first != span.cursor + 1]
        if gaps:
            span = min(gaps, key=lambda span: span.position)
            raise cursors.gap(self._ref, span.stream, span.cursor, span.first)
        return {stream: span.last for stream, span in self._spans.items()}

    def writes(self, build: int) -> dict[bytes, bytes | None]:
        """The writes to the read model, for the keyspace `views`."""
        prefix = keys.of_build(self._ref.escaped, build)
        return {prefix + key: value for key, value in self._written.items()}

    def _add_span(self, span: StreamRange) -> None:
        known = self._spans.get(span.stream)
        if known is not None:
            earlier = min(known, span, key=lambda one: one.first)
            span = msgspec.structs.replace(earlier, last=max(known.last, span.last))
        self._spans[span.stream] = span

    def _check_scan(self, group: bytes, prefix: bytes, in_order: list[bytes]) -> None:
        for at in range(bisect_left(in_order, prefix), len(in_order)):
            key = in_order[at]
            if not key.startswith(prefix):
                return
            if self._writer[key] != group:
                raise self._dependent(key, self._writer[key], group, "read by")

    def _written_twice(self, part: GroupResult) -> Invalid:
        writer = dict(self._writer)
        for key, group in zip(part.keys, part.writers, strict=True):
            if key in writer:
                break
            writer[key] = group
        return self._dependent(key, writer[key], group, "written by")

    def _dependent(self, key: bytes, one: bytes, other: bytes, how: str) -> Invalid:
        return Invalid(
            f"Projection {self._ref.name[:200]!r} cannot run in parallel: key {key[:200]!r} of its read model was "
            f"written by the events of group {_shown(one)} and {how} those of group {_shown(other)}, and the "
            "result depends on their order.",
            code="projection.groups",
            about=f"projection {self._ref.name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="give the projection a key(event) that puts such events into one group, or run it in one process "
            "with holdfast.projections.ProjectionRunner",
        )


def _failure(failed: Failed) -> Failure:
    return Failure(decode_record(failed.record), failed.why, failed.attempts, RaisedElsewhere(failed.trace))


def _shown(group: bytes) -> str:
    return repr(group[:200].decode(errors="backslashreplace"))


def explained(error: Exception, name: str) -> HoldfastError:
    """The `HoldfastError` for an exception that Spark raised."""
    about, unchanged = f"projection {name[:200]!r}", "its read model and its cursors"
    if isinstance(error, pickle.PicklingError | AttributeError | TypeError):
        return Invalid(
            f"Projection {name[:200]!r} cannot be sent to Spark's executors: {one_line(error)}",
            code="projection.pickle",
            about=about,
            unchanged=unchanged,
            next_step="keep open files, connections and locks out of the projection object",
        )
    if "No module named 'holdfast'" in str(error):
        return Invalid(
            "Spark's executors run a Python without the package holdfast.",
            code="projection.executors",
            about=about,
            unchanged=unchanged,
            next_step="install holdfast there, or set PYSPARK_PYTHON to a Python that has it before the session starts",
        )
    return Unavailable(
        f"Spark failed in a batch of projection {name[:200]!r}: {one_line(error)}",
        code="spark.failed",
        about=about,
        unchanged=unchanged,
        next_step="read Spark's error and its logs, then catch up again",
    )
