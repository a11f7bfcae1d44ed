"""`projections`, and `reset`, `rebuild` and `dead-letters` below it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cli_running
import click
import pytest
from cli_running import at_terminal, in_child

from checkpoint_stores import tree
from holdfast.base import steps
from holdfast.cli.verbs import projections
from holdfast.errors import Fenced, Unavailable
from holdfast.operations import projections as operations
from holdfast.projections import (
    Event,
    GlobalProjectionCheckpoint,
    NewEvent,
    OnError,
    Projection,
    ProjectionRunner,
    ProjectionStore,
    View,
    keys,
    open_projections,
    worker_lease,
)
from holdfast.storage.kv import records

NASTY = "a\x1b[31mred\x1b]0;owned\x07\x9b2J\x7f [bold red]m[/] \u202eevil\u2066\u2028\n\ttail/%"
IMPATIENT = "import sys; from holdfast.cli import terminal, main; terminal.PATIENCE = 0; sys.exit(main(sys.argv[1:]))"
SHOP = """
from holdfast.projections import Projection

class Turnover(Projection):
    name = "turnover"
    times = 1

    def handle(self, event, view):
        if event.type == "poison":
            raise ValueError("cannot be read")
        key = event.stream.encode()
        view.put(key, b"%d" % (int(view.get(key) or 0) + self.times))

class Doubled(Turnover):
    version = 2
    times = 2

class Corrected(Turnover):
    def handle(self, event, view):
        view.put(b"corrected-%d" % event.position, b"1")

class CorrectedInPart(Corrected):
    def handle(self, event, view):
        if event.position == 2:
            raise ValueError("still not")
        super().handle(event, view)

class Other(Turnover):
    name = "other"

class Volatile(Turnover):
    is_volatile = True

class Demanding(Turnover):
    def __init__(self, rate): ...

ready = Doubled()
number = 17
"""


DOCUMENT = Path(__file__).parents[3] / "docs/cli.md"


class Turnover(Projection):
    """The first one of SHOP."""

    name = "turnover"

    def handle(self, event: Event, view: View) -> None:
        if event.type == "poison":
            raise ValueError("cannot be read")
        key = event.stream.encode()
        view.put(key, b"%d" % (int(view.get(key) or 0) + 1))


class Tables(Projection):
    name = "tables"

    def handle(self, event: Event, view: View) -> None:
        view.execute(f"CREATE TABLE IF NOT EXISTS {view.table('orders')} (n)")


def url_of(path: Path) -> str:
    return f"sqlite://{path}"


def fill(store: ProjectionStore) -> None:
    """Seven events of three orders; turnover has six of them, two of which it could not handle."""
    for stream, kinds in (
        ("order-1", ["paid", "poison"]),
        ("order-2", ["paid"]),
        ("order-3", ["poison", "paid", "paid"]),
    ):
        store.append(stream, [NewEvent(kind) for kind in kinds])
    ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Turnover())
    store.append("order-2", [NewEvent("paid")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    before = time.time() - 300
    with open_projections(url_of(made), clock=lambda: before) as store:
        fill(store)
    return made


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))  # back at the end: a projection's directory is put on it
    made = tmp_path / "shop.py"
    made.write_text(SHOP)
    return made


@contextlib.contextmanager
def looking(path: Path) -> Iterator[ProjectionStore]:
    with open_projections(url_of(path), read_only=True) as store:
        yield store


def contents(path: Path) -> list[str]:
    """Everything in the database, read past Holdfast."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def change(path: Path, sql: str, *parameters: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute(sql, parameters).rowcount == 1


def damage(path: Path, space: str, key: bytes) -> None:
    change(path, f"UPDATE holdfast_{space} SET value = x'0102030405' WHERE key = ?", key)


