"""Which updates of a saved manifest are a step forward."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoints.manifest import SinkFailed
from holdfast.checkpoints.save import merge_statuses
from holdfast.errors import Invalid
from holdfast.testing.conformance.checkpoints.subject import manifest

FAILED = {"Failed": "why"}


def stated(**statuses: Any) -> Any:
    return manifest(
        1,
        sink_commit_statuses={
            name: SinkFailed(status["Failed"]) if isinstance(status, dict) else status
            for name, status in statuses.items()
        },
    )


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ({}, {}, True),
        ({}, {"a": "Pending"}, True),
        ({"a": "Pending"}, {"a": "Pending"}, True),
        ({"a": "Pending"}, {"a": "Committed"}, True),
        ({"a": "Pending"}, {"a": FAILED}, True),
        ({"a": FAILED}, {"a": "Committed"}, True),
        ({"a": "Pending"}, {"a": "Pending", "b": "Committed"}, True),
        ({"a": "Committed"}, {"a": "Pending"}, False),
        ({"a": "Committed"}, {"a": FAILED}, False),
        ({"a": FAILED}, {"a": "Pending"}, False),
        ({"a": "Pending"}, {}, False),
        ({"a": "Committed", "b": "Pending"}, {"a": "Pending", "b": "Committed"}, False),
    ],
)
def test_statuses_move_forward(before: dict[str, Any], after: dict[str, Any], allowed: bool) -> None:
    stored, wanted = stated(**before), stated(**after)
    if allowed:
        assert merge_statuses(stored, wanted, about="x").sink_commit_statuses == wanted.sink_commit_statuses
        return
    with pytest.raises(Invalid, match="sink 'a'"):
        merge_statuses(stored, wanted, about="x")
