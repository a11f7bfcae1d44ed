"""`projections reset`: a read model emptied, the events kept."""

from __future__ import annotations

import pytest
from cli_running import at_terminal
from shop_store import LIVE, Turnover, contents, damage, fill, looking, table, unfinished_rebuild, url_of, view

from holdfast.base import steps
from holdfast.errors import Unavailable
from holdfast.operations import projections as operations
from holdfast.projections import (
    Event,
    GlobalProjectionCheckpoint,
    OnError,
    Projection,
    ProjectionRunner,
    View,
    open_projections,
)


class Tables(Projection):
    name = "tables"

    def handle(self, event: Event, view: View) -> None:
        view.execute(f"CREATE TABLE IF NOT EXISTS {view.table('orders')} (n)")


def test_nothing_goes_on_a_dry_run_nor_unasked(run, path):
    unfinished_rebuild(path)
    before = contents(path)
    dry = run("projections", "reset", path, "turnover", "--dry-run")
    assert dry.code == 0
    assert table(dry.out) == [
        ["REMOVE", "WHICH"],
        ["the read model", "3 keys, up to position 6"],
        ["3 cursors", "all"],
        ["2 dead letters", "their events are read again like the others"],
        ["an unfinished rebuild", "of version 2, at position 3"],
        ["to read again: 7 events, when it is next caught up"],
        ["works on it: nobody"],
    ]
    assert run("projections", "reset", path, "turnover", "--dry-run", "--yes").code == 0
    unasked = run("projections", "reset", path, "turnover")
    assert (unasked.code, unasked.out) == (2, dry.out)
    assert "--yes" in unasked.err
    assert run("projections", "reset", path, "turnover", "--json").data["applied"] is False
    assert contents(path) == before


def test_empties_a_projection_and_keeps_the_events(run, path):
    ran = run("projections", "reset", path, "turnover", "--yes")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "emptied turnover"
    with looking(path) as store:
        assert store.position == 7
        assert dict(store.view("turnover").scan()) == {}
        assert store.load_projection_checkpoint("turnover") == GlobalProjectionCheckpoint()
        assert store.dead_letters("turnover") == []
    assert table(run("projections", path).out)[-1][1:6] == ["none", "0", "7", "0", "0"]


def test_reset_as_json(run, path):
    ran = run("projections", "--json", "reset", path, "turnover", "--yes")
    assert ran.code == 0
    assert ran.data == {
        "address": url_of(path),
        "projection": "turnover",
        "dry_run": False,
        "applied": True,
        "plan": {
            "version": 1,
            "position": 6,
            "keys": 3,
            "has_more_keys": False,
            "tables": 0,
            "cursors": 3,
            "dead_letters": 2,
            "rebuild": None,
            "events_to_read": 7,
            "lease": None,
        },
    }


def test_many_keys_are_not_all_counted_and_tables_are(run, path, monkeypatch):
    monkeypatch.setattr(operations, "COUNTED", 1)
    assert "more than 1 keys" in run("projections", "reset", path, "turnover", "--dry-run").out
    plan = run("projections", "reset", path, "turnover", "--json").data["plan"]
    assert (plan["keys"], plan["has_more_keys"]) == (1, True)
    with open_projections(url_of(path)) as store:
        ProjectionRunner(store).catch_up_persistent(Tables())
    assert "0 keys and 1 table, up to position 7" in run("projections", "reset", path, "tables", "--yes").out
    assert run("projections", "reset", path, "tables", "--json").data["plan"]["tables"] == 0


def test_reset_asks_at_a_terminal(path):
    before = contents(path)
    for typed in ("\n", "n\n", "\x03"):
        ran = at_terminal("projections", "reset", path, "turnover", keys=typed, after="[y/N]")
        assert ran.code == 130, ran.out
        assert contents(path) == before
    ran = at_terminal("projections", "reset", path, "turnover", keys="y\n", after="[y/N]", NO_COLOR="1")
    assert ran.code == 0, ran.out
    assert "emptied turnover" in ran.out
    assert view(path) == {}


def test_a_worker_that_goes_on_meanwhile_is_fine_and_another_read_model_is_not(path):
    def go_on() -> None:
        with open_projections(url_of(path)) as store:
            ProjectionRunner(store).catch_up_persistent(Turnover())

    def begin_anew() -> None:
        with open_projections(url_of(path)) as store:
            ProjectionRunner(store).reset("turnover")
            ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Turnover())

    words = ["projections", "reset", path, "turnover"]
    ran = at_terminal(*words, keys="y\n", after="[y/N]", before_typing=begin_anew)
    assert ran.code == 4, ran.out
    assert "by another process since this was shown" in ran.out
    assert view(path) == {**LIVE, b"order-2": b"2"}
    assert at_terminal(*words, keys="y\n", after="[y/N]", before_typing=go_on).code == 0
    assert view(path) == {}


def test_reset_is_the_way_out_of_a_damaged_cursor(run, path):
    damage(path, "cursors", b"turnover/order-1")
    assert run("projections", path).code == 6
    assert run("projections", "reset", path, "turnover", "--yes").code == 0
    assert run("projections", path).code == 0


@pytest.mark.parametrize("key", [b"p/turnover", b"b/turnover"])
def test_nobody_can_tell_where_a_damaged_standing_is(run, path, shop, key):
    unfinished_rebuild(path)
    damage(path, "meta", key)
    before = contents(path)
    for verb in (["reset"], ["rebuild", "--projection", f"{shop}:Turnover"]):
        ran = run("projections", *verb, path, "turnover", "--yes", "--json")
        assert (ran.code, ran.out, ran.error["code"]) == (6, "", "store.record")
    assert contents(path) == before


def test_a_reset_that_cannot_be_committed_changes_nothing(run, path):
    def fail(name: str, phase: str, _: float) -> None:
        if (name, phase) == ("projection.reset", "begin"):
            raise Unavailable("The disk is on fire.", code="x.y")

    stop = steps.observe(fail)
    try:
        assert run("projections", "reset", path, "turnover", "--yes").code == 8
    finally:
        stop()
    assert view(path) == LIVE


def test_debug_logs_the_steps(run, path):
    assert "projection.reset" in run("projections", "reset", path, "turnover", "--yes", "--debug").err


def test_on_rocksdb_a_process_that_has_the_store_open_is_not_fenced_but_refuses(run, tmp_path):
    url = f"rocksdb:///{tmp_path}/rocks"
    with open_projections(url) as store:
        fill(store)
        plan = run("projections", "reset", url, "turnover", "--dry-run")
        assert plan.code == 0
        assert "note: a process" not in plan.err
        ran = run("projections", "reset", url, "turnover", "--yes", "--json")
        assert (ran.code, ran.error["code"]) == (4, "store.in-use")
        assert store.dead_letters("turnover") != []
