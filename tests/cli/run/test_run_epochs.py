"""What `holdfast run` says of epochs: lines in a pipe, a picture at a terminal."""

from __future__ import annotations

import pytest

from holdfast.cli.run.epochs import Followed, epoch_line, notice_line, step_seconds
from holdfast.cli.run.screens import painted
from holdfast.pipeline.epoch_log import sinks_in_words
from holdfast.spark import Notice
from pipeline_stores import NOW, report


def test_an_epoch_in_a_line():
    assert epoch_line(report(), NOW + 60_000) == (
        "2026-01-01T00:02:19Z  orders  epoch 7  1,200 rows, 812/s  1.50 s (stage 0.70, capture 0.05, decide 0.01, "
        "commit 0.24, other 0.50)  watermark 2026-01-01T00:01:19Z  lag orders 3 files  sinks committed  "
        "checkpoint 7, 3.5 KiB"
    )


def test_an_epoch_with_nothing_in_it_says_nothing_more():
    line = epoch_line(report(rows=0, watermark=None, lag={}, sinks={}, steps={}, is_replay=True), NOW)
    assert line == (
        "2026-01-01T00:01:19Z  orders  epoch 7  0 rows, run again  1.50 s (stage 0.00, capture 0.00, decide 0.00, "
        "commit 0.00, other 1.50)  checkpoint 7, 3.5 KiB"
    )


def test_sinks_in_words():
    assert sinks_in_words({"a": "Committed", "b": "Failed: no table"}) == "sinks a committed, b failed: no table"
    assert sinks_in_words({}) == ""


def test_steps_never_add_up_to_less_than_nothing():
    assert step_seconds(report(seconds=0.1))["other"] == 0.0


def test_a_notice_is_a_line_that_names_its_pipeline():
    assert notice_line(Notice("orders", "hello"), NOW) == "2026-01-01T00:01:19Z  orders  hello"
    assert "orders  warning: hello" in notice_line(Notice("orders", "hello", "warning"), NOW)


def picture(followed: Followed, columns: int, **variables: str) -> list[str]:
    text = painted(lambda output: followed.draw(output, NOW + 3000), {"NO_COLOR": "1"} | variables, columns)
    return text.splitlines()


def test_the_picture():
    followed = Followed("orders", NOW - 60_000)
    for epoch in range(1, 12):
        followed.take(report(epoch, is_replay=epoch == 10), NOW)
    assert picture(followed, 140) == [
        "",
        "orders  running, last epoch 3 s ago",
        "  epoch      11, checkpoint 11, 3.5 KiB",
        "  total      13,200 rows in 11 epochs, 1 min",
        "  watermark  2026-01-01T00:01:19Z  (3 s ago)",
        "  lag        orders 3 files",
        "  sinks      lake committed, pg committed",
        "",
        "   EPOCH   ROWS  ROWS/S  SECONDS  STAGE  CAPTURE  DECIDE  COMMIT  OTHER             WATERMARK     SIZE",
        "      11  1,200     812     1.50   0.70     0.05    0.01    0.24   0.50  2026-01-01T00:01:19Z  3.5 KiB",
        "10 again  1,200     812     1.50   0.70     0.05    0.01    0.24   0.50  2026-01-01T00:01:19Z  3.5 KiB",
        *(
            f"{n:>8}  1,200     812     1.50   0.70     0.05    0.01    0.24   0.50  2026-01-01T00:01:19Z  3.5 KiB"
            for n in range(9, 3, -1)
        ),
    ]


@pytest.mark.parametrize("columns", [50, 60, 80, 100])
def test_the_picture_fits(columns):
    followed = Followed("orders", NOW)
    followed.take(report(), NOW)
    assert max(len(line) for line in picture(followed, columns)) <= columns


def test_the_picture_has_colour_where_it_is_wanted():
    followed = Followed("orders", NOW)
    followed.take(report(sinks={"lake": "Failed: \x1b[31mno"}, watermark=None), NOW)
    assert "\x1b[" in "".join(picture(followed, 100, NO_COLOR=""))
    plain = "\n".join(picture(followed, 100))
    assert "\x1b" not in plain
    assert "failed: \\x1b[31mno" in plain
    assert "WATERMARK" not in plain
