"""The page "The way of an epoch" names the files that an epoch and a restart pass, and no others."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from revenue_place import ONCE

import holdfast
from holdfast.errors import Unavailable
from holdfast.pipeline.epoch import EpochCoordinator
from holdfast.pipeline.query_run import QueryRun
from holdfast.sinks import Delivery, Descriptor, FileSink
from holdfast.spark import Pipeline
from pipeline.shop import Shop, revenue, rows

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from pyspark.sql import SparkSession

SOURCES = Path(holdfast.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "design" / "0014-the-way-of-an-epoch.md"
MOST = 15
"""Files that a walk may pass, its leaves not counted."""


# The page


class Walk(msgspec.Struct):
    """One walk of the page."""

    said: dict[str, int]
    """The numbers in its headings: of files, and of leaves."""
    numbered: list[str] = []
    visited: set[str] = set()
    """Files of its lines, also of those that are marked as leaves."""
    leaves: set[str] = set()
    names: list[tuple[str, str]] = []
    """Files, and functions of them."""


_LINE = re.compile(r"(?P<mark>[ \d*]{2}) +(?P<file>[a-z_/]+\.py) +(?P<names>\w[\w.]*(?:, \w[\w.]*)*)(?:  .*)?")
_ROW = re.compile(r"\| `(?P<folder>[\w/]+)` \| (?P<files>.*) \|")
_LEAF = re.compile(r"`(?P<file>[\w/]+\.py)`(?: \((?P<names>[^)]*)\))?")


def walk(title: str) -> Walk:
    """The walk below the heading that begins with `title`."""
    found = re.search(rf"^## {title}: (\d+) files.*?\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    said, text = re.search(r"^(\d+) leaves", found[2], re.MULTILINE), found[2]
    assert said is not None
    walk = Walk({"files": int(found[1]), "leaves": int(said[1])})
    for line in text.split("```")[1].splitlines():
        if step := _LINE.fullmatch(line):
            walk.visited.add(step["file"])
            walk.names += [(step["file"], name) for name in step["names"].split(", ")]
            if step["mark"].strip().isdigit():
                assert int(step["mark"]) == len(walk.numbered) + 1
                walk.numbered.append(step["file"])
        else:
            assert ".py" not in line, line
    for row in _ROW.finditer(text):
        for leaf in _LEAF.finditer(row["files"]):
            file = f"{row['folder']}/{leaf['file']}"
            walk.leaves.add(file)
            walk.names += [(file, name) for name in re.findall(r"`(\w+)`", leaf["names"] or "")]
    return walk


WALKS = {title: walk(title) for title in ("One epoch", "One restart")}


@pytest.mark.parametrize("title", WALKS)
def test_every_file_and_function_that_the_page_names_is_there(title: str) -> None:
    walk = WALKS[title]
    for file in walk.visited | walk.leaves:
        assert (SOURCES / file).is_file(), file
    for file, name in walk.names:
        *owner, function = name.split(".")
        text = (SOURCES / file).read_text()
        assert re.search(rf"^ *(?:def|class) {function}\b", text, re.MULTILINE), (file, name)
        assert not owner or re.search(rf"^class {owner[0]}\b", text, re.MULTILINE), (file, name)


@pytest.mark.parametrize("title", WALKS)
def test_the_page_counts_right_and_no_walk_is_too_long(title: str) -> None:
    walk = WALKS[title]
    assert walk.said == {"files": len(walk.numbered), "leaves": len(walk.leaves)}
    assert len(walk.numbered) <= MOST
    assert len(set(walk.numbered)) == len(walk.numbered)
    assert not walk.leaves & set(walk.numbered)
    assert walk.visited <= walk.leaves | set(walk.numbered)


# What runs


class Trace:
    """Notes the files of Holdfast's of which a function is called, in this thread and in those that it starts."""

    def __init__(self, *, without: Callable[..., Any]) -> None:
        """Calls of `without`, and what these call, do not count."""
        self.files: dict[str, str] = {}
        """By file, the first function that was called."""
        self._without: CodeType = without.__code__
        self._apart = threading.local()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            self.off()

    def off(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code, apart = frame.f_code, getattr(self._apart, "frame", None)
        if event == "return" and frame is apart:
            self._apart.frame = None
        elif event == "call" and apart is None:
            if code is self._without:
                self._apart.frame = frame
            elif code.co_filename.startswith(f"{SOURCES}/") and code.co_flags & inspect.CO_OPTIMIZED:  # no import
                self.files.setdefault(code.co_filename[len(str(SOURCES)) + 1 :], code.co_qualname)


class Unready(FileSink):
    """The driver "dies" before this sink commits its third epoch: the commit fails, and nothing starts again."""

    is_ready = False

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        if delivery.epoch == 3 and not self.is_ready:
            raise Unavailable("not yet", code="test.not-yet")
        super().commit(descriptor, delivery)


def test_an_epoch_and_a_restart_pass_the_files_of_the_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path / "orders")
    shop.sell(3)
    epoch, restart = Trace(without=QueryRun.report), Trace(without=QueryRun.run_batch)
    run_batch, start_query = QueryRun.run_batch, QueryRun.start

    def traced_batch(run: QueryRun, frame: Any, batch_id: int) -> None:
        with epoch.on() if batch_id == 1 else contextlib.nullcontext():
            run_batch(run, frame, batch_id)

    def traced_start(run: QueryRun) -> None:
        start_query(run)
        restart.off()

    def run_to_the_end(trace: contextlib.AbstractContextManager[None]) -> None:
        pipeline = Pipeline("revenue", checkpoints=tmp_path / "store")
        pipeline.sink("files", FileSink(tmp_path / "files"))
        pipeline.sink("more", Unready(tmp_path / "more"))
        frame = revenue(pipeline.source("orders", shop.orders(spark)))
        with trace:
            pipeline.run(frame, output_mode="update", trigger=ONCE, restarts=0)

    with monkeypatch.context() as patch:
        patch.setattr(QueryRun, "run_batch", traced_batch)
        patch.setattr(EpochCoordinator, "leave_stamps", lambda *_, **__: None)  # a driver that dies leaves no stamps
        with pytest.raises(Unavailable):
            run_to_the_end(contextlib.nullcontext())
    state = max((tmp_path / "store" / "workdir" / "state").rglob("2.delta"))
    state.write_bytes(state.read_bytes()[:-1])
    monkeypatch.setattr(Unready, "is_ready", True)
    monkeypatch.setattr(QueryRun, "start", traced_start)
    run_to_the_end(restart.on())
    assert rows(tmp_path / "files", "epoch", "shop", "revenue") == rows(tmp_path / "more", "epoch", "shop", "revenue")
    for title, trace in (("One epoch", epoch), ("One restart", restart)):
        page = WALKS[title].visited | WALKS[title].leaves
        assert sorted(trace.files.keys() - page) == [], "files that the page does not name"
        assert sorted(page - trace.files.keys()) == [], "files that are not passed"
