"""Plans to empty an index, without the command line: what they show, and what `apply` makes of them."""

from __future__ import annotations

import pytest
from plan_texts import text

import holdfast
from holdfast.errors import Conflict
from holdfast.operations import clear_index
from holdfast.operations.clear_index import plan_clear


@pytest.fixture
def index(tmp_path) -> str:
    address = f"sqlite:///{tmp_path}/turnover.db"
    with holdfast.open_index(address) as made, made.session():
        made.results.put(b"a", b"1")
        made.results.put(b"b", b"2")
        made.checkpoints.stage_checkpoint("orders", 42)
    return address


@pytest.mark.parametrize("with_results", [True, False])
def test_clearing_an_index(index, with_results):
    plan = plan_clear(index, with_results=with_results)
    assert plan.as_json() == {
        "checkpoints": ["orders"],
        "gaps": 0,
        "config_hash": None,
        "results": 2 if with_results else None,
        "has_more_results": False,
        "finishes_reset": False,
    }
    assert ("2 results" in text(plan)) is with_results
    assert ("results stay" in text(plan)) is not with_results
    plan.apply()
    with holdfast.open_index(index) as left:
        assert len(list(left.results.scan())) == (0 if with_results else 2)
    after = plan_clear(index, with_results=with_results)
    assert (after.is_empty, text(after)) == (True, "nothing to remove")


def test_an_index_that_changed_while_the_plan_waited_is_left_alone(index):
    plan = plan_clear(index, with_results=True)
    with holdfast.open_index(index) as changed, changed.session():
        changed.results.put(b"c", b"3")
    with pytest.raises(Conflict) as raised:
        plan.apply()
    assert raised.value.code == "index.changed"
    with holdfast.open_index(index) as left:
        assert len(list(left.results.scan())) == 3


def test_many_results_are_not_all_counted(index, monkeypatch):
    monkeypatch.setattr(clear_index, "COUNTED", 1)
    plan = plan_clear(index, with_results=True)
    assert (plan.amount, plan.as_json()["results"], plan.as_json()["has_more_results"]) == (0, 1, True)
