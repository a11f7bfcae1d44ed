"""`sources` and `sources clear`: what an index says of its sources, and letting them start over."""

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

import click
import pytest
from cli_running import at_terminal, in_child

import holdfast
from holdfast.base import steps
from holdfast.cli.options import index_address
from holdfast.cli.verbs import sources
from holdfast.cli.verbs.sources import position_words
from holdfast.errors import Fenced, Unavailable
from holdfast.index import records
from holdfast.operations import clear_index
from holdfast.sinks.index import sequence_of
from holdfast.status.index import position_json
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.rocksdb_directory import MARKS
from servers.valkey import ValkeyServer, valkey_server

NASTY = "a\x1b[31mred\x1b]0;owned\x07\x9b2J\x7f [bold red]m[/] \u202eevil\u2066\u2028\n\ttail"
HASH = 0xDEADBEEF12345678
KAFKA = b'{"orders":{"10":42,"0":17,"2":9}}'
DOCUMENT = Path(__file__).parents[3] / "docs/cli.md"


def url_of(path: Path) -> str:
    return f"sqlite://{path}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index with three sources, two results, a hash and a gap."""
    made = tmp_path / "turnover.db"
    now = time.time()
    with holdfast.open_index(url_of(made), clock=lambda: now - 300) as index:
        with index.session():
            index.results.put(b"a", b"1")
            index.results.put(b"b", b"2")
            index.checkpoints.stage_checkpoint("orders", sequence_of(2, 42), KAFKA)
            index.checkpoints.stage_checkpoint("clicks", 41, b'{"logOffset":3}')
        index.checkpoints.write_config_hash(HASH)
        index.checkpoints.pass_over("log", 7, b"\0\0\0\xff", "the log was cut")
    return made


