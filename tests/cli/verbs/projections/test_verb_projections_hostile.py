"""`projections` on hostile contents: the terminal survives them, and JSON keeps them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_running import at_terminal, in_child
from shop_store import Turnover

from holdfast.projections import (
    Event,
    GlobalProjectionCheckpoint,
    NewEvent,
    OnError,
    ProjectionRunner,
    View,
    open_projections,
    worker_lease,
)

NASTY = "a\x1b[31mred\x1b]0;owned\x07\x9b2J\x7f [bold red]m[/] \u202eevil\u2066\u2028\n\ttail/%"


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    place = tmp_path / "di\x1b[31mr [red].db"

    class Nasty(Turnover):
        name = NASTY

        def handle(self, event: Event, view: View) -> None:
            raise ValueError(NASTY * 100)

    with open_projections(f"sqlite:///{str(place).replace(chr(27), '%1b')}") as store:
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
