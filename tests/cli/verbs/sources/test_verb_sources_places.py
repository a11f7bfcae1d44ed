"""`sources` and `sources clear` elsewhere than in SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from source_index import KAFKA

import holdfast
from holdfast.errors import Fenced
from servers.valkey import ValkeyServer, valkey_server


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with valkey_server() as server:
        yield server


@pytest.fixture(params=["rocksdb", "redis", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "rocksdb":
        return f"rocksdb:///{request.getfixturevalue('tmp_path')}/rocks"
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