def table(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def view(path: Path, name: str = "turnover") -> dict[bytes, bytes]:
    with looking(path) as store:
        return dict(store.view(name).scan())


def unfinished_rebuild(path: Path) -> None:
    """Of version 2, with three events of seven."""

    class Doubled(Turnover):
        version = 2

    with open_projections(url_of(path)) as store:
        asked = iter([False] * 4 + [True])  # one more for the event that is put aside
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"), batch=1)
        assert not runner.rebuild(Doubled(), stop=lambda: next(asked)).is_at_the_end


LIVE = {b"order-1": b"1", b"order-2": b"1", b"order-3": b"2"}


# Listing


def test_lists_projections_with_what_people_ask_for(run, path):
    with open_projections(url_of(path)) as store:
        store.save_projection_checkpoint("by/hand", GlobalProjectionCheckpoint({"order-1": 1}))
        worker_lease.acquire(store.kv, "turnover", "host:12:abc", 300, store.now_ms)
    ran = run("projections", url_of(path))
    assert (ran.code, ran.err) == (0, "")
    assert table(ran.out) == [
        ["store", url_of(path)],
        ["events", "7"],
        ["projections", "2"],
        [""],
        ["PROJECTION", "VERSION", "POSITION", "LAG", "STREAMS", "LETTERS", "AGE", "WORKER"],
        ["by/hand", "unknown", "unknown", "unknown", "1", "0", "unknown", "nobody"],
        ["turnover", "1", "6", "1", "3", "2", "5 min ago", "host:12:abc"],
    ]


def test_json_is_exact(run, path):
    unfinished_rebuild(path)
    with open_projections(url_of(path)) as store:
        worker_lease.acquire(store.kv, "turnover", "host:12:abc", 300, store.now_ms)
    ran = run("projections", path, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["command"], ran.json["store"]) == ("projections", str(path))
    data = ran.data
    assert (data["address"], data["head"], data["problems"]) == (url_of(path), 7, [])
    (found,) = data["projections"]
    assert 0 <= data["now_ms"] - found.pop("updated_ms") - 300_000 < 60_000
    assert 0 <= data["now_ms"] - found["rebuild"].pop("updated_ms") < 60_000
    assert 0 < found["lease"].pop("until_ms") - data["now_ms"] <= 300_000
    assert found == {
        "projection": "turnover",
        "state": "ok",
        "reasons": [],
        "version": 1,
        "position": 6,
        "lag": 1,
        "streams": 3,
        "dead_letters": 2,
        "rebuild": {"version": 2, "position": 3, "until": None},
        "lease": {"holder": "host:12:abc", "is_held": True},
    }


def test_what_is_not_known_is_said_to_be(run, path):
    with open_projections(url_of(path)) as store:
        store.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({"order-1": 1}))
    assert table(run("projections", path).out)[-1][:4] == ["turnover", "1", "unknown", "unknown"]
    (found,) = run("projections", path, "--json").data["projections"]
    assert (found["version"], found["position"], found["lag"], found["lease"]) == (1, None, None, None)


def test_an_unfinished_rebuild_is_listed(run, path):
    assert "Rebuilds" not in run("projections", path).out
    unfinished_rebuild(path)
    assert table(run("projections", path).out)[-3:] == [
        ["Rebuilds that are not finished"],
        ["PROJECTION", "VERSION", "POSITION", "LAST MOVED"],
        ["turnover", "2", "3 of 7", "just now"],
    ]


def test_a_lease_that_ran_out_and_one_that_was_given_back(run, path):
    past = time.time() - 600
    with open_projections(url_of(path), clock=lambda: past) as store:
        worker_lease.acquire(store.kv, "turnover", "host:12:abc", 300, store.now_ms)
    assert "host:12:abc, until its lease ran out 5 min ago" in run("projections", path).out
    assert run("projections", path, "--json").data["projections"][0]["lease"]["is_held"] is False
    with open_projections(url_of(path)) as store:
        hold = worker_lease.acquire(store.kv, "turnover", "host:13:abc", 300, store.now_ms)
        assert hold is not None
        hold.release()
    assert table(run("projections", path).out)[-1][-1] == "nobody"


def test_a_store_without_projections(run, tmp_path):
    open_projections(url_of(tmp_path / "new.db")).close()
    ran = run("projections", tmp_path / "new.db")
    assert ran.code == 0
    assert "no projection has been run here" in ran.err
    data = run("projections", tmp_path / "new.db", "--json").data
    assert (data["head"], data["projections"]) == (0, [])


def test_many_projections(run, tmp_path):
    with open_projections(url_of(tmp_path / "many.db")) as store:
        for number in range(220):
            store.save_projection_checkpoint(f"p{number}", GlobalProjectionCheckpoint({"s": 1}))
    listed = re.findall(r"^(p\d+) ", run("projections", tmp_path / "many.db").out, re.MULTILINE)
    assert listed == [f"p{number}" for number in range(220)]
    seen = at_terminal("projections", tmp_path / "many.db", NO_COLOR="1")
    assert len(re.findall(r"^p\d+ ", seen.out, re.MULTILINE)) == 200
    assert "and 20 more projections" in seen.out


