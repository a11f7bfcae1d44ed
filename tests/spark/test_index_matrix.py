"""Pipelines with an index on each backend are killed at the steps of the index: it always holds whole epochs."""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import DECIDED, STAGED, Fleet
from orders import INDEX_NAMED, check_index_at_the_end

from holdfast.steps import Phase
from holdfast.testing.crash import Event, Moment
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.valkey import ValkeyServer

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

COMMON = ("index.check-keys", "index.epoch", "index.write", "index.commit")
MAKING = {"sqlite": "sqlite.create", "rocksdb": "rocksdb.mark", "postgres": "postgres.tables"}
"""A step that only the very first life takes."""
OWN = {
    "sqlite": (),
    "rocksdb": ("rocksdb.open", "rocksdb.commit"),
    "redis": ("redis.open", "redis.queue", "redis.commit"),
    "postgres": ("postgres.open", "postgres.write", "postgres.commit"),
}


def during(name: str, phase: Phase = "begin") -> Moment:
    """In an epoch that is under way: one that is being staged, or else one that is decided."""
    return Moment(Event(name, phase), since=STAGED if name == "index.check-keys" else DECIDED)


def made(backend: str, phase: Phase = "begin") -> Moment:
    return Moment(Event(MAKING[backend], phase))


@pytest.fixture
def addresses(tmp_path: Path, valkey: ValkeyServer, pg_server: PostgresServer) -> dict[str, str]:
    return {
        "sqlite": f"sqlite://{tmp_path}/indexes/index.db",
        "rocksdb": f"rocksdb://{tmp_path}/indexes/rocks",
        "redis": valkey.url("matrix"),
        "postgres": f"{pg_server.new_database()}&index=matrix",
    }


def run(folder: Path, addresses: dict[str, str], chains: dict[str, list[Moment]]) -> None:
    files = max(map(len, chains.values())) + 1
    fleet = Fleet(folder, files, dict.fromkeys(addresses, "hdfs"), work="indexed")
    for name, url in addresses.items():
        fleet.root(name).mkdir()
        (fleet.root(name) / INDEX_NAMED).write_text(url)
    fleet.die_at(chains)
    assert fleet.died_at == {name: [moment.event for moment in moments] for name, moments in chains.items()}
    for name in addresses:
        check_index_at_the_end(fleet.root(name), fleet.epochs)


def test_killed_at_every_step_of_an_index(tmp_path: Path, addresses: dict[str, str]) -> None:
    """Each step of an epoch once, on one of the backends; those that all have are spread over them."""
    chains = {
        "sqlite": [during("index.check-keys", "end"), during("index.write"), during("index.commit", "end")],
        "rocksdb": [during("rocksdb.open"), during("rocksdb.commit"), during("rocksdb.commit", "end")],
        "redis": [during("redis.open"), during("redis.queue"), during("redis.commit", "end")],
        "postgres": [during("index.epoch"), during("postgres.write", "end"), during("postgres.commit", "end")],
    }
    run(tmp_path, addresses, chains)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_every_step_on_every_backend(tmp_path: Path, addresses: dict[str, str]) -> None:
    phases: tuple[Phase, ...] = ("begin", "end")
    chains = {}
    for name in addresses:
        chains[name] = [made(name, phase) for phase in phases if name in MAKING]
        chains[name] += [during(step, phase) for step in (*COMMON, *OWN[name]) for phase in phases]
    run(tmp_path, addresses, chains)
