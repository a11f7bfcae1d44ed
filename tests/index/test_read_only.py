"""An index that is looked at, whoever has it open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast
from holdfast.base.steps import Phase, observe
from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.index import SourceCheckpoint, records
from holdfast.storage.kv.open import open_kv
from index_places import PLACES


@pytest.fixture(params=[name for name, place in PLACES.items() if place.abilities.persistent])
def url(request: pytest.FixtureRequest) -> str:
    return PLACES[request.param].fresh(request)


def test_one_that_is_not_there_is_not_made(url: str) -> None:
    for _ in range(2):
        with pytest.raises(NotFound) as refused:
            holdfast.open_index(url, read_only=True)
        assert refused.value.code == "index.none"


def test_whoever_has_it_open_goes_on(url: str) -> None:
    with holdfast.open_index(url) as index:
        with index.session():
            index.results.put(b"a", b"1")
            index.checkpoints.stage_checkpoint("orders", 1, b"p")
        with holdfast.open_index(url, read_only=True) as looked, index.session():
            index.results.put(b"b", b"2")
            index.checkpoints.stage_checkpoint("orders", 2, None)
            assert dict(looked.results.scan()) == {b"a": b"1"}
            assert looked.checkpoints.read_all_checkpoints() == {"orders": SourceCheckpoint(1, b"p")}
        with index.session():
            index.results.delete(b"a")
        with holdfast.open_index(url, read_only=True) as looked:
            assert dict(looked.results.scan()) == {b"b": b"2"}
            assert (looked.results.get(b"a"), looked.results.get(b"b")) == (None, b"2")
            assert looked.checkpoints.read_checkpoint("orders") == SourceCheckpoint(2, None)
            assert looked.checkpoints.is_persistent
    with holdfast.open_index(url, read_only=True) as looked:
        assert dict(looked.results.scan(b"b")) == {b"b": b"2"}


def test_nothing_can_be_written(url: str) -> None:
    with holdfast.open_index(url) as index, index.session():
        index.results.put(b"a", b"1")
    with holdfast.open_index(url, read_only=True) as looked:
        with pytest.raises(Invalid) as refused, looked.session():
            looked.results.put(b"a", b"2")
        assert refused.value.code == "index.read-only"
        for write in (
            looked.checkpoints.clear_checkpoints,
            looked.reset,
            lambda: looked.checkpoints.write_config_hash(1),
        ):
            with pytest.raises(Invalid):
                write()
        assert dict(looked.results.scan()) == {b"a": b"1"}


def test_half_emptied_it_is_not_shown(url: str) -> None:
    with holdfast.open_index(url) as index, index.session():
        index.results.put(b"a", b"1")
    store = open_kv(url, records.SCHEMA, "exclusive")
    with store.begin() as transaction:
        transaction.write({"meta": {records.RESET_KEY: records.encode_marker(7)}})
    store.close()
    with pytest.raises(Unavailable) as refused:
        holdfast.open_index(url, read_only=True)
    assert refused.value.code == "index.reset-unfinished"
    holdfast.open_index(url).close()
    with holdfast.open_index(url, read_only=True) as looked:
        assert list(looked.results.scan()) == []


def test_half_emptied_meanwhile_it_is_not_shown(url: str) -> None:
    """Opened before the reset that failed. RocksDB and SlateDB show one moment, which was before."""
    with holdfast.open_index(url) as index:
        with index.session():
            index.results.put(b"a", b"1")
            index.checkpoints.stage_checkpoint("orders", 1, b"p")

        def fail(name: str, phase: Phase, _: float) -> None:
            if name == "reset.clear" and phase == "end":
                raise OSError("The disk says no.")

        with holdfast.open_index(url, read_only=True) as looked:
            stop = observe(fail)
            try:
                with pytest.raises(OSError, match="says no"):
                    index.reset()
            finally:
                stop()
            reads: list[Callable[[], object]] = [
                lambda: looked.results.get(b"a"),
                lambda: list(looked.results.scan()),
                lambda: looked.checkpoints.read_checkpoint("orders"),
                looked.checkpoints.read_all_checkpoints,
                looked.gaps,
            ]
            if url.startswith(("rocksdb:", "file:")):
                assert reads[0]() == b"1"
                assert reads[2]() == SourceCheckpoint(1, b"p")
                return
            for read in reads:
                with pytest.raises(Unavailable) as refused:
                    read()
                assert refused.value.code == "index.reset-unfinished"


def test_in_memory_there_is_nothing_to_look_at() -> None:
    with pytest.raises(NotFound):
        holdfast.open_index("memory://x", read_only=True)
