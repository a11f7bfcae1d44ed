"""`sources` and `sources clear`: addresses, usage, help, documentation."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import click
import pytest
from source_index import contents, url_of

import holdfast
from holdfast.base.addresses import kv_address
from holdfast.cli.verbs import sources
from holdfast.projections import open_projections

DOCUMENT = Path(__file__).parents[4] / "docs/cli.md"


def test_a_plain_path_will_do(run, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    for given in (path, "turnover.db", "./turnover.db"):
        assert run("sources", given, "--json").data["address"] == url_of(path)
    odd = path.parent / "an index?#%20 é.db"
    path.rename(odd)
    assert run("sources", odd, "--json").json["store"] == str(odd)


@pytest.mark.parametrize("backend", ["rocksdb", "file"])
def test_the_path_of_a_directory_is_recognised_by_its_content(run, tmp_path, monkeypatch, backend):
    url = kv_address(backend, str(tmp_path / "index"))
    with holdfast.open_index(url) as index, index.session():
        index.checkpoints.stage_checkpoint("orders", 5)
    store = tmp_path / "store"
    with open_projections(kv_address(backend, str(store))):
        pass
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path / "index", "index", "./index/", f"file:{tmp_path}/index"):
        ran = run("sources", given, "--json")
        assert (ran.code, ran.data["address"]) == (0, url)
        assert [source["source"] for source in ran.data["sources"]] == ["orders"]
    not_an_index = run("sources", store, "--json")
    assert not_an_index.error["code"] == ("index.not-ours" if backend == "rocksdb" else "index.record")


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
        ("redis:/user:hunter2@example.org/x", 2, "Invalid"),
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


def test_wrong_arguments_exit_2_and_point_to_the_help(run, path):
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
