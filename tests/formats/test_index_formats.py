"""Indexes as version 0.1.0 wrote them open, hold what was committed, and go on."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from museum import CONFIGURATION, POSITION, RESULTS, T0, restore_postgres, restore_redis, unpack

from holdfast import open_index
from holdfast.errors import Invalid, Unavailable
from holdfast.index import Gap, SourceCheckpoint, StoredCheckpoint

BACKENDS = ("sqlite", "rocksdb", "redis", "postgres")
WHEN = int(T0 * 1000)


def place(kind: str, name: str, request: pytest.FixtureRequest) -> str:
    """The address of a copy of the artefact."""
    tmp_path: Path = request.getfixturevalue("tmp_path")
    if kind in ("sqlite", "rocksdb"):
        folder = unpack(f"index-{kind}-{name}.tar.gz", tmp_path / "index")
        return f"sqlite:///{folder}/index.db" if kind == "sqlite" else f"rocksdb:///{folder}"
    index = "museum" if name == "index" else "museum-reset"
    if kind == "redis":
        url: str = request.getfixturevalue("valkey").url(index)
        with redis.Redis.from_url(url.partition("?")[0]) as client:
            restore_redis(client)
        return url
    dsn: str = request.getfixturevalue("dsn")
    restore_postgres(dsn, "index-postgres.sql")
    return f"{dsn}&index={index}"


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest) -> str:
    return place(request.param, "index", request)


@pytest.fixture(params=BACKENDS)
def half_emptied(request: pytest.FixtureRequest) -> str:
    return place(request.param, "reset", request)


@pytest.mark.parametrize("read_only", [True, False])
def test_everything_that_was_committed_is_there(url: str, read_only: bool) -> None:
    with open_index(url, read_only=read_only) as index:
        assert dict(index.results.scan()) == RESULTS
        assert [key for key, _ in index.results.scan()] == sorted(RESULTS)
        assert index.results.get(b"gone") is None
        assert index.checkpoints.read_config_hash() == CONFIGURATION
        assert index.checkpoints.read_all_stored() == {
            "changes": StoredCheckpoint(SourceCheckpoint(8, b"later"), WHEN),
            "clicks": StoredCheckpoint(SourceCheckpoint(2**64 - 1, None), WHEN),
            "orders": StoredCheckpoint(SourceCheckpoint(2, b'{"0":42,"1":7}'), WHEN),
        }
        why = "the server has removed the log before 16b3748"
        assert index.gaps() == [Gap("changes", POSITION, b"later", WHEN, why)]


def test_sessions_go_on(url: str) -> None:
    with open_index(url) as index:
        assert index.configure(CONFIGURATION).action == "resume"
        with index.session():
            index.results.put(b"order-1", b"13.00")
            index.results.delete(b"order-2")
            index.checkpoints.stage_checkpoint("orders", 3, b"next")
        index.checkpoints.pass_over("orders", None, None, "begun anew")
    with open_index(url) as index:
        assert dict(index.results.scan(b"order-")) == {b"order-1": b"13.00"}
        assert len(list(index.results.scan())) == len(RESULTS) - 1
        assert sorted(index.checkpoints.read_all_checkpoints()) == ["changes", "clicks"]
        assert [gap.source_id for gap in index.gaps()] == ["changes", "orders"]


def test_another_configuration_is_refused_and_resets_when_told_to(url: str) -> None:
    with open_index(url) as index:
        with pytest.raises(Invalid):
            index.configure(CONFIGURATION + 5)
        assert dict(index.results.scan()) == RESULTS
        index.configure(CONFIGURATION + 5, on_change="reset")
        assert list(index.results.scan()) == []
        assert index.checkpoints.read_config_hash() == CONFIGURATION + 5


def test_a_reset_that_was_cut_short_is_not_shown_and_is_finished(half_emptied: str) -> None:
    with pytest.raises(Unavailable) as refused:
        open_index(half_emptied, read_only=True)
    assert refused.value.code == "index.reset-unfinished"
    with open_index(half_emptied) as index:
        assert list(index.results.scan()) == []
        assert index.checkpoints.read_all_checkpoints() == {}
        assert index.gaps() == []
        assert index.checkpoints.read_config_hash() == CONFIGURATION + 1
        with index.session():
            index.results.put(b"new", b"1")
    with open_index(half_emptied, read_only=True) as index:
        assert dict(index.results.scan()) == {b"new": b"1"}