def test_looking_changes_nothing_and_nobody_is_kept_waiting(run, path):
    before = contents(path)
    for words in (["projections"], ["projections", "--json"]):
        assert run(*words, path).code == 0
    assert run("projections", "dead-letters", path, "turnover").code == 0
    assert contents(path) == before
    with open_projections(url_of(path)) as store, store.kv.begin() as transaction:  # has the store to itself
        transaction.write({"heads": {b"x": b"y"}})
        assert run("projections", path).code == 0
        transaction.rollback()


def test_many_cursors_are_counted_page_by_page(run, path, monkeypatch):
    monkeypatch.setattr("holdfast.status.projections.PAGE", 2)
    assert table(run("projections", path).out)[-1][4:6] == ["3", "2"]


# Damage


@pytest.mark.parametrize(
    ("space", "key", "said", "row"),
    [
        ("cursors", b"turnover/order-1", "for stream 'order-1' is damaged", ["1", "6", "1", "3", "2"]),
        ("meta", b"p/turnover", "the state of projection 'turnover'", ["unknown"] * 3 + ["3", "unknown"]),
        ("meta", b"b/turnover", "the state of projection 'turnover'", ["1", "6", "1", "3", "2"]),
        ("meta", b"l/turnover", "the lease of projection 'turnover'", ["1", "6", "1", "3", "2"]),
        ("meta", b"head", "the record of the last position", ["1", "6", "unknown", "3", "2"]),
    ],
)
def test_damage_is_told_and_hides_nothing(run, path, space, key, said, row):
    unfinished_rebuild(path)
    with open_projections(url_of(path)) as store:
        worker_lease.acquire(store.kv, "turnover", "host:12:abc", 300, store.now_ms)
        store.save_projection_checkpoint("whole", GlobalProjectionCheckpoint({"order-1": 1}))
    damage(path, space, key)
    ran = run("projections", path)
    assert ran.code == 6
    assert re.search(f"^DAMAGED: .*{re.escape(said)}", ran.out)
    rows = {cells[0]: cells[1:] for cells in reversed(table(ran.out))}  # the first table has the last word
    assert rows["turnover"][:5] == row
    assert rows["whole"][3] == "1"
    data = run("projections", path, "--json").data
    turnover = data["projections"][0]
    assert (turnover["state"] == "damaged") is (key != b"head")
    assert len(turnover["reasons"] + data["problems"]) == 1


def test_a_name_that_is_not_text_is_shown(run, path):
    change(path, "INSERT INTO holdfast_cursors VALUES (?, ?)", b"\xff\xfe/s", b"x" * 8)
    ran = run("projections", path)
    assert ran.code == 6
    assert r"\xff\xfe" in ran.out
    assert "turnover" in ran.out


@pytest.mark.parametrize("verb", [["projections"], ["projections", "reset"], ["projections", "dead-letters"]])
@pytest.mark.parametrize("what", ["tables", "format", "standing"])
def test_one_by_a_newer_release_is_refused(run, path, verb, what):
    if what == "tables":
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 99")
    elif what == "format":
        sealed = keys.seal(keys.FORMAT, 99)
        change(path, "UPDATE holdfast_meta SET value = ? WHERE key = ?", sealed, keys.FORMAT)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "_HEADER", b"\x63")
            sealed = keys.seal(b"p/turnover", 1)
        change(path, "UPDATE holdfast_meta SET value = ? WHERE key = ?", sealed, b"p/turnover")
    before = contents(path)
    ran = run(*verb, path, *(["turnover"] if verb[1:] else []), "--json")
    assert (ran.code, ran.out, ran.error["code"]) == (2, "", "store.newer")
    assert contents(path) == before


# Addresses


