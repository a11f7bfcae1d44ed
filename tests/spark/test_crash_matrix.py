"""A pipeline is killed with SIGKILL, JVM and all, at every named step of an epoch and of a recovery.

One pipeline for each state provider lives through a chain of deaths: each life decides at least one epoch or dies while
it recovers, the next one takes over from there, and the last one runs to the end. After each death readers see whole
epochs only; at the end they see, row by row, what an undisturbed run gives them.

`make test` visits every step once, over the two providers; `make soak` visits every step and phase with each provider.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import ALL, DECIDED, REBUILD, Chain, Undisturbed, moments
from orders import check_luck

from holdfast.steps import Phase
from holdfast.testing.crash import Event, Moment

pytestmark = [pytest.mark.soak, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]

PROVIDERS = ("hdfs", "rocksdb-changelog")
FILES = 22


@pytest.mark.parametrize("provider", PROVIDERS)
def test_killed_at_every_step(provider: str, shared: Path, tmp_path: Path) -> None:
    mine = ALL[PROVIDERS.index(provider) :: 2]
    phases: dict[str, Phase] = {name: "begin" if (ALL.index(name) // 2) % 2 else "end" for name in ALL}
    undisturbed = Undisturbed(shared, FILES)
    undisturbed.begin()
    chain = Chain(tmp_path / "killed", undisturbed, provider)
    for moment in moments(mine, phases):
        if moment.event.name in REBUILD:
            chain.lose_workdir()
        chain.check_so_far(chain.live(moment))
    chain.live_to_the_end()
    chain.check()
    assert sorted(event.name for event in chain.died_at) == sorted(mine)
    assert chain.seen <= {*ALL}, "a step that nobody is killed at: add it to the lists in chains.py"


BETWEEN_SINKS = [
    Moment(Event("sink.stage", "end"), since=DECIDED),
    Moment(Event("epoch.decide", "end")),
    Moment(Event("sink.commit", "end"), since=DECIDED),
    Moment(Event("delta.commit", "begin"), since=DECIDED),
    Moment(Event("epoch.settle", "begin"), since=DECIDED),
]


def test_sinks_agree_though_the_query_never_gives_the_same_twice(shared: Path, tmp_path: Path) -> None:
    undisturbed = Undisturbed(shared, len(BETWEEN_SINKS) + 3)
    undisturbed.write_input()
    chain = Chain(tmp_path / "killed", undisturbed, "hdfs", work="luck")
    for moment in BETWEEN_SINKS:
        chain.live(moment)
        chain.lose_workdir()
    chain.live_to_the_end()
    check_luck(chain.root, undisturbed.epochs)
