"""The events of a running pipeline, and their text as a picture, as a log line and as JSON. All pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.cli.output import Cell, Output, Style
from holdfast.pipeline.epoch_log import refused_in_words, sinks_in_words
from holdfast.spark import EpochReport, Notice
from holdfast.status import format

RECENT = 8
STEPS = {
    "stage": ("sink.stage",),
    "capture": ("epoch.capture",),
    "decide": ("epoch.decide",),
    "commit": ("sink.commit", "epoch.settle"),
}
"""The columns of a picture, and the steps whose seconds each column adds up."""

DOING = {
    "sink.prepare": "preparing the sinks",
    "sink.recover": "asking the sinks",
    "workdir.fill": "rebuilding the workdir",
    "sink.stage": "staging",
    "epoch.capture": "capturing",
    "epoch.decide": "deciding",
    "sink.commit": "committing",
    "epoch.settle": "committing",
}
"""The steps that the picture names while they run."""

HEADER = ("EPOCH", "ROWS", "ROWS/S", "SECONDS", "STAGE", "CAPTURE", "DECIDE", "COMMIT", "OTHER", "WATERMARK", "SIZE")
_SPARE = (9, 8, 5, 6, 4, 7)
"""Columns to leave out on a narrow terminal, in this order."""


class Followed:
    """One running pipeline, as its events describe it."""

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.began_ms = now_ms
        self.last_ms: int | None = None
        self.recent: deque[EpochReport] = deque(maxlen=RECENT)
        self.epochs = 0
        self.rows = 0
        self.refused: Counter[str] = Counter()
        self.doing: str | None = None
        """The step that is running, in words."""

    def take(self, report: EpochReport, now_ms: int) -> None:
        """Add one epoch."""
        self.last_ms = now_ms
        self.recent.appendleft(report)
        self.epochs += 1
        self.rows += report.rows
        self.refused.update(report.refused)

    def draw(self, output: Output, now_ms: int, outcome: Cell | None = None) -> None:
        """Draw the whole picture. After the end, `outcome` replaces the current activity."""
        output.line()
        output.line([Cell(self.name, "strong"), "  ", outcome or self._activity(now_ms)])
        if not self.recent:
            return
        last = self.recent[0]
        took = format.age(self.began_ms, now_ms).removesuffix(" ago")
        total = f"{format.count(self.rows, 'row')} in {format.count(self.epochs, 'epoch')}, {took}"
        lineage = f", lineage {last.lineage}" if last.lineage else ""
        for label, text in (
            ("epoch", f"{last.epoch}{lineage}, checkpoint {last.checkpoint_id}, {format.size(last.checkpoint_bytes)}"),
            ("total", total),
            ("refused", f"{refused_in_words(self.refused)}, see the dead letters" if self.refused else ""),
            ("watermark", format.watermark(last.watermark, now_ms) if last.watermark is not None else ""),
            ("lag", ", ".join(f"{name} {behind}" for name, behind in sorted(last.lag.items()))),
        ):
            if text:
                output.line([Cell(f"  {label:<11}", "faint"), text], wrap=True)
        output.line([Cell(f"  {'sinks':<11}", "faint"), *_sinks(last.sinks)])
        output.line()
        rows = [["  " + HEADER[0], *HEADER[1:]], *(_row(report) for report in self.recent)]
        if all(report.watermark is None for report in self.recent):
            rows = [[*row[:-2], row[-1]] for row in rows]
        columns = len(rows[0])
        spare = [n for n in _SPARE if n < columns - 1]
        output.table(rows[0], rows[1:], right=range(columns), spare=spare)

    def _activity(self, now_ms: int) -> Cell:
        if self.doing:
            return Cell(self.doing, "good")
        if self.last_ms is None:
            return Cell("starting", "doubtful")
        return Cell(f"running, last epoch {format.age(self.last_ms, now_ms)}", "good")


def step_seconds(report: EpochReport) -> dict[str, float]:
    """The seconds that an epoch spent in each column's steps; `other` is Spark's planning, logs and waiting."""
    spent = {name: sum(report.steps.get(step, 0.0) for step in steps) for name, steps in STEPS.items()}
    return {**spent, "other": max(report.seconds - sum(spent.values()), 0.0)}


def epoch_line(report: EpochReport, now_ms: int) -> str:
    """One epoch as a log line."""
    rate = f", {_rate(report.rows_per_second)}/s" if report.rows else ""
    again = ", run again" if report.is_replay else ""
    spent = ", ".join(f"{name} {_seconds(seconds)}" for name, seconds in step_seconds(report).items())
    parts = [
        f"epoch {report.epoch}",
        format.count(report.rows, "row") + rate + again,
        refused_in_words(report.refused),
        f"{_seconds(report.seconds)} s ({spent})",
        f"watermark {format.moment(report.watermark)}" if report.watermark is not None else "",
        "lag " + ", ".join(f"{name} {behind}" for name, behind in sorted(report.lag.items())) if report.lag else "",
        sinks_in_words(report.sinks),
        f"checkpoint {report.checkpoint_id}, {format.size(report.checkpoint_bytes)}",
    ]
    return stamped(report.pipeline, "  ".join(part for part in parts if part), now_ms)


def notice_line(notice: Notice, now_ms: int) -> str:
    """One notice as a log line."""
    level = "" if notice.level == "info" else f"{notice.level}: "
    return stamped(notice.pipeline, level + notice.text, now_ms)


def stamped(pipeline: str, text: str, now_ms: int) -> str:
    """A log line: time, pipeline, text."""
    return f"{format.moment(now_ms)}  {pipeline}  {text}"


def epoch_json(report: EpochReport) -> dict[str, Any]:
    """Everything about one epoch, exactly."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    return found | {"step_seconds": step_seconds(report)}


def _row(report: EpochReport) -> list[str]:
    spent = step_seconds(report)
    return [
        f"{report.epoch}{' again' if report.is_replay else ''}",
        format.number(report.rows),
        _rate(report.rows_per_second),
        _seconds(report.seconds),
        *(_seconds(spent[name]) for name in (*STEPS, "other")),
        format.moment(report.watermark) if report.watermark is not None else "-",
        format.size(report.checkpoint_bytes),
    ]


def _sinks(sinks: Mapping[str, str]) -> list[str | Cell]:
    pieces: list[str | Cell] = []
    for name, status in sorted(sinks.items()):
        style: Style = "good" if status == "Committed" else "bad" if status.startswith("Failed") else "doubtful"
        pieces += [", " if pieces else "", f"{name} ", Cell(status[:1].lower() + status[1:], style)]
    return pieces or ["none"]


def _rate(per_second: float) -> str:
    return f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:,.1f}"
