"""`sources clear`: letting sources start over."""

from __future__ import annotations

import re

import pytest
from cli_running import at_terminal
from source_index import contents, damage, held_by_another, keys, url_of

import holdfast
from holdfast.base import steps
from holdfast.errors import Unavailable
from holdfast.operations import clear_index


def test_nothing_goes_on_a_dry_run_nor_unasked(run, path):
    before = contents(path)
    dry = run("sources", "clear", path, "--results", "--dry-run")
    assert dry.code == 0
    assert re.split(r"\s{2,}|\n", dry.out.strip())[2:10] == [
        "3 checkpoints",
        "clicks, log, orders",
        "1 recorded gap",
        "log",
        "the configuration hash",
        "deadbeef12345678",
        "2 results",
        "all",
    ]
    assert run("sources", "clear", path, "--results", "--dry-run", "--yes").code == 0
    at_one = at_terminal("sources", "clear", path, "--dry-run")
    assert (at_one.code, "[y/N]" in at_one.out) == (0, False)
    unasked = run("sources", "clear", path, "--results")
    assert (unasked.code, unasked.out) == (2, dry.out)
    assert "--yes" in unasked.err
    assert run("sources", "clear", path, "--json").data["applied"] is False
    assert contents(path) == before


def test_clears_checkpoints_gaps_and_hash_and_keeps_results(run, path):
    ran = run("sources", "clear", path, "--yes")
    assert ran.code == 0
    assert "results stay" in ran.out
    assert ran.out.splitlines()[-1] == "removed 3 checkpoints, 1 recorded gap and the configuration hash"
    assert keys(path) == [b"format", b"a", b"b"]


def test_clears_results_as_well(run, path):
    ran = run("sources", "--json", "clear", path, "--results", "--yes")
    assert ran.code == 0
    assert ran.data == {
        "address": url_of(path),
        "dry_run": False,
        "applied": True,
        "plan": {
            "checkpoints": ["clicks", "log", "orders"],
            "gaps": 1,
            "config_hash": "deadbeef12345678",
            "results": 2,
            "has_more_results": False,
            "finishes_reset": False,
        },
    }
    assert keys(path) == [b"format"]
    again = run("sources", "clear", path, "--results")
    assert (again.code, again.out) == (0, "nothing to remove\n")


def test_results_alone_are_nothing_to_remove_unless_asked_for(run, path):
    assert run("sources", "clear", path, "--yes").code == 0
    assert run("sources", "clear", path).out == "nothing to remove\n"
    assert "removed 2 results" in run("sources", "clear", path, "--results", "--yes").out
    assert keys(path) == [b"format"]


def test_many_results_are_not_all_counted(run, path, monkeypatch):
    monkeypatch.setattr(clear_index, "COUNTED", 1)
    plan = run("sources", "clear", path, "--results", "--json").data["plan"]
    assert (plan["results"], plan["has_more_results"]) == (1, True)
    assert "and more than 1 results" in run("sources", "clear", path, "--results", "--yes").out
    assert keys(path) == [b"format"]


def test_asks_at_a_terminal(path):
    before = contents(path)
    for typed in ("\n", "n\n", "\x03"):
        ran = at_terminal("sources", "clear", path, keys=typed, after="[y/N]")
        assert ran.code == 130, ran.out
        assert contents(path) == before
    ran = at_terminal("sources", "clear", path, keys="y\n", after="[y/N]")
    assert ran.code == 0, ran.out
    assert "removed 3 checkpoints" in ran.out
    assert keys(path) == [b"format", b"a", b"b"]


def test_refuses_while_another_process_has_it_open(run, path):
    before = contents(path)
    with held_by_another(path) as child:
        for flags in ([], ["--results"]):
            ran = run("sources", "clear", path, "--yes", "--json", *flags)
            assert (ran.code, ran.out, ran.error["code"]) == (4, "", "index.in-use")
            assert str(child.pid) in ran.error["message"]
        assert run("sources", "clear", path, "--dry-run").code == 0
        assert contents(path) == before
    assert run("sources", "clear", path, "--yes").code == 0


@pytest.mark.parametrize("flags", [[], ["--results"]])
def test_what_changed_while_a_person_thought_is_not_removed(path, flags):
    def change():
        with holdfast.open_index(url_of(path)) as index, index.session():
            index.results.put(b"c", b"3")
            if not flags:
                index.checkpoints.stage_checkpoint("clicks", 42, b'{"logOffset":4}')

    ran = at_terminal("sources", "clear", path, *flags, keys="y\n", after="[y/N]", before_typing=change)
    assert ran.code == 4, ran.out
    assert "another process writes to it" in ran.out
    assert len(keys(path)) == 9
    assert b"s/clicks" in keys(path)


@pytest.mark.parametrize("key", [b"s/orders", b"hash", b"g/\0\0\0\0\0\0\0\1"])
@pytest.mark.parametrize("flags", [[], ["--results"]])
def test_clearing_is_the_way_out_of_damage(run, path, key, flags):
    damage(path, key)
    assert run("sources", path).code == 6
    ran = run("sources", "clear", path, "--yes", *flags)
    assert ran.code == 0, ran.err
    assert "3 checkpoints, 1 recorded gap" in ran.out
    assert ran.out.count("damaged") == (key == b"hash")
    assert run("sources", path).code == 0
    assert keys(path) == ([b"format"] if flags else [b"format", b"a", b"b"])


@pytest.mark.parametrize("at", ["reset.clear", "reset.finish"])
def test_one_that_was_cut_short_is_finished(run, path, at):
    def fail(name: str, phase: str, _: float) -> None:
        if (name, phase) == (at, "begin"):
            raise Unavailable("The disk is on fire.", code="x.y")

    stop = steps.observe(fail)
    try:
        assert run("sources", "clear", path, "--results", "--yes").code == 8
    finally:
        stop()
    assert b"reset" in keys(path)
    ran = run("sources", path, "--json")
    assert (ran.code, ran.error["code"]) == (8, "index.reset-unfinished")
    before = contents(path)
    assert run("sources", "clear", path, "--dry-run").code == 0
    unasked = run("sources", "clear", path, "--json")
    assert (unasked.code, unasked.data["applied"], unasked.data["plan"]) == (2, False, {"finishes_reset": True})
    assert contents(path) == before
    ran = run("sources", "clear", path, "--yes")
    assert ran.code == 0
    assert "cut short" in ran.out
    assert "removed all that was left" in ran.out
    assert keys(path) == [b"format"]


def test_debug_logs_the_steps(run, path):
    assert "index.clear" in run("sources", "clear", path, "--yes", "--debug").err
