"""One table of lengths of time, read alike wherever one is given: `keep`, `--older-than`, `trigger`."""

from __future__ import annotations

from typing import Any

import click
import pytest

from holdfast.base.durations import Duration, read_duration
from holdfast.checkpoints.retention import check_age
from holdfast.cli.options import LengthOfTime
from holdfast.errors import Invalid
from holdfast.pipeline.trigger import read_trigger

READ = [
    ("30s", 30, "30 seconds"),
    ("30 sec", 30, "30 seconds"),
    ("5 seconds", 5, "5 seconds"),
    ("1 second", 1, "1 second"),
    ("15m", 900, "15 minutes"),
    ("15min", 900, "15 minutes"),
    ("10 minutes", 600, "10 minutes"),
    ("12h", 43_200, "12 hours"),
    ("1 HOUR", 3600, "1 hour"),
    ("7d", 604_800, "7 days"),
    (" 7 days ", 604_800, "7 days"),
    ("2 weeks", 1_209_600, "2 weeks"),
    ("500 milliseconds", 0.5, "500 milliseconds"),
    ("20 microseconds", 0.00002, "20 microseconds"),
    ("1 minute 30 seconds", 90, "1 minute 30 seconds"),
    ("1h 30m", 5400, "1 hour 30 minutes"),
    ("007d", 604_800, "7 days"),
]
REFUSED = [
    *("", " ", "soon", "a week", "7", "d", "-1d", "1.5h", "2 months", "1 fortnight", "1M", "1h30m", "1h and 30m", "٣h"),
    *("9" * 40 + "d", "1h\0", "interval", "5 interval seconds", "5 seconds,", 7, 7.5, None, b"7d", True),
]


@pytest.mark.parametrize(("text", "seconds", "words"), READ)
def test_every_reader_reads_the_same(text: str, seconds: float, words: str) -> None:
    assert read_duration(text) == Duration(seconds, words)
    assert check_age(text, 3) == seconds
    assert LengthOfTime().convert(text, None, None) == seconds
    assert read_trigger(text, {}) == read_trigger(None, {"processingTime": text}) == {"processingTime": words}


@pytest.mark.parametrize("given", REFUSED)
def test_every_reader_refuses_the_same_in_the_same_words(given: Any) -> None:
    with pytest.raises(ValueError, match="is not a length of time") as refused:
        read_duration(given)
    words = str(refused.value)
    assert words.startswith(repr(given)[:30])
    if given is not None:  # which is the default of both
        with pytest.raises(Invalid) as of_store:
            check_age(given, 3)
        assert words in str(of_store.value)
        with pytest.raises(Invalid) as of_trigger:
            read_trigger(None, {"processingTime": given})
        assert words in str(of_trigger.value)
    if isinstance(given, str) and not given.isdecimal():  # at a command line a bare number is seconds
        with pytest.raises(click.BadParameter) as of_command:
            LengthOfTime().convert(given, None, None)
        assert words in of_command.value.message


def test_where_they_differ() -> None:
    assert LengthOfTime().convert("7000", None, None) == 7000
    assert LengthOfTime().convert("0s", None, None) == 0
    assert read_trigger("0 seconds", {}) == {"processingTime": "0 seconds"}
    assert read_trigger("interval 1 hour", {}) == {"processingTime": "1 hour"}
    with pytest.raises(Invalid, match="keep: it must be longer than nothing"):
        check_age("0d", 3)