def test_a_plain_path_will_do(run, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    for given in (path, "shop.db", "./shop.db"):
        assert run("projections", given, "--json").data["address"] == url_of(path)
    odd = path.parent / "a store?#%20 é.db"
    path.rename(odd)
    assert run("projections", odd, "--json").json["store"] == str(odd)


@pytest.mark.parametrize(
    "verb",
    [["projections"], ["projections", "reset", "--yes"], ["projections", "rebuild"], ["projections", "dead-letters"]],
    ids=lambda verb: verb[-1].strip("-"),
)
def test_what_is_no_store(run, tmp_path, shop, verb):
    place = tmp_path / "place"  # not where the shop's code is, beside which Python puts it compiled
    place.mkdir()
    text = place / "text"
    text.write_text("This is not a database, and it is long enough to be looked at as one.\n" * 20)
    foreign = place / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as database, database:
        database.execute("CREATE TABLE t (x)")
    (place / "empty.db").touch()
    before = tree(place)
    more = ["turnover"] if verb[1:] else []
    more += ["--projection", f"{shop}:Turnover"] if "rebuild" in verb else []
    for given, code, kind in (
        (place / "gone.db", 3, "NotFound"),
        (url_of(place / "gone" / "gone.db"), 3, "NotFound"),
        (f"file://{place}/gone", 3, "NotFound"),
        (place / "empty.db", 3, "NotFound"),
        ("memory://x", 3, "NotFound"),
        (place, 2, "Invalid"),
        (foreign, 2, "Invalid"),
        (text, 6, "Corrupt"),
        ("ftp://user:hunter2@example.org/x", 2, "Invalid"),
        ("s3://bucket", 2, "Invalid"),
        ("sqlite://relative", 2, "Invalid"),
        ("", 2, "Invalid"),
    ):
        ran = run(*verb, given, *more, "--json")
        assert (ran.code, ran.out, ran.error["kind"]) == (code, "", kind), given
        assert ran.error["next_step"]
        assert "hunter2" not in ran.err
    assert {name: (mode, body) for name, (mode, _, body) in tree(place).items()} == {
        name: (mode, body) for name, (mode, _, body) in before.items()
    }


def test_a_store_whose_format_is_not_recorded(run, path):
    change(path, "DELETE FROM holdfast_meta WHERE key = ?", keys.FORMAT)
    assert run("projections", path, "--json").error["code"] == "store.record"


@pytest.mark.parametrize("verb", [["reset"], ["dead-letters"], ["rebuild", "--projection"]], ids=lambda verb: verb[0])
def test_no_such_projection(run, path, shop, verb):
    before = contents(path)
    name = "other"
    more = [f"{shop}:Other"] if "--projection" in verb else []
    ran = run("projections", *verb, *more, path, name, "--json")
    assert (ran.code, ran.out, ran.error["code"]) == (3, "", "projection.unknown")
    assert f"holdfast projections {url_of(path)}" in ran.error["next_step"]
    assert contents(path) == before


def test_usage(run, path):
    for given in (
        ["projections"],
        ["projections", path, path],
        ["projections", path, "--wat"],
        ["projections", "reset", path],
        ["projections", "rebuild", path, "turnover"],
        ["projections", "dead-letters", path, "turnover", "--retry"],
        ["projections", "dead-letters", path, "turnover", "--yes"],
        ["projections", "dead-letters", path, "turnover", "--projection", "x.py:X"],
    ):
        ran = run(*given)
        assert (ran.code, ran.out) == (2, "")
        assert "--help" in ran.err
    assert run("projections", "reset", "--json").error["kind"] == "Usage"


def test_no_option_of_the_listing_takes_a_value_so_that_the_others_are_told_from_one():
    assert all(option.is_flag for option in projections.command.params if isinstance(option, click.Option))


def test_a_file_called_reset_has_a_path(run, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.rename(path.parent / "reset")
    assert run("projections", "./reset").code == 0
    assert run("projections", "reset", "reset", "turnover", "--dry-run").code == 0


@pytest.mark.parametrize("verb", list(projections.VERBS))
def test_all_have_help_with_an_example(run, verb):
    assert f"holdfast projections {verb} URL NAME" in run("projections", "--help").out
    ran = run("projections", verb, "--help")
    assert ran.code == 0
    assert f"Usage: holdfast projections {verb} [OPTIONS] URL NAME" in ran.out
    assert f"Example: holdfast projections {verb} " in ran.out


@pytest.mark.parametrize("verb", list(projections.VERBS))
def test_all_are_documented_with_their_options(verb):
    text = DOCUMENT.read_text().partition(f"### `holdfast projections {verb}`")[2].partition("\n### ")[0]
    assert f"$ holdfast projections {verb} " in text
    assert "Exit codes" in text
    for option in projections.VERBS[verb].params:
        if isinstance(option, click.Option) and option.name not in ("as_json", "debug"):
            assert f"`{option.opts[0]}" in text


# Resetting


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


# Rebuilding


def test_rebuilds_beside_the_live_one(run, path, shop):
    words = ["projections", "rebuild", path, "turnover", "--projection", f"{shop}:Doubled"]
    before = contents(path)
    plan = [
        "live:         version 1, up to position 6, 2 dead letters; readers have it until the switch",
        "to make:      version 2",
        "to read:      7 events",
        "works on it:  nobody",
    ]
    unasked, dry = run(*words), run(*words, "--dry-run")
    assert (unasked.code, unasked.out.splitlines()) == (2, plan)
    assert (dry.code, dry.out.splitlines()) == (0, plan)
    assert "--yes" in unasked.err
    assert contents(path) == before

    stopped = run(*words, "--yes", "--json")
    assert (stopped.code, stopped.out, stopped.error["code"]) == (2, "", "projection.handler")
    assert "nothing was switched" in stopped.error["unchanged"]
    assert "--put-aside" in stopped.error["next_step"]
    assert view(path) == LIVE

    ran = run(*words, "--put-aside", "--yes")
    assert ran.code == 0
    assert "given up:     an unfinished rebuild of version 2, at position 1" in ran.out
    assert ran.out.splitlines()[-1] == (
        "rebuilt turnover: 5 events handled, 2 events put aside, version 2 is live at position 7"
    )
    assert view(path) == {b"order-1": b"2", b"order-2": b"4", b"order-3": b"4"}


def test_rebuild_as_json(run, path, shop):
    words = ["projections", "rebuild", path, "turnover", "--projection", f"{shop}:Corrected", "--json"]
    expected = {
        "address": url_of(path),
        "projection": "turnover",
        "dry_run": False,
        "applied": True,
        "plan": {
            "version": 1,
            "new_version": 1,
            "position": 6,
            "resumes_at": None,
            "events_to_read": 7,
            "dead_letters": 2,
            "rebuild": None,
            "lease": None,
        },
        "result": {"position": 7, "handled": 7, "dead_letters": 0},
    }
    assert run(*words).data == expected | {"applied": False, "result": None}
    ran = run(*words, "--yes")
    assert (ran.code, ran.err, ran.data) == (0, "", expected)


def test_a_rebuild_is_resumed_if_that_is_asked_for(run, path, shop):
    unfinished_rebuild(path)
    words = ["projections", "rebuild", path, "turnover", "--projection", f"{shop}:ready", "--put-aside"]
    assert "to read:      7 events\n" in run(*words, "--dry-run").out
    resumed = run(*words, "--resume", "--yes")
    assert "to read:      4 events after position 3, where an unfinished rebuild stands" in resumed.out
    assert "given up" not in resumed.out
    assert "rebuilt turnover: 3 events handled" in resumed.out
    # The first three were done by another handler of that version.
    assert view(path) == {b"order-1": b"1", b"order-2": b"3", b"order-3": b"4"}


def test_lines_in_a_pipe_and_a_bar_at_a_terminal(path, shop, monkeypatch):
    with open_projections(url_of(path)) as store:
        for _ in range(30):
            store.append("order-4", [NewEvent("paid")] * 1000)
    words = ["projections", "rebuild", path, "turnover", "--projection", f"{shop}:Corrected", "--yes"]
    piped = in_child(*words)
    assert piped.code == 0
    assert "━" not in piped.out + piped.err
    lines = [line for line in piped.out.splitlines() if line.startswith("read up to position ")]
    assert 5 < len(lines) < projections.TENTHS
    assert all(line.endswith(" of 30,007") for line in lines)
    monkeypatch.setattr(cli_running, "COMMAND", [sys.executable, "-c", IMPATIENT])
    seen = at_terminal(*words)
    assert seen.code == 0
    assert "rebuilding" in seen.out
    assert "━" in seen.out
    assert "read up to position" not in seen.out
    assert "/30007" in seen.out
    assert "━" not in seen.out.rpartition("\x1b[2K")[2]  # wiped off at its end


def test_a_rebuild_asks_at_a_terminal_and_an_interruption_switches_nothing(path, tmp_path):
    waits = tmp_path / "waits.py"
    waits.write_text(
        SHOP + "\nclass Waits(Turnover):\n    def handle(self, event, view):\n"
        "        print('here', flush=True)\n        import threading; threading.Event().wait()\n"
    )
    words = ["projections", "rebuild", path, "turnover", "--projection", f"{waits}:Waits"]
    ran = at_terminal(*words, keys="n\n", after="[y/N]")
    assert ran.code == 130
    assert "nothing was changed" in ran.out
    ran = at_terminal(*words, "--yes", keys="\x03", after="here")
    assert ran.code == 130, ran.out
    assert "--resume goes on" in ran.out
    assert view(path) == LIVE


def test_who_works_on_it_is_said_and_what_it_means_for_them(run, path, shop):
    with open_projections(url_of(path)) as store:
        worker_lease.acquire(store.kv, "turnover", "host:12:abc", 300, store.now_ms)
    words = ["projections", "rebuild", path, "turnover", "--dry-run", "--projection"]
    other = run(*words, f"{shop}:Doubled")
    assert "works on it:  host:12:abc" in other.out
    assert "another version than 2 stops" in other.err
    assert "stops" not in run(*words, f"{shop}:Turnover").err


# Which projection


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("{shop}", 2, "must be FILE.py:CLASS"),
        ("{shop}:", 2, "must be FILE.py:CLASS"),
        (":Turnover", 2, "must be FILE.py:CLASS"),
        ("{shop}:Nope", 2, "there is no Nope in it; its projections: Turnover, Doubled, Corrected"),
        ("{shop}:Other", 2, "its name is 'other', not 'turnover'"),
        ("{shop}:Demanding", 2, "making one fails: TypeError"),
        ("{shop}:number", 2, "int has no name"),
        ("{shop}:Volatile", 2, "keeps its read model in itself"),
        ("gone.py:Turnover", 3, "There is no file gone.py"),
        ("{folder}/bad.py:Turnover", 2, "running it fails: SyntaxError"),
        ("{folder}/exits.py:Turnover", 2, "running it fails: SystemExit: 3"),
        ("no.such.module:Turnover", 2, "importing it fails: ModuleNotFoundError"),
    ],
)
def test_what_is_no_projection(run, path, shop, tmp_path, what, code, said):
    (tmp_path / "bad.py").write_text("def")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)")
    before = contents(path)
    given = what.format(shop=shop, folder=tmp_path)
    for flag in ("--yes", "--dry-run"):
        ran = run("projections", "rebuild", path, "turnover", "--projection", given, flag, "--json")
        assert (ran.code, ran.out) == (code, "")
        assert said in ran.error["message"]
    assert contents(path) == before


