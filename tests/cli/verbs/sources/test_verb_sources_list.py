"""`sources`: what an index says of its sources."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys

import pytest
from cli_running import at_terminal
from source_index import KAFKA, contents, damage, held_by_another, url_of

import holdfast
from holdfast.cli.verbs.sources import position_words
from holdfast.index import records
from holdfast.status.index import position_json
from holdfast.storage.kv.open import open_kv


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
def test_a_position_is_short_for_people_and_exact_in_json(position, shown):
    assert position_words(position, 40) == shown
    found = position_json(position)
    assert found is not None
    assert found["size_bytes"] == len(position)
    exact = bytes.fromhex(found["hex"]) if found["text"] is None else found["text"].encode()
    assert exact == position
    json.dumps(found)


def test_it_loads_neither_rich_nor_spark(path):
    words = json.dumps(["sources", str(path)])
    heavy = "{'rich', 'pyspark', 'py4j', 'pandas', 'pyarrow', 'deltalake', 'psycopg', 'redis'}"
    code = f"import sys; from holdfast.cli import main; main({words}); sys.exit(bool({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60, env=os.environ)
    assert (done.returncode, b"orders" in done.stdout) == (0, True)
