"""What is SlateDB's own: its keys, when a write is durable, who is fenced, and storage that does not answer."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest
from projection_places import PLACES
from slatedb.uniffi import DbBuilder, KeyRange, ObjectStore

from holdfast.base.steps import observe
from holdfast.errors import Fenced, OutcomeUnknown, Unavailable
from holdfast.projections import GlobalProjectionCheckpoint, ProjectionRunner, open_projections, rebuild
from holdfast.storage.kv import slatedb
from holdfast.testing.conformance.projections.subject import Turnover, contents, fresh_fold, paid
from holdfast.testing.faults.proxy import FaultyProxy, Status
from servers.s3 import S3Server, environment_for

WORKS = Path(__file__).with_name("projection_works.py")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "CHUNK", rebuild.CHUNK)  # back at the end


def keys_of(folder: Path) -> dict[bytes, bytes]:
    """Everything in a database, without Holdfast."""

    async def read() -> dict[bytes, bytes]:
        database = await DbBuilder(str(folder).strip("/"), ObjectStore.resolve("file:///")).build()
        iterator = await database.scan(KeyRange(start=None, start_inclusive=False, end=None, end_inclusive=False))
        found = {bytes(row.key): bytes(row.value) for row in await iterator.next_batch(1000)}
        await database.shutdown()
        return found

    return asyncio.run(read())


def test_the_keys_are_those_of_the_model(tmp_path: Path) -> None:
    with open_projections(f"file://{tmp_path}/db") as store:
        store.append("order/1", [paid(1)])
        store.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({"order/1": 7, "x": 2**40}))
        store.save_projection_checkpoint("a/b%", GlobalProjectionCheckpoint({"s": 1}))
    found = keys_of(tmp_path / "db")
    assert {key: value for key, value in found.items() if key.startswith(b"cp/")} == {
        b"cp/turnover/order/1": struct.pack("<Q", 7),
        b"cp/turnover/x": struct.pack("<Q", 2**40),
        b"cp/a%2Fb%25/s": struct.pack("<Q", 1),
    }
    assert {key.partition(b"/")[0] for key in found} == {b"cp", b"e", b"g", b"m", b"si"}


def test_a_fenced_writer_finds_out_before_it_says_anything(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/db"
    with open_projections(url) as first:
        first.append("a", [paid(1)])
        with open_projections(url) as second:
            with pytest.raises(Fenced) as caught:
                first.append("a", [paid(2)])
            assert caught.value.code == "store.fenced"
            with pytest.raises(Fenced):
                ProjectionRunner(first).catch_up_persistent(Turnover())
            ProjectionRunner(second).catch_up_persistent(Turnover())
            assert second.stream_version("a") == 1
            assert contents(second) == fresh_fold(second)


@pytest.mark.s3
def test_storage_that_does_not_take_a_commit(
    s3_server: S3Server, shared_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is reported saved, nothing more is written, and the next opening knows what became of it."""
    with FaultyProxy(s3_server.endpoint) as proxy:
        for name, value in environment_for(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        url = f"s3://{shared_bucket}/faulty"
        store = open_projections(url)
        store.append("a", [paid(1)])
        proxy.script = lambda request: Status(503) if request.method in ("PUT", "POST") else None
        monkeypatch.setattr(slatedb, "PATIENCE", 1.0)
        with pytest.raises(OutcomeUnknown) as caught:
            store.append("a", [paid(2)])
        assert caught.value.code == "store.commit-unknown"
        for call in (lambda: store.append("a", [paid(3)]), lambda: store.position):
            with pytest.raises((Unavailable, OutcomeUnknown)):
                call()
        store.close()
        proxy.script = lambda _: None
        monkeypatch.setattr(slatedb, "PATIENCE", 60.0)
        with open_projections(url) as again:
            version = again.stream_version("a")
            assert version in (1, 2)
            again.append("a", [paid(4)], expected=version)
            assert [event.sequence for event in again.read_all()] == list(range(1, version + 2))


def test_a_write_that_is_not_answered_in_time_may_be_there(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is accepted, too: to say "try again" would be to append it twice."""
    url = PLACES["slatedb"].fresh(request)
    store = open_projections(url)
    store.append("a", [paid(1)])
    wait_for = slatedb.wait_for

    def answered_late(work: Any, patience: float) -> Any:
        wait_for(work, patience)
        raise TimeoutError

    with monkeypatch.context() as patch:
        remove = observe(
            lambda name, phase, _: (
                patch.setattr(slatedb, "wait_for", answered_late)
                if (name, phase) == ("slatedb.write", "begin")
                else None
            )
        )
        with pytest.raises(OutcomeUnknown):
            store.append("a", [paid(2)])
        remove()
    with pytest.raises(Unavailable):
        store.append("a", [paid(3)])
    store.close()
    with open_projections(url) as again:
        assert again.stream_version("a") in (1, 2)


def test_an_address_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_for("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slatedb, "PATIENCE", 1.0)
    with pytest.raises(Unavailable):
        open_projections("s3://bucket/path")
