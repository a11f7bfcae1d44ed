"""Pipelines are killed with SIGKILL, JVM and all, at every named step of an epoch and of a recovery.

Each pipeline lives through a chain of deaths: the next life takes over from where the last one died, and the last one
runs to the end. After each death readers see whole epochs only; at the end they see, row by row, what an undisturbed
run gives them. Pipelines of every kind live in one process and die at one instant, each at its own step.

`make test` visits every step once; `make soak` visits every step and phase with each provider and each index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from chains import ALL, DECIDED, STAGED, Fleet, Kind, moments
from orders import INDEX_NAMED

from holdfast.base.steps import Phase
from holdfast.testing.faults.crash import Moment, StepEvent
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]

Chains = Mapping[str, Sequence[Moment]]

PROVIDERS = ("hdfs", "rocksdb-changelog")
REVENUES = {f"revenue-{number}": Kind("revenue", PROVIDERS[number % 2]) for number in range(10)}
FILES = 4

COMMON = ("index.check-keys", "index.epoch", "index.write", "index.commit")
MAKING = {"sqlite": "sqlite.create", "rocksdb": "rocksdb.mark", "postgres": "postgres.tables"}
"""A step that only the very first life takes."""
OWN = {
    "sqlite": ("sqlite.commit",),
    "rocksdb": ("rocksdb.open", "rocksdb.commit"),
    "redis": ("redis.open", "redis.queue", "redis.commit"),
    "postgres": ("postgres.open", "postgres.write", "postgres.commit"),
}
INDEXES = dict.fromkeys(OWN, Kind("indexed"))
OF_INDEXES = {"index.create", "index.configure", *COMMON, *MAKING.values()}.union(*OWN.values())
"""All of theirs. Those that are not killed at here are in index/test_index_crashes.py."""

OF_LOTTERIES = {"delta.place"}
"""What a Delta table without a key takes besides; sinks/test_sink_crashes.py kills at it."""


def on_revenues() -> Chains:
    """Every step once, on one of the pipelines."""
    phases: dict[str, Phase] = {name: "begin" if (ALL.index(name) // 2) % 2 else "end" for name in ALL}
    return {name: moments(ALL[number :: len(REVENUES)], phases, STAGED) for number, name in enumerate(REVENUES)}


def during(name: str, phase: Phase = "begin") -> Moment:
    """In an epoch that is under way: one that is being staged, or else one that is decided."""
    return Moment(StepEvent(name, phase), since=STAGED if name == "index.check-keys" else DECIDED)


ON_INDEXES: Chains = {
    "sqlite": [
        during("index.check-keys", "end"),
        during("index.write"),
        during("index.commit", "end"),
        during("sqlite.commit", "end"),
    ],
    "rocksdb": [during("rocksdb.open"), during("rocksdb.commit"), during("rocksdb.commit", "end")],
    "redis": [during("redis.open"), during("redis.queue"), during("redis.commit", "end")],
    "postgres": [during("index.epoch"), during("postgres.write", "end"), during("postgres.commit", "end")],
}
"""Each step of an epoch once; those that all backends have are spread over them."""

BETWEEN_SINKS: Chains = {
    "lottery-staged": [Moment(StepEvent("sink.stage", "end"), since=DECIDED)],
    "lottery-decided": [Moment(StepEvent("epoch.decide", "end"))],
    "lottery-committed": [Moment(StepEvent("sink.commit", "end"), since=DECIDED)],
}
"""Where a query that never gives the same twice would show it."""
LOTTERIES = dict.fromkeys(BETWEEN_SINKS, Kind("luck"))
LOST = ("lottery-staged", "lottery-committed")
"""Those that lose their workdirs as well, so that what was delivered is not computed from the state that was."""


@pytest.fixture
def addresses(tmp_path: Path, valkey: ValkeyServer, pg_server: PostgresServer) -> dict[str, str]:
    return {
        "sqlite": f"sqlite:///{tmp_path}/indexes/index.db",
        "rocksdb": f"rocksdb:///{tmp_path}/indexes/rocks",
        "redis": valkey.url(),
        "postgres": f"{pg_server.new_database()}&index=matrix",
    }


def put_addresses(fleet: Fleet, addresses: dict[str, str]) -> None:
    for name, url in addresses.items():
        fleet.root(name).mkdir()
        (fleet.root(name) / INDEX_NAMED).write_text(url)


def check_chains(fleet: Fleet, chains: Chains) -> None:
    assert fleet.died_at == {name: [moment.event for moment in chain] for name, chain in chains.items()}


def test_killed_at_every_step(tmp_path: Path, addresses: dict[str, str]) -> None:
    chains = {**on_revenues(), **ON_INDEXES, **BETWEEN_SINKS}
    fleet = Fleet(tmp_path, FILES, REVENUES | INDEXES | LOTTERIES)
    put_addresses(fleet, addresses)
    fleet.die_at(chains)
    for name in LOST:
        fleet.lose_workdir(name)
    fleet.end()
    check_chains(fleet, chains)
    assert sorted(event.name for name in REVENUES for event in fleet.died_at[name]) == sorted(ALL)
    assert fleet.seen <= {*ALL} | OF_INDEXES | OF_LOTTERIES, "a step that nobody is killed at: add it to the lists"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_every_step_of_every_index(tmp_path: Path, addresses: dict[str, str]) -> None:
    phases: tuple[Phase, ...] = ("begin", "end")
    chains = {}
    for name in INDEXES:
        chains[name] = [Moment(StepEvent(MAKING[name], phase)) for phase in phases if name in MAKING]
        chains[name] += [during(step, phase) for step in (*COMMON, *OWN[name]) for phase in phases]
    fleet = Fleet(tmp_path, max(map(len, chains.values())) + 1, INDEXES)
    put_addresses(fleet, addresses)
    fleet.die_at(chains)
    fleet.end()
    check_chains(fleet, chains)
