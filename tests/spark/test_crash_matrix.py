"""Pipelines are killed with SIGKILL, JVM and all, at every named step of an epoch and of a recovery.

Each pipeline lives through a chain of deaths: the next life takes over from where the last one died, and the last one
runs to the end. After each death readers see whole epochs only; at the end they see, row by row, what an undisturbed
run gives them. Pipelines of both state providers live in one process and die at one instant, each at its own step.

`make test` visits every step once; `make soak` visits every step and phase with each provider.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import ALL, DECIDED, STAGED, Fleet, moments
from orders import check_luck

from holdfast.steps import Phase
from holdfast.testing.crash import Event, Moment

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

PROVIDERS = ("hdfs", "rocksdb-changelog")
CHAINS = 10
FILES = 4


def test_killed_at_every_step(tmp_path: Path) -> None:
    names = [f"pipeline-{number}" for number in range(CHAINS)]
    phases: dict[str, Phase] = {name: "begin" if (ALL.index(name) // 2) % 2 else "end" for name in ALL}
    providers = {name: PROVIDERS[number % 2] for number, name in enumerate(names)}
    fleet = Fleet(tmp_path, FILES, providers)
    fleet.die_at({name: moments(ALL[number::CHAINS], phases, STAGED) for number, name in enumerate(names)})
    fleet.check()
    assert sorted(event.name for died in fleet.died_at.values() for event in died) == sorted(ALL)


BETWEEN_SINKS = [
    Moment(Event("sink.stage", "end"), since=DECIDED),
    Moment(Event("epoch.decide", "end")),
    Moment(Event("sink.commit", "end"), since=DECIDED),
]


def test_sinks_agree_though_the_query_never_gives_the_same_twice(tmp_path: Path) -> None:
    """Half of them lose their workdirs as well, so that what was delivered is not computed from the state that was."""
    names = [f"lottery-{number}" for number in range(len(BETWEEN_SINKS))]
    fleet = Fleet(tmp_path, 3, dict.fromkeys(names, "hdfs"), work="luck")
    fleet.live(dict(zip(names, BETWEEN_SINKS, strict=True)))
    for name in names[::2]:
        fleet.lose_workdir(name)
    fleet.live(dict.fromkeys(names))
    for name in names:
        check_luck(fleet.root(name), fleet.epochs)
