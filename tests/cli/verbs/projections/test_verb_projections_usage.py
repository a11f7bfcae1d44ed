"""`projections` and what is below it: addresses, usage, help, documentation."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import click
import pytest
from shop_store import change, contents, fill, url_of

import holdfast
from checkpoint_stores import tree
from holdfast.base.addresses import kv_address
from holdfast.cli.verbs import projections
from holdfast.projections import keys, open_projections

DOCUMENT = Path(__file__).parents[4] / "docs/cli.md"


def test_a_plain_path_will_do(run, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    for given in (path, "shop.db", "./shop.db"):
        assert run("projections", given, "--json").data["address"] == url_of(path)
    odd = path.parent / "a store?#%20 é.db"
    path.rename(odd)
    assert run("projections", odd, "--json").json["store"] == str(odd)


@pytest.mark.parametrize("backend", ["rocksdb", "file"])
def test_the_path_of_a_directory_is_recognised_by_its_content(run, tmp_path, monkeypatch, backend):
    url = kv_address(backend, str(tmp_path / "store"))
    with open_projections(url) as store:
        fill(store)
    with holdfast.open_index(kv_address(backend, str(tmp_path / "index"))):
        pass
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path / "store", "store", "./store/", f"file:{tmp_path}/store"):
        ran = run("projections", given, "--json")
        assert (ran.code, ran.data["address"]) == (0, url)
        assert [seen["projection"] for seen in ran.data["projections"]] == ["turnover"]
    not_a_store = run("projections", tmp_path / "index", "--json")
    assert not_a_store.error["code"] == ("store.not-ours" if backend == "rocksdb" else "store.none")


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


def test_wrong_arguments_exit_2_and_point_to_the_help(run, path):
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
