"""The frame of an epoch is held while its sinks read it, and let go whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline.frame_cache import FrameCache
from holdfast.storage.files.directory import LocalDirectory


class Frame:
    """A frame that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def persist(self) -> Frame:
        self.asked.append("persist")
        return self

    def unpersist(self) -> None:
        self.asked.append("unpersist")


def cache(spool: Path, *, is_read_once: bool = False) -> FrameCache:
    return FrameCache(is_read_once=is_read_once, may_differ=False, directory=LocalDirectory(spool), name=".spool")


def test_a_frame_that_one_sink_reads_is_not_persisted(tmp_path: Path) -> None:
    frame: Any = Frame()
    with cache(tmp_path, is_read_once=True).hold(frame) as held:
        assert held is frame
    assert frame.asked == []


def test_a_frame_that_several_sinks_read_is_let_go_at_the_end(tmp_path: Path) -> None:
    frame: Any = Frame()
    with cache(tmp_path).hold(frame):
        assert frame.asked == ["persist"]
    assert frame.asked == ["persist", "unpersist"]


def test_a_frame_is_let_go_when_a_sink_fails(tmp_path: Path) -> None:
    frame: Any = Frame()
    with pytest.raises(ZeroDivisionError), cache(tmp_path).hold(frame):
        raise ZeroDivisionError
    assert frame.asked == ["persist", "unpersist"]
