"""At a terminal: colour, width, questions, bars. Elsewhere: none of these."""

from __future__ import annotations

import json
import os
import sys

import msgspec
import pytest
from cli_running import at_terminal, in_child

import holdfast
from checkpoint_stores import fill, flip, manifest_path
from holdfast import CheckpointManifest, OperatorCheckpoint


def test_colour_only_at_a_terminal_that_wants_it(store_dir):
    assert "\x1b[" in at_terminal("ls", store_dir).out
    assert "\x1b[" not in at_terminal("ls", store_dir, NO_COLOR="1").out
    assert "\x1b[" in at_terminal("ls", store_dir, NO_COLOR="").out
    assert "\x1b[" not in at_terminal("ls", store_dir, TERM="dumb").out
    piped = in_child("ls", store_dir)
    assert "\x1b" not in piped.out
    assert piped.out.isascii()


def test_a_terminal_gets_the_newest_twenty(tmp_path):
    fill(str(tmp_path), 23)
    ran = at_terminal("ls", tmp_path, NO_COLOR="1")
    assert len([line for line in ran.out.splitlines() if " full " in line]) == 20
    assert "… and 3 older (--all shows them)" in ran.out
    assert len([line for line in at_terminal("ls", tmp_path, "--all").out.splitlines() if " full " in line]) == 23


def test_json_is_indented_at_a_terminal(store_dir):
    ran = at_terminal("ls", store_dir, "--json")
    assert len(ran.out.splitlines()) > 10
    assert json.loads(ran.out)["holdfast"] == 1


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tables_fit_the_terminal(store_dir, columns):
    flip(manifest_path(store_dir, 2))
    for verb in (["ls"], ["verify"], ["prune", "--keep", "1", "--dry-run"]):
        ran = at_terminal(verb[0], store_dir, *verb[1:], columns=columns, NO_COLOR="1")
        prose = ("note: ", "to remove: ", "3 checkpoints ")
        shown = [line for line in ran.out.splitlines() if not line.startswith(prose)]
        assert shown
        assert max(len(line) for line in shown) <= columns, ran.out


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A store whose verification takes long enough for a bar."""
    root = tmp_path_factory.mktemp("large")
    store = holdfast.open_store(root, max_retained=None)
    state = os.urandom(1 << 20) * 64
    operators = {"a": OperatorCheckpoint.external_slice(0, len(state))}
    for number in (1, 2, 3, 4):
        plain = CheckpointManifest.new(number, number)
        store.save_with_state(msgspec.structs.replace(plain, operator_states=operators), [state])
    return root


IMPATIENT = "import sys; from holdfast.cli import terminal, main; terminal.PATIENCE = 0; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("verb", [["verify", "--deep"], ["verify"], ["recover"]])
def test_a_bar_at_a_terminal(large, verb, monkeypatch):
    monkeypatch.setattr("cli_running.COMMAND", [sys.executable, "-c", IMPATIENT])
    ran = at_terminal(verb[0], large, *verb[1:])
    assert ran.code == 0
    assert "━" in ran.out
    wiped = ran.out.rpartition("\x1b[2K")[2]
    assert "━" not in wiped  # the bar is gone at the end, the result stays
    assert "4  " in ran.out
    dumb = at_terminal(verb[0], large, *verb[1:], TERM="dumb")
    assert "━" not in dumb.out


def test_no_bar_elsewhere(large, monkeypatch):
    monkeypatch.setattr("cli_running.COMMAND", [sys.executable, "-c", IMPATIENT])
    ran = in_child("verify", large, "--deep")
    assert ran.err == ""
    assert ran.out.splitlines()[0] == "4  ok"


def test_raw_is_not_sent_to_a_terminal_that_would_act_on_it(store_dir):
    manifest_path(store_dir, 3).write_bytes(b'{"x": "\x1b]0;owned\x07"}')
    ran = at_terminal("show", store_dir, 3, "--raw", NO_COLOR="1")
    assert ran.code == 2
    assert "\x1b]0" not in ran.out
    assert "--raw > manifest.json" in ran.out
    assert at_terminal("show", store_dir, 2, "--raw").out == manifest_path(store_dir, 2).read_text()