def test_a_file_may_import_what_lies_beside_it_and_a_module_what_is_here(path, shop, tmp_path):
    (tmp_path / "json.py").write_text(  # called like one that is in use; a dataclass looks its module up
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom shop import Corrected\n"
        "@dataclass\nclass Sale:\n    cents: int\n"
    )
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "ours").mkdir(parents=True)
    (elsewhere / "ours" / "reports.py").write_text(SHOP)
    for given in (f"{tmp_path}/json.py:Corrected", "ours.reports:Corrected"):
        words = [sys.executable, "-P", "-m", "holdfast", "projections", "rebuild", str(path), "turnover", "--dry-run"]
        done = subprocess.run(
            [*words, "--projection", given], capture_output=True, text=True, check=False, timeout=60, cwd=elsewhere
        )
        assert done.returncode == 0, done.stderr


# Dead letters


def test_lists_dead_letters(run, path):
    ran = run("projections", "dead-letters", path, "turnover")
    assert (ran.code, ran.err) == (0, "")
    assert table(ran.out) == [
        ["POSITION", "STREAM", "SEQUENCE", "TYPE", "ATTEMPTS", "AGE", "ERROR"],
        ["2", "order-1", "2", "poison", "1", "5 min ago", "ValueError: cannot be read"],
        ["4", "order-3", "1", "poison", "1", "5 min ago", "ValueError: cannot be read"],
    ]
    data = run("projections", "dead-letters", path, "turnover", "--json").data
    assert (data["address"], data["projection"], data["problems"]) == (url_of(path), "turnover", [])
    first, _ = data["dead_letters"]
    assert 0 <= data["now_ms"] - first.pop("when_ms") - 300_000 < 60_000
    assert first == {
        "position": 2,
        "stream": "order-1",
        "sequence": 2,
        "type": "poison",
        "error": "ValueError: cannot be read",
        "attempts": 1,
    }


