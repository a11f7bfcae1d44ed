"""Triggers as people write them: taken, or refused in words before the query starts."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import Invalid
from holdfast.pipeline.trigger import read_trigger


@pytest.mark.parametrize(
    ("trigger", "keywords", "expected"),
    [
        (None, {}, {}),
        ({}, {}, {}),
        ("5 seconds", {}, {"processingTime": "5 seconds"}),
        ("1 minute 30 seconds", {}, {"processingTime": "1 minute 30 seconds"}),
        ({"processingTime": "500 milliseconds"}, {}, {"processingTime": "500 milliseconds"}),
        ("interval 1 hour", {}, {"processingTime": "1 hour"}),
        ({"availableNow": True}, {}, {"availableNow": True}),
        (None, {"availableNow": True}, {"availableNow": True}),
        (None, {"processingTime": "5 seconds"}, {"processingTime": "5 seconds"}),
        (None, {"once": True}, {"once": True}),
    ],
)
def test_what_spark_is_given(trigger: Any, keywords: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read_trigger(trigger, keywords) == expected


@pytest.mark.parametrize(
    ("trigger", "keywords", "why"),
    [
        ("soon", {}, "'soon' is not a length of time"),
        (5, {}, "5 is no trigger"),
        ("2 months", {}, "'2 months' is not a length of time"),
        ({"processingTime": 5}, {}, "5 is not a length of time"),
        ({"continuous": "1 second"}, {}, "'continuous' is no trigger that a pipeline can have"),
        (None, {"processing_time": "1 second"}, "'processing_time' is no trigger"),
        ({"availableNow": False}, {}, "availableNow=False is not True"),
        ("5 seconds", {"availableNow": True}, "availableNow and processingTime cannot be combined"),
    ],
)
def test_what_is_refused(trigger: Any, keywords: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        read_trigger(trigger, keywords)
    assert caught.value.code == "pipeline.trigger"
    assert 'trigger="5 seconds"' in str(caught.value.next_step)
