"""`sources` on hostile contents: the terminal survives them, and JSON keeps them."""

from __future__ import annotations

import json
import re

import pytest
from cli_running import at_terminal, in_child

import holdfast

NASTY = "a\x1b[31mred\x1b]0;owned\x07\x9b2J\x7f [bold red]m[/] \u202eevil\u2066\u2028\n\ttail"


@pytest.fixture
def nasty(tmp_path):
    place = tmp_path / "di\x1b[31mr [red].db"
    with holdfast.open_index(f"sqlite:///{str(place).replace(chr(27), '%1b')}") as index:
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