def test_no_dead_letters(run, path, shop):
    with open_projections(url_of(path)) as store:
        store.save_projection_checkpoint("by hand", GlobalProjectionCheckpoint({"order-1": 1}))
        ProjectionRunner(store).reset("turnover")
    for name in ("turnover", "by hand"):
        ran = run("projections", "dead-letters", path, name)
        assert (ran.code, ran.out) == (0, "no dead letters\n")


def test_handles_them_again(run, path, shop):
    words = ["projections", "dead-letters", path, "turnover", "--retry", "--projection"]
    before = contents(path)
    for flags, code in ((["--dry-run"], 0), ([], 2)):
        ran = run(*words, f"{shop}:Corrected", *flags)
        assert ran.code == code
        assert ran.out.splitlines()[-1] == "to handle again: 2 events, with version 1"
    assert run(*words, f"{shop}:Corrected", "--json").data["applied"] is False
    assert contents(path) == before

    ran = run(*words, f"{shop}:CorrectedInPart", "--yes")
    assert ran.code == 2
    assert ran.out.splitlines()[-2:] == ["handled 1 event", "still failing: 1 event, at position 2"]
    assert view(path) == LIVE | {b"corrected-4": b"1"}

    ran = run(*words, f"{shop}:Corrected", "--yes", "--json")
    assert (ran.code, ran.data["applied"], ran.data["result"]) == (0, True, {"handled": 1, "left": []})
    assert view(path) == LIVE | {b"corrected-2": b"1", b"corrected-4": b"1"}
    none = run(*words, f"{shop}:Corrected")
    assert (none.code, none.out) == (0, "no dead letters\n")


