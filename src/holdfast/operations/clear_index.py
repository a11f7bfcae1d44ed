"""Plans that clear an index: its sources start over. Clearing the results as well leaves it empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

import msgspec

from holdfast.base.shortened import shortened
from holdfast.errors import Conflict, Unavailable
from holdfast.index.configuration import RESET_CHUNK
from holdfast.operations.plan import Outcome, Progress, Table, progress_of_steps
from holdfast.status import format
from holdfast.status.index import IndexStatus, OpenedIndex, observe_index, opened_index

COUNTED = 100_000
"""Results are counted up to this number: counting all could take as long as removing them."""
NAME = 40
UNFINISHED = "index.reset-unfinished"
_FENCING = "a process that has this index open can write nothing more to it"


class ClearIndexPlan(msgspec.Struct, frozen=True):
    """A plan to remove checkpoints, gaps and configuration hash, and the results too unless `results` is None.

    `apply` raises `Conflict` if anything has changed since the plan was made. A crash while results are removed leaves
    a marker, and the next opening finishes the removal. A crash after that leaves an empty index with its hash: clear
    it again.
    """

    url: str
    seen: IndexStatus
    has_hash: bool
    """True also for a hash record that is damaged."""
    results: int | None
    """The number of results, at most `COUNTED` + 1; None if the results stay."""

    activity: ClassVar[str] = "removing"

    @property
    def address(self) -> str:
        return self.seen.address

    @property
    def is_empty(self) -> bool:
        return not self._rows()

    @property
    def question(self) -> str:
        return f"Remove {self._words()} from {self.address}?"

    @property
    def warnings(self) -> Sequence[str]:
        return () if self.is_empty or _is_on_disk(self.address) else (_FENCING,)

    @property
    def amount(self) -> int:
        return self.results if self.results is not None and self.results <= COUNTED else 0

    def lines(self) -> Iterator[str | Table]:
        if self.is_empty:
            yield "nothing to remove"
            return
        yield Table(("REMOVE", "WHICH"), self._rows())
        yield f"to remove: {self._words()}" + ("; results stay" if self.results is None else "")

    def as_json(self) -> dict[str, Any]:
        config_hash = self.seen.config_hash
        return {
            "checkpoints": [source.name for source in self.seen.sources],
            "gaps": self.seen.gap_count,
            "config_hash": None if config_hash is None else f"{config_hash:016x}",
            "results": None if self.results is None else min(self.results, COUNTED),
            "has_more_results": (self.results or 0) > COUNTED,
            "finishes_reset": False,
        }

    def apply(self, progress: Progress | None = None) -> Outcome:
        with opened_index(self.url, read_only=False) as seen:
            if _planned(seen, self.url, with_results=self.results is not None) != self:
                raise Conflict(
                    f"{seen.address} has changed since this was shown: another process writes to it.",
                    code="index.changed",
                    about=seen.address,
                    unchanged="the index",
                    next_step="stop the process that writes to it, then do this again",
                )
            if self.results is not None:
                with progress_of_steps(("reset.clear",), RESET_CHUNK, self.amount, progress):
                    seen.index.reset()
            seen.index.checkpoints.clear_checkpoints()
        return Outcome([f"removed {self._words()}"])

    def _rows(self) -> list[tuple[str, str]]:
        """A count and the names for each kind of record."""
        found = []
        if self.seen.sources:
            names = format.listed(shortened(source.name, NAME) for source in self.seen.sources)
            found.append((format.count(len(self.seen.sources), "checkpoint"), names))
        if self.seen.gap_count:
            of = sorted({gap.source_id for gap in self.seen.gaps})
            names = format.listed(shortened(name, NAME) for name in of)
            found.append((format.count(self.seen.gap_count, "recorded gap"), names))
        if self.has_hash:
            config_hash = self.seen.config_hash
            found.append(("the configuration hash", "damaged" if config_hash is None else f"{config_hash:016x}"))
        if self.results:
            found.append((format.count_up_to(self.results, COUNTED, "result"), "all"))
        return found

    def _words(self) -> str:
        *most, last = [what for what, _ in self._rows()]
        return f"{', '.join(most)} and {last}" if most else last


class FinishResetPlan(msgspec.Struct, frozen=True):
    """A plan to finish an interrupted removal of results. Such an index allows nothing else."""

    url: str
    address: str

    activity: ClassVar[str] = "removing"
    amount: ClassVar[int] = 0
    is_empty: ClassVar[bool] = False

    @property
    def question(self) -> str:
        return f"Remove all that is left in {self.address}?"

    @property
    def warnings(self) -> Sequence[str]:
        return () if _is_on_disk(self.address) else (_FENCING,)

    def lines(self) -> Iterator[str | Table]:
        yield "to remove: all that is left, results included: the index was being emptied, and that was cut short"

    def as_json(self) -> dict[str, Any]:
        return {"finishes_reset": True}

    def apply(self, progress: Progress | None = None) -> Outcome:
        with (
            progress_of_steps(("reset.clear",), RESET_CHUNK, 0, progress),
            opened_index(self.url, read_only=False) as seen,
        ):
            seen.index.checkpoints.clear_checkpoints()  # opening the index has removed the results
        return Outcome(["removed all that was left"])


def plan_clear(url: str, *, with_results: bool) -> ClearIndexPlan | FinishResetPlan:
    """The plan to clear the index at `url`."""
    try:
        with opened_index(url, read_only=True) as seen:
            return _planned(seen, url, with_results=with_results)
    except Unavailable as error:
        if error.code != UNFINISHED:
            raise
        return FinishResetPlan(url, error.about or "")


def _planned(seen: OpenedIndex, url: str, *, with_results: bool) -> ClearIndexPlan:
    results = sum(1 for _ in islice(seen.index.results.scan(), COUNTED + 1)) if with_results else None
    return ClearIndexPlan(url, observe_index(seen), seen.has_config_hash, results)


def _is_on_disk(address: str) -> bool:
    return address.startswith(("sqlite://", "rocksdb://"))
