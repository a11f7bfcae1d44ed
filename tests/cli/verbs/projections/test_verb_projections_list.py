"""`projections`: what is listed, and what damage does to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time

import pytest
from cli_running import at_terminal
from shop_store import change, contents, damage, table, unfinished_rebuild, url_of

from holdfast.projections import GlobalProjectionCheckpoint, keys, open_projections, worker_lease
from holdfast.storage.kv import records


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


def test_it_loads_neither_rich_nor_spark_nor_slatedb(path):
    words = json.dumps(["projections", str(path)])
    heavy = "{'rich', 'pyspark', 'py4j', 'pandas', 'pyarrow', 'deltalake', 'psycopg', 'redis', 'slatedb'}"
    code = f"import sys; from holdfast.cli import main; main({words}); sys.exit(bool({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60, env=os.environ)
    assert (done.returncode, b"turnover" in done.stdout) == (0, True)
