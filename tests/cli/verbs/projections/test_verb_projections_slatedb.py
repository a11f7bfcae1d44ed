"""`projections` on SlateDB: opening it to write would fence whoever has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shop_store import fill, table

from checkpoint_stores import tree
from holdfast.errors import Fenced
from holdfast.projections import NewEvent, ProjectionStore, open_projections


@pytest.fixture
def slate(tmp_path: Path) -> Iterator[tuple[Path, ProjectionStore]]:
    """A store that this process has open."""
    with open_projections(f"file://{tmp_path}/slate") as store:
        fill(store)
        yield tmp_path / "slate", store


def test_a_look_fences_nobody_and_writes_nothing(run, slate):
    folder, store = slate
    before = tree(folder)
    for words in (["projections"], ["projections", "--json"]):
        ran = run(*words, folder)
        assert (ran.code, ran.err) == (0, "")
        assert "turnover" in ran.out
    assert run("projections", "dead-letters", folder, "turnover").out.count("poison") == 2
    assert run("projections", "reset", f"file://{folder}", "turnover", "--dry-run").code == 0
    assert tree(folder) == before
    store.append("order-9", [NewEvent("paid")])  # as before
    assert table(run("projections", folder).out)[1] == ["events", "8"]


def test_changing_one_fences_and_says_so_before(run, slate, shop):
    folder, store = slate
    plan = run("projections", "reset", folder, "turnover")
    assert plan.code == 2
    assert "a process that has this store open" in plan.err
    store.append("order-9", [NewEvent("paid")])
    ran = run("projections", "rebuild", folder, "turnover", "--projection", f"{shop}:Corrected", "--yes")
    assert ran.code == 0
    assert "8 events handled" in ran.out
    with pytest.raises(Fenced):
        store.append("order-9", [NewEvent("paid")])


@pytest.mark.s3
def test_in_a_bucket(run, shop, s3_server, monkeypatch):
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    url = f"s3://{s3_server.new_bucket()}/shop"
    assert run("projections", url, "--json").error["code"] == "store.none"
    with open_projections(url) as store:
        fill(store)
        ran = run("projections", url, "--json")
        assert (ran.code, ran.json["store"], ran.data["projections"][0]["lag"]) == (0, url, 1)
        store.append("order-9", [NewEvent("paid")])  # nobody was fenced
    ran = run("projections", "rebuild", url, "turnover", "--projection", f"{shop}:Corrected", "--yes")
    assert ran.code == 0, ran.err
    assert table(run("projections", url).out)[-1][1:6] == ["1", "8", "0", "4", "0"]


def test_without_slatedb_it_says_what_to_install(run, slate, monkeypatch):
    for module in list(sys.modules):
        if module.startswith(("slatedb", "holdfast.storage.kv.slatedb")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "slatedb", None)
    ran = run("projections", slate[0], "--json")
    assert (ran.code, ran.error["code"]) == (2, "store.package")
    assert "pip install" in ran.error["next_step"]
