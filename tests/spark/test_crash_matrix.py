"""A pipeline is killed with SIGKILL, JVM and all, at every named step of an epoch and of a recovery.

One pipeline for each state provider lives through a chain of deaths: each life decides at least one epoch or dies while
it recovers, the next one takes over from there, and the last one runs to the end. After each death readers see whole
epochs only; at the end they see, row by row, what an undisturbed run gives them.

`make test` visits every step once, over the two providers; `make soak` visits every step and phase with each provider.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import ALL, REBUILD, Chain, moments

from holdfast.steps import Phase

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]

PROVIDERS = ("hdfs", "rocksdb-changelog")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_killed_at_every_step(provider: str, tmp_path: Path) -> None:
    mine = ALL[PROVIDERS.index(provider) :: 2]
    phases: dict[str, Phase] = {name: "begin" if (ALL.index(name) // 2) % 2 else "end" for name in ALL}
    chain = Chain(tmp_path, provider, files=len(mine) + 6)
    chain.run_undisturbed()
    for moment in moments(mine, phases):
        if moment.event.name in REBUILD:
            chain.lose_workdir()
        chain.live(moment)
    chain.live_to_the_end()
    chain.check()
    assert sorted(event.name for event in chain.died_at) == sorted(mine)
    assert chain.seen <= {*ALL}, "a step that nobody is killed at: add it to the lists in chains.py"
