"""`projections rebuild`: made again beside the live one, with the projection that was named."""

from __future__ import annotations

import subprocess
import sys

import cli_running
import pytest
from cli_running import at_terminal, in_child
from shop_store import LIVE, SHOP, contents, unfinished_rebuild, url_of, view

from holdfast.cli.verbs import projections
from holdfast.projections import NewEvent, open_projections, worker_lease

IMPATIENT = "import sys; from holdfast.cli import terminal, main; terminal.PATIENCE = 0; sys.exit(main(sys.argv[1:]))"


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
        ("{shop}:Volatile", 2, "keeps its read model in memory"),
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
