"""Triggers as people write them, checked before the query starts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.base.durations import read_duration
from holdfast.errors import Invalid

NAMES = ("availableNow", "once", "processingTime")
"""Spark's triggers for queries that run in epochs. `continuous` and `realTime` have none."""

_INTERVAL = re.compile(r"\A\s*interval\s+", re.IGNORECASE)
"""Spark takes this word before a length of time."""


def read_trigger(trigger: str | Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of Spark's `writeStream.trigger`; empty for one epoch after the other.

    A text is a length of time, "5 seconds" or "5s"; a mapping and keywords are what Spark's `trigger` takes. Spark gets
    units spelled out, because it reads no others. `Invalid` for anything else.
    """
    if isinstance(trigger, str):
        given: dict[str, Any] = {"processingTime": trigger}
    elif trigger is None or isinstance(trigger, Mapping):
        given = dict(trigger or {})
    else:
        raise _refused(f"{trigger!r} is no trigger")
    given |= keywords
    unknown = sorted(map(str, given.keys() - set(NAMES)))
    if unknown:
        raise _refused(f"{unknown[0]!r} is no trigger that a pipeline can have")
    if len(given) > 1:
        raise _refused(f"{' and '.join(sorted(given))} cannot be combined")
    for name, value in given.items():
        if name == "processingTime":
            given[name] = _read_interval(value)
        elif value is not True:
            raise _refused(f"{name}={value!r} is not True")
    return given


def _read_interval(value: Any) -> str:
    try:
        return read_duration(_INTERVAL.sub("", value, count=1) if isinstance(value, str) else value).words
    except ValueError as error:
        raise _refused(str(error)) from None


def _refused(why: str) -> Invalid:
    return Invalid(
        f"{why}.",
        code="pipeline.trigger",
        about="trigger",
        unchanged="everything",
        next_step='use trigger="5 seconds", trigger={"availableNow": True}, or none for one epoch after the other',
    )