def contents(path: Path) -> list[tuple[object, ...]]:
    """Every record and result, read past Holdfast."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        both = "SELECT 'meta', * FROM meta UNION ALL SELECT 'results', * FROM results ORDER BY 1, 2"
        return database.execute(both).fetchall()


def keys(path: Path) -> list[bytes]:
    return [row[1] for row in contents(path)]  # type: ignore[misc]


def damage(path: Path, key: bytes) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute("UPDATE meta SET value = x'0102030405060708' WHERE key = ?", (key,)).rowcount == 1


@contextlib.contextmanager
def held_by_another(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has it open, and does as much as each line that it is sent says."""
    code = (
        "import sys, holdfast\n"
        "with holdfast.open_index(sys.argv[1]) as index:\n"
        "    print('open', flush=True)\n"
        "    for number, line in enumerate(sys.stdin):\n"
        "        with index.session():\n"
        "            index.checkpoints.stage_checkpoint('other', number)\n"
        "        print('written', flush=True)\n"
    )
    words = [sys.executable, "-c", code, url_of(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "open\n"
        try:
            yield child
        finally:
            child.stdin.close()
            assert child.wait(30) == 0


# Listing


def test_lists_sources_with_what_people_ask_for(run, path):
    ran = run("sources", url_of(path))
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[:4] == [
        f"index        {url_of(path)}",
        "config hash  deadbeef12345678",
        "sources      3",
        "gaps         1",
    ]
    table = [re.split(r"\s{2,}", line.strip()) for line in lines]
    at = table.index(["SOURCE", "SEQUENCE", "EPOCH", "AGE", "POSITION"])
    assert table[at + 1 : at + 4] == [
        ["clicks", "41", "41", "5 min ago", "logOffset: 3"],
        ["log", "7", "7", "5 min ago", "4 bytes 000000ff"],
        ["orders", "2199023255594", "42 of lineage 2", "5 min ago", "orders-0: 17, orders-2: 9, orders-10: 42"],
    ]
    assert table[-1] == ["log", "5 min ago", "the start", "4 bytes 000000ff", "the log was cut"]


def test_json_is_exact(run, path):
    ran = run("sources", url_of(path), "--json")
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["command"], ran.json["store"]) == ("sources", str(path))
    data = ran.data
    assert (data["address"], data["config_hash"], data["problems"]) == (url_of(path), "deadbeef12345678", [])
    clicks, log, orders = data["sources"]
    assert 0 <= data["now_ms"] - orders["written_ms"] - 300_000 < 60_000
    assert (orders["sequence"], orders["epoch"], orders["lineage"]) == (2 * 2**40 + 42, 42, 2)
    assert orders["position"] == {
        "size_bytes": len(KAFKA),
        "text": KAFKA.decode(),
        "hex": None,
        "offsets": {"orders-0": "17", "orders-2": "9", "orders-10": "42"},
    }
    assert (clicks["epoch"], clicks["lineage"], clicks["state"]) == (41, 0, "ok")
    assert log["position"] == {"size_bytes": 4, "text": None, "hex": "000000ff", "offsets": None}
    (gap,) = data["gaps"]
    assert (gap["source"], gap["from"], gap["to"], gap["why"]) == ("log", None, log["position"], "the log was cut")
    assert data["gap_count"] == 1


def test_the_newest_gaps_are_shown_and_json_has_all(run, path):
    with holdfast.open_index(url_of(path)) as index:
        for number in range(9):
            index.checkpoints.pass_over("log", number, None if number == 8 else b"p%d" % number, f"reason {number}")
    ran = run("sources", path)
    assert re.findall(r"reason \d", ran.out) == [f"reason {number}" for number in (8, 7, 6, 5, 4)]
    assert re.search(r"p7  +where it resumed  reason 8", ran.out)
    assert "5 older gaps" in ran.err
    assert [gap["why"] for gap in run("sources", path, "--json").data["gaps"]][-1] == "reason 8"


def test_an_index_without_sources(run, tmp_path):
    holdfast.open_index(url_of(tmp_path / "new.db")).close()
    ran = run("sources", tmp_path / "new.db")
    assert ran.code == 0
    assert "config hash  none recorded" in ran.out
    assert "no source has a checkpoint" in ran.err
    data = run("sources", tmp_path / "new.db", "--json").data
    assert (data["sources"], data["gaps"], data["config_hash"]) == ([], [], None)


def test_whoever_has_it_open_goes_on(run, path):
    with held_by_another(path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert "other" not in run("sources", path).out
        print("write", file=child.stdin, flush=True)
        assert child.stdout.readline() == "written\n"
        assert "other" in run("sources", path).out


def test_looking_changes_nothing(run, path):
    before = contents(path)
    for _ in range(2):
        assert run("sources", path).code == 0
    assert contents(path) == before


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_damaged_checkpoint_is_marked_and_the_others_are_listed(run, path, flags):
    damage(path, b"s/orders")
    ran = run("sources", path, *flags)
    assert ran.code == 6
    if flags:
        assert [source["state"] for source in ran.data["sources"]] == ["ok", "ok", "damaged"]
        assert "its checksum does not match" in ran.data["sources"][2]["reason"]
    else:
        assert "logOffset: 3" in ran.out
        assert re.search(r"orders +- +- +- +DAMAGED: its checksum does not match\.", ran.out)


@pytest.mark.parametrize(
    ("key", "said"), [(b"hash", "the configuration hash is damaged"), (b"g/\0\0\0\0\0\0\0\1", "a recorded gap")]
)
def test_other_damage_does_not_hide_the_sources(run, path, key, said):
    damage(path, key)
    ran = run("sources", path)
    assert ran.code == 6
    assert f"DAMAGED: {said}" in ran.out
    assert "logOffset: 3" in ran.out
    assert len(run("sources", path, "--json").data["problems"]) == 1


def test_a_name_that_is_not_text_is_shown(run, path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO meta VALUES (?, ?)", (b"s/\xff\xfe", b"x"))
    ran = run("sources", path)
    assert ran.code == 6
    assert r"\xff\xfe" in ran.out


def test_one_by_a_newer_release_is_refused(run, path):
    opened = open_kv(url_of(path), records.SCHEMA, "exclusive")
    with contextlib.closing(opened) as store, store.begin() as transaction:
        transaction.write({"meta": {records.FORMAT_KEY: records.encode_format(99)}})
    for verb in (["sources"], ["sources", "clear", "--yes"]):
        ran = run(*verb, path, "--json")
        assert (ran.code, ran.error["code"]) == (2, "index.newer")


def test_many_sources(run, tmp_path):
    with holdfast.open_index(url_of(tmp_path / "many.db")) as index, index.session():
        for number in range(250):
            index.checkpoints.stage_checkpoint(f"s{number}", number)
    listed = re.findall(r"^  (s\d+) ", run("sources", tmp_path / "many.db").out, re.MULTILINE)
    assert listed == [f"s{number}" for number in range(250)]
    seen = at_terminal("sources", tmp_path / "many.db", NO_COLOR="1")
    assert len(re.findall(r"^  s\d+ ", seen.out, re.MULTILINE)) == 200
    assert "and 50 more sources" in seen.out


# Addresses


def test_a_plain_path_will_do(run, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    for given in (path, "turnover.db", "./turnover.db"):
        assert run("sources", given, "--json").data["address"] == url_of(path)
    odd = path.parent / "an index?#%20 é.db"
    path.rename(odd)
    assert run("sources", odd, "--json").json["store"] == str(odd)
    (path.parent / "rocks").mkdir()
    (path.parent / "rocks" / MARKS["index"]).touch()
    assert index_address("rocks") == f"rocksdb://{path.parent}/rocks"


@pytest.mark.parametrize("verb", [["sources"], ["sources", "clear", "--yes"]])
def test_what_is_no_index(run, tmp_path, verb):
    text = tmp_path / "text"
    text.write_text("This is not a database, and it is long enough to be looked at as one.\n" * 20)
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as database, database:
        database.execute("CREATE TABLE t (x)")
    before = sorted(tmp_path.iterdir()), text.read_bytes(), foreign.read_bytes()
    for given, code, kind in (
        (tmp_path / "gone.db", 3, "NotFound"),
        (url_of(tmp_path / "gone.db"), 3, "NotFound"),
        ("memory://x", 3, "NotFound"),
        (tmp_path, 2, "Invalid"),
        (foreign, 2, "Invalid"),
        (text, 6, "Corrupt"),
        ("ftp://user:hunter2@example.org/x", 2, "Invalid"),
        ("sqlite://relative", 2, "Invalid"),
        ("", 2, "Invalid"),
    ):
        ran = run(*verb, given, "--json")
        assert (ran.code, ran.out, ran.error["kind"]) == (code, "", kind), given
        assert ran.error["next_step"]
        assert "hunter2" not in ran.err
        assert "hunter2" not in run(*verb, given).err
    assert (sorted(tmp_path.iterdir()), text.read_bytes(), foreign.read_bytes()) == before


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_server_that_does_not_answer_and_no_secret_shown(run, scheme):
    ran = run("sources", f"{scheme}://user:hunter2@127.0.0.1:1/0?index=x", "--debug")
    assert ran.code == 8
    assert "hunter2" not in ran.out + ran.err


def test_no_option_of_the_listing_takes_a_value_so_that_clear_is_told_from_one():
    assert all(option.is_flag for option in sources.command.params if isinstance(option, click.Option))


def test_usage(run, path):
    for given in (["sources"], ["sources", "clear"], ["sources", path, "--wat"], ["sources", path, path]):
        ran = run(*given)
        assert (ran.code, ran.out) == (2, "")
    assert "holdfast sources clear --help" in run("sources", "clear").err
    assert run("sources", "clear", "--json").error["kind"] == "Usage"


def test_a_file_called_clear_has_a_path(run, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.rename(path.parent / "clear")
    before = contents(path.parent / "clear")
    assert run("sources", "./clear").code == 0
    assert run("sources", "clear", "clear", "--dry-run").code == 0
    assert contents(path.parent / "clear") == before


# Positions, in words


@pytest.mark.parametrize(
    ("position", "shown"),
    [
        (b'{"logOffset":3}', "logOffset: 3"),
        (b'{"t":{"0":1},"s":{"1":2}}', "s-1: 2, t-0: 1"),
        (b'{"shards":{"a":{"next":"x"}},"n":null}', "n: null, shards.a.next: x"),
        (b'{"a":123456789012345678901234567890}', "a: 123456789012345678901234567890"),
        (b'{"a":[1,{"b":2}]}', 'a: [1,{"b":2}]'),
        (b"17", "17"),
        (b"{}", "{}"),
        (b'{"a":', '{"a":'),
        (b'{"a":1e999}', '{"a":1e999}'),
        (b'{"a":' * 9000 + b"1" + b"}" * 9000, '{"a":' * 7 + '{"a"…'),
        (b"16/B374D848", "16/B374D848"),
        ("größe".encode(), "größe"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        (b"", "0 bytes"),
        (b"\0", "1 byte 00"),
        (b"\0\0\0\0\0\0\0\x41", "8 bytes 0000000000000041"),
        (b"\x01\x02\x03A", "4 bytes 01020341"),
        (b"\xff" * 65536, "65,536 bytes " + "ff" * 13 + "…"),
        (b"x" * 65536, "x" * 39 + "…"),
    ],
)
def test_positions(position, shown):
    assert position_words(position, 40) == shown
    found = position_json(position)
    assert found is not None
    assert found["size_bytes"] == len(position)
    exact = bytes.fromhex(found["hex"]) if found["text"] is None else found["text"].encode()
    assert exact == position
    json.dumps(found)


# Hostile contents


@pytest.fixture
def nasty(tmp_path):
    place = tmp_path / "di\x1b[31mr [red].db"
    with holdfast.open_index(f"sqlite://{str(place).replace(chr(27), '%1b')}") as index:
        index.checkpoints.pass_over(NASTY, 1, NASTY.encode() * 1000, NASTY * 1000)
        with index.session():
            index.checkpoints.stage_checkpoint(NASTY, 2**64 - 1, NASTY.encode())
            index.checkpoints.stage_checkpoint("n" * 1024, 5, b"x" * 65536)
            index.checkpoints.stage_checkpoint("\u202e" * 341, 5, json.dumps({NASTY: {NASTY: NASTY}}).encode())
            index.checkpoints.stage_checkpoint("deep", 5, b"[" * 65536)
    return place


@pytest.mark.parametrize("verb", [["sources"], ["sources", "clear", "--dry-run"]], ids=["list", "clear"])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_nothing_in_an_index_can_act_on_a_terminal(nasty, verb, flags):
    piped = in_child(*verb, nasty, *flags)
    seen = at_terminal(*verb, nasty, *flags, columns=200)
    assert (piped.code, seen.code) == (0, 0)
    ours = re.compile(r"\x1b\[[0-9;]*m")
    for text in (piped.out, piped.err, ours.sub("", seen.out)):
        assert not {c for c in text if not c.isprintable() and c != "\n"}
    assert "\x1b[31m" not in seen.out
    if not flags:
        assert max(len(line) for line in piped.out.splitlines()) < 1500


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("kind", ["path", "nasty"])
def test_tables_fit_the_terminal(columns, kind, request):
    ran = at_terminal("sources", request.getfixturevalue(kind), columns=columns, NO_COLOR="1")
    assert ran.code == 0
    assert max(len(line) for line in ran.out.splitlines() if not line.startswith("note: ")) <= columns, ran.out
    table = ran.out.partition("POSITION\n")[2].partition("\n\n")[0]
    assert len(table.splitlines()) == (3 if kind == "path" else 4)  # cut, not wrapped
    assert ("orders-0: 17, " if kind == "path" else "xxxxxx…") in table


def test_json_keeps_them_exactly(run, nasty):
    found = {source["source"]: source for source in run("sources", nasty, "--json").data["sources"]}
    assert found[NASTY]["position"]["text"] == NASTY
    assert found["n" * 1024]["position"]["text"] == "x" * 65536


# Clearing


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


# Elsewhere than in SQLite


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with valkey_server() as server:
        yield server


@pytest.fixture(params=["rocksdb", "redis", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "rocksdb":
        return f"rocksdb://{request.getfixturevalue('tmp_path')}/rocks"
    if request.param == "redis":
        return request.getfixturevalue("valkey").url("a-name")
    return f"{request.getfixturevalue('pg_server').new_database()}&index=a-name"


def test_the_other_places_that_an_index_may_be_in(run, url):
    missing = run("sources", url, "--json")
    assert (missing.code, missing.error["code"]) == (3, "index.none")
    with holdfast.open_index(url) as index:
        with index.session():
            index.results.put(b"a", b"1")
            index.checkpoints.stage_checkpoint("orders", 5, KAFKA)
        looked = run("sources", url)
        assert (looked.code, looked.err) == (0, "")
        assert "orders-0: 17, orders-2: 9" in looked.out
        assert url.startswith("rocksdb") or "a-name" in looked.out.splitlines()[0]
        plan = run("sources", "clear", url, "--dry-run")
        assert plan.code == 0
        with index.session():  # so far nobody has taken it
            index.results.put(b"a", b"2")
        ran = run("sources", "clear", url, "--results", "--yes")
        if url.startswith("rocksdb"):
            assert ran.code == 4
        else:
            assert ran.code == 0
            assert "note: a process that has this index open" in ran.err
            with pytest.raises(Fenced), index.session():
                index.results.put(b"a", b"3")
    again = run("sources", "clear", url, "--results", "--yes")
    assert again.code == 0
    assert (again.out == "nothing to remove\n") is not url.startswith("rocksdb")
    with holdfast.open_index(url, read_only=True) as index:
        assert (dict(index.results.scan()), index.checkpoints.read_all_checkpoints()) == ({}, {})
    password = re.search(r":([^:@/]+)@", url)
    for shown in (looked, plan, ran, again, missing):
        assert password is None or password[1] not in shown.out + shown.err


def test_debug_logs_the_steps(run, path):
    assert "index.clear" in run("sources", "clear", path, "--yes", "--debug").err


# Documentation and cost


def test_clear_is_documented_with_its_options():
    text = DOCUMENT.read_text().partition("### `holdfast sources clear`")[2]
    assert "$ holdfast sources clear " in text
    assert "Exit codes" in text
    for option in sources.clear.params:
        if isinstance(option, click.Option) and option.name not in ("as_json", "debug"):
            assert f"`{option.opts[0]}`" in text


def test_both_have_help_with_an_example(run):
    assert "holdfast sources clear URL" in run("sources", "--help").out
    ran = run("sources", "clear", "--help")
    assert ran.code == 0
    assert "Usage: holdfast sources clear [OPTIONS] URL" in ran.out
    assert "Example: holdfast sources clear " in ran.out


def test_it_loads_neither_rich_nor_spark(path):
    words = json.dumps(["sources", str(path)])
    heavy = "{'rich', 'pyspark', 'py4j', 'pandas', 'pyarrow', 'deltalake', 'psycopg', 'redis'}"
    code = f"import sys; from holdfast.cli import main; main({words}); sys.exit(bool({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60, env=os.environ)
    assert (done.returncode, b"orders" in done.stdout) == (0, True)