def test_handling_again_asks_at_a_terminal(path, shop):
    words = ["projections", "dead-letters", path, "turnover", "--retry", "--projection", f"{shop}:Corrected"]
    assert at_terminal(*words, keys="n\n", after="[y/N]").code == 130
    assert view(path) == LIVE
    assert at_terminal(*words, keys="y\n", after="[y/N]").code == 0
    assert len(view(path)) == 5


def test_another_version_does_not_touch_the_read_model(run, path, shop):
    words = ["projections", "dead-letters", path, "turnover", "--retry", "--projection", f"{shop}:Doubled"]
    ran = run(*words, "--yes", "--json")
    assert (ran.code, ran.error["code"]) == (2, "projection.version")
    assert view(path) == LIVE


def test_a_damaged_letter_does_not_hide_the_others(run, path, shop):
    damage(path, "letters", keys.of_build(b"turnover", 1) + keys.NUMBER.pack(2))
    ran = run("projections", "dead-letters", path, "turnover")
    assert ran.code == 6
    assert "DAMAGED: a dead letter is damaged" in ran.out
    assert "order-3" in ran.out
    for flag in ("--yes", "--dry-run"):
        retry = ["--retry", "--projection", f"{shop}:Corrected", flag, "--json"]
        ran = run("projections", "dead-letters", path, "turnover", *retry)
        assert (ran.code, ran.out, ran.error["code"]) == (6, "", "store.record")
    assert view(path) == LIVE


# SlateDB: opening it to write would fence whoever has it


@pytest.fixture
def slate(tmp_path: Path) -> Iterator[tuple[Path, ProjectionStore]]:
    """A store that this process has open."""
    with open_projections(f"file://{tmp_path}/slate") as store:
        fill(store)
        yield tmp_path / "slate", store


def test_a_look_fences_nobody_and_writes_nothing(run, slate):
    folder, store = slate
    before = tree(folder)
    for words in (["projections"], ["projections", "--json"]):
        ran = run(*words, folder)
        assert (ran.code, ran.err) == (0, "")
        assert "turnover" in ran.out
    assert run("projections", "dead-letters", folder, "turnover").out.count("poison") == 2
    assert run("projections", "reset", f"file://{folder}", "turnover", "--dry-run").code == 0
    assert tree(folder) == before
    store.append("order-9", [NewEvent("paid")])  # as before
    assert table(run("projections", folder).out)[1] == ["events", "8"]


