"""Plans for projections, without the command line: what they show, and what `apply` makes of them."""

from __future__ import annotations

import pytest
from plan_texts import text

from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.operations.projections import plan_rebuild, plan_reset, plan_retry
from holdfast.projections import NewEvent, OnError, Projection, ProjectionRunner, open_projections


class Turnover(Projection):
    name = "turnover"

    def handle(self, event, view):
        if event.type == "poison":
            raise ValueError("cannot be read")
        view.put(b"%d" % event.position, b"1")


class Corrected(Turnover):
    def handle(self, event, view):
        view.put(b"%d" % event.position, b"2")


class Doubled(Corrected):
    version = 2


@pytest.fixture
def shop(tmp_path) -> str:
    address = f"sqlite:///{tmp_path}/shop.db"
    with open_projections(address) as store:
        store.append("order-1", [NewEvent(kind) for kind in ("paid", "poison", "paid")])
        ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Turnover())
    return address


def test_emptying_a_projection(shop):
    plan = plan_reset(shop, "turnover")
    assert (plan.as_json()["keys"], plan.as_json()["dead_letters"], plan.as_json()["position"]) == (2, 1, 3)
    assert "works on it: nobody" in text(plan)
    assert plan.apply().lines == ["emptied turnover"]
    assert plan_reset(shop, "turnover").as_json()["keys"] == 0
    with pytest.raises(NotFound):
        plan_reset(shop, "other")


def test_a_read_model_that_was_replaced_while_the_plan_waited_is_left_alone(shop):
    plan = plan_reset(shop, "turnover")
    plan_rebuild(shop, Doubled()).apply()
    with pytest.raises(Conflict) as raised:
        plan.apply()
    assert raised.value.code == "projection.changed"
    assert plan_reset(shop, "turnover").as_json()["keys"] == 3


def test_rebuilding_a_projection(shop):
    plan = plan_rebuild(shop, Doubled())
    assert (plan.amount, plan.as_json()["version"], plan.as_json()["new_version"]) == (3, 1, 2)
    done: list[tuple[int, int]] = []
    outcome = plan.apply(lambda amount, total: done.append((amount, total)))
    assert outcome.result == {"position": 3, "handled": 3, "dead_letters": 0}
    assert done[-1] == (3, 3)


def test_a_rebuild_whose_handler_fails_says_that_nothing_was_switched(shop):
    with pytest.raises(Invalid) as raised:
        plan_rebuild(shop, Turnover()).apply()
    assert "nothing was switched" in (raised.value.unchanged or "")
    assert plan_reset(shop, "turnover").as_json()["keys"] == 2


def test_an_interrupted_rebuild_notes_what_it_left(shop):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        plan_rebuild(shop, Doubled()).apply(interrupt)
    assert any("nothing was switched" in note for note in raised.value.__notes__)


def test_retrying_dead_letters(shop):
    failing = plan_retry(shop, Turnover()).apply()
    assert (failing.result, failing.exit_code) == ({"handled": 0, "left": [2]}, Invalid.exit_code)
    assert failing.problems == ["still failing: 1 event, at position 2"]
    plan = plan_retry(shop, Corrected())
    assert text(plan) == "to handle again: 1 event, with version 1"
    assert plan.apply().result == {"handled": 1, "left": []}
    assert plan_retry(shop, Corrected()).is_empty
    with pytest.raises(Invalid):
        plan_retry(shop, Doubled())
