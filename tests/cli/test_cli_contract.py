"""What holds for every verb: documentation, help, the JSON envelope, errors and exit codes."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_running import in_child

import holdfast
from holdfast import errors
from holdfast.cli import app

VERBS = list(app.VERBS)
CALLS = {
    "status": [],
    "ls": [],
    "show": [],
    "diff": ["1", "3"],
    "verify": ["--deep"],
    "recover": ["--dry-run"],
    "prune": ["--keep", "1", "--dry-run"],
    "gc": ["--dry-run"],
}
ON_STORES = [verb for verb in VERBS if verb not in ("run", "files", "sources", "projections")]
DOCUMENT = Path(__file__).parents[2] / "docs/cli.md"


def command(verb: str) -> click.Command:
    found = app.cli.get_command(click.Context(app.cli), verb)
    assert found is not None
    return found


def section(verb: str) -> str:
    parts = re.split(r"^## `holdfast (\w+)`$", DOCUMENT.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(verb, "")


def test_the_table_of_calls_has_every_verb():
    assert list(CALLS) == ON_STORES


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented_with_an_example_its_exit_codes_and_its_options(verb):
    text = section(verb)
    assert text, f"docs/cli.md has no section '## `holdfast {verb}`'"
    assert f"$ holdfast {verb} " in text
    assert "Exit codes" in text
    for parameter in command(verb).params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            name = max(parameter.opts, key=len)
            assert name in text or f"| `{name}" in DOCUMENT.read_text().partition("## `holdfast")[0], name


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb, run):
    ran = run(verb, "--help")
    assert ran.code == 0
    assert f"Example: holdfast {verb} " in ran.out
    assert "--json" in ran.out


@pytest.mark.parametrize("verb", VERBS)
def test_the_short_help_is_the_beginning_of_the_long_one(verb):
    words = (command(verb).help or "").split("\n\n")[0]
    assert words.split()[0] == app.VERBS[verb].split()[0]


@pytest.mark.parametrize("verb", ON_STORES)
def test_every_verb_gives_one_line_of_json_in_a_versioned_envelope(verb, run, store_dir, memory_url):
    for address in (str(store_dir), memory_url):
        ran = run(verb, address, *CALLS[verb], "--json")
        assert ran.code == 0
        assert ran.err == ""
        assert len(ran.out.splitlines()) == 1
        assert list(ran.json) == ["holdfast", "command", "store", "data", "notes"]
        assert (ran.json["holdfast"], ran.json["command"], ran.json["store"]) == (1, verb, address)


@pytest.mark.parametrize("verb", ON_STORES)
def test_every_verb_tells_a_store_that_is_not_there(verb, run, tmp_path):
    ran = run(verb, tmp_path / "gone", *CALLS[verb], "--json")
    assert (ran.code, ran.out) == (3, "")
    assert ran.error["kind"] == "NotFound"
    assert ran.error["about"] == str(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.Conflict, 4),
        (errors.Fenced, 5),
        (errors.OutcomeUnknown, 7),
        (errors.Unavailable, 8),
        (errors.Corrupt, 6),
        (errors.Invalid, 2),
        (errors.NotFound, 3),
    ],
)
def test_every_error_has_its_exit_code_and_says_what_people_need(kind, code, run, store_dir, monkeypatch):
    def fail(*_, **__):
        raise kind("It did not work.", code="x.y", about="the thing", unchanged="the rest", next_step="try harder")

    monkeypatch.setattr(holdfast.CheckpointStore, "plan_prune", fail)
    ran = run("prune", store_dir, "--keep", 1)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == "error: the thing: It did not work.\n  unchanged: the rest\n  next: try harder\n"
    ran = run("prune", store_dir, "--keep", 1, "--json")
    assert (ran.code, ran.out) == (code, "")
    assert json.loads(ran.err) == {
        "holdfast": 1,
        "command": "prune",
        "error": {
            "kind": kind.__name__,
            "code": "x.y",
            "exit_code": code,
            "message": "It did not work.",
            "about": "the thing",
            "unchanged": "the rest",
            "next_step": "try harder",
        },
    }


def test_a_bug_is_one_line_unless_asked(run, store_dir, monkeypatch):
    def fail(*_, **__):
        raise ValueError("oh\x1b[31m no\nmore")

    monkeypatch.setattr(holdfast.CheckpointStore, "plan_prune", fail)
    call = ["prune", store_dir, "--keep", 1]
    ran = run(*call)
    assert ran.code == 1
    assert ran.err.startswith("error: This is a bug in Holdfast: ValueError: oh\\x1b[31m no\n")
    assert "Traceback" not in ran.err
    assert "Traceback" in run(*call, "--debug").err
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert "Traceback" in run(*call).err
    assert run(*call, "--json").code == 1


def test_an_interruption(run, store_dir, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(holdfast.CheckpointStore, "plan_prune", interrupt)
    ran = run("prune", store_dir, "--keep", 1)
    assert ran.code == 130
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate", "/x"],
        ["ls"],
        ["ls", "/x", "/y"],
        ["ls", "/x", "--wat"],
        ["ls", "/x", "--limit", "0"],
        ["show", "/x", "0"],
        ["show", "/x", "-1"],
        ["show", "/x", "1.5"],
        ["show", "/x", str(2**64)],
        ["show", "/x", "1_0"],
        ["ls", "ftp://example.org/x"],
        ["ls", "s3://"],
        ["ls", ""],
        [],
    ],
)
def test_a_usage_error_exits_2_with_a_message_and_no_output(words, run):
    ran = run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err
    assert "Traceback" not in ran.err
    assert "bug" not in ran.err


def test_usage_as_json(run):
    ran = run("ls", "--json")
    assert ran.error["kind"] == "Usage"
    assert ran.error["exit_code"] == 2


def test_version_and_module():
    assert in_child("--version").out == f"holdfast {holdfast.__version__}\n"
    assert in_child("-h").code == 0


def test_help_loads_no_verb_and_no_rich():
    code = (
        "import sys, holdfast; before = set(sys.modules); from holdfast.cli import main; code = main(['--help']);"
        "print(code, sorted(n for n in set(sys.modules) - before if n.startswith(('holdfast', 'rich', 'obstore'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 ['holdfast.cli', 'holdfast.cli.app']"


@pytest.mark.parametrize("verb", ON_STORES)
def test_no_verb_loads_rich_or_spark_for_short_work(verb, store_dir):
    words = json.dumps([verb, str(store_dir), *CALLS[verb]])
    heavy = "{'rich', 'pyspark', 'py4j', 'pandas', 'pyarrow', 'deltalake', 'psycopg'}"
    code = f"import sys; from holdfast.cli import main; main({words}); sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60).returncode == 0


def test_debug_logs_the_steps(run, store_dir):
    flagged = run("prune", store_dir, "--keep", 1, "--yes", "--debug")
    assert "checkpoints.delete" in flagged.err


def test_the_log_is_left_as_it_was(run, store_dir):
    log = logging.getLogger("holdfast")
    before = (list(log.handlers), log.level, log.propagate)
    run("verify", store_dir, "--debug")
    run("show", store_dir, 99)
    assert (log.handlers, log.level, log.propagate) == before