def test_changing_one_fences_and_says_so_before(run, slate, shop):
    folder, store = slate
    plan = run("projections", "reset", folder, "turnover")
    assert plan.code == 2
    assert "a process that has this store open" in plan.err
    store.append("order-9", [NewEvent("paid")])
    ran = run("projections", "rebuild", folder, "turnover", "--projection", f"{shop}:Corrected", "--yes")
    assert ran.code == 0
    assert "8 events handled" in ran.out
    with pytest.raises(Fenced):
        store.append("order-9", [NewEvent("paid")])


@pytest.mark.s3
def test_in_a_bucket(run, shop, s3_server, monkeypatch):
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    url = f"s3://{s3_server.new_bucket()}/shop"
    assert run("projections", url, "--json").error["code"] == "store.none"
    with open_projections(url) as store:
        fill(store)
        ran = run("projections", url, "--json")
        assert (ran.code, ran.json["store"], ran.data["projections"][0]["lag"]) == (0, url, 1)
        store.append("order-9", [NewEvent("paid")])  # nobody was fenced
    ran = run("projections", "rebuild", url, "turnover", "--projection", f"{shop}:Corrected", "--yes")
    assert ran.code == 0, ran.err
    assert table(run("projections", url).out)[-1][1:6] == ["1", "8", "0", "4", "0"]


def test_without_slatedb_it_says_what_to_install(run, slate, monkeypatch):
    for module in list(sys.modules):
        if module.startswith(("slatedb", "holdfast.storage.kv.slatedb")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "slatedb", None)
    ran = run("projections", slate[0], "--json")
    assert (ran.code, ran.error["code"]) == (2, "store.package")
    assert "pip install" in ran.error["next_step"]


# Hostile contents, width, cost


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    place = tmp_path / "di\x1b[31mr [red].db"

    class Nasty(Turnover):
        name = NASTY

        def handle(self, event: Event, view: View) -> None:
            raise ValueError(NASTY * 100)

    with open_projections(f"sqlite://{str(place).replace(chr(27), '%1b')}") as store:
        store.append(NASTY, [NewEvent(NASTY)])
        store.append("s" * 9000, [NewEvent("t" * 1000)])
        ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Nasty())
        store.save_projection_checkpoint("n" * 9000, GlobalProjectionCheckpoint({NASTY: 1}))
        worker_lease.acquire(store.kv, NASTY, NASTY * 50, 300, store.now_ms)
    return place


@pytest.mark.parametrize(
    "verb",
    [["projections"], ["projections", "dead-letters"], ["projections", "reset", "--dry-run"]],
    ids=["list", "letters", "reset"],
)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_nothing_in_a_store_can_act_on_a_terminal(nasty, verb, flags):
    more = [NASTY] if verb[1:] else []
    piped = in_child(*verb, nasty, *more, *flags)
    seen = at_terminal(*verb, nasty, *more, *flags, columns=200)
    assert (piped.code, seen.code) == (0, 0)
    ours = re.compile(r"\x1b\[[0-9;]*m")
    for text in (piped.out, piped.err, ours.sub("", seen.out)):
        assert not {c for c in text if not c.isprintable() and c != "\n"}
    assert "\x1b[31mred" not in seen.out
    if not flags:
        assert max(len(line) for line in piped.out.splitlines()) < 1000


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("kind", ["path", "nasty"])
def test_tables_fit_the_terminal(columns, kind, request):
    ran = at_terminal("projections", request.getfixturevalue(kind), columns=columns, NO_COLOR="1")
    assert ran.code == 0
    assert max(len(line) for line in ran.out.splitlines()) <= columns, ran.out


def test_json_keeps_names_exactly(run, nasty):
    assert [found["projection"] for found in run("projections", nasty, "--json").data["projections"]] == [
        NASTY,
        "n" * 9000,
    ]
    letters = run("projections", "dead-letters", nasty, NASTY, "--json").data["dead_letters"]
    assert [letter["stream"] for letter in letters] == [NASTY, "s" * 9000]


def test_it_loads_neither_rich_nor_spark_nor_slatedb(path):
    words = json.dumps(["projections", str(path)])
    heavy = "{'rich', 'pyspark', 'py4j', 'pandas', 'pyarrow', 'deltalake', 'psycopg', 'redis', 'slatedb'}"
    code = f"import sys; from holdfast.cli import main; main({words}); sys.exit(bool({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60, env=os.environ)
    assert (done.returncode, b"turnover" in done.stdout) == (0, True)
