"""What takes too long for `make test`: every step, phase and provider, every file damaged, and deaths at any moment.

    make soak                                    one round of everything
    make soak ARGS="matrix --provider rocksdb"   every step and phase with one provider
    make soak ARGS="random --seed 7 --rounds 3"  deaths and damage drawn from a seed, which each round prints
    make soak ARGS="damage"                      every file of a workdir deleted, emptied and flipped
    make soak ARGS="frozen"                      a driver frozen at every step of an epoch, and thawed when taken over

Ends with 0 if everything was exact, and else at the first thing that was not, with what it takes to see it again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from chains import ALL, EPOCH, FIRST_START, Fleet, Kind, moments  # noqa: E402
from drivers import FENCED, Drivers, wait_until  # noqa: E402
from orders import check_sinks_so_far  # noqa: E402
from test_workdir_damage import KINDS, goes_on  # noqa: E402
from works import PROVIDERS  # noqa: E402
from workshop import Workshop  # noqa: E402

from holdfast.base.steps import Phase  # noqa: E402
from holdfast.errors import Invalid  # noqa: E402
from sparks import QUICK_START, make_session  # noqa: E402

PHASES: tuple[Phase, Phase] = ("begin", "end")


def matrix(folder: Path, providers: list[str], seed: int) -> None:
    """Every step, killed at its begin in one chain and at its end in another, with each provider, all at once."""
    chains = {f"{provider}-{phase}": (provider, phase) for provider, phase in itertools.product(providers, PHASES)}
    say(f"matrix: every step of {', '.join(chains)}")
    kinds = {name: Kind("revenue", provider) for name, (provider, _) in chains.items()}
    fleet = Fleet(folder, len(ALL) + 10, kinds, seed=seed)
    fleet.die_at({name: moments(ALL, dict.fromkeys(ALL, phase)) for name, (_, phase) in chains.items()})
    fleet.end()
    assert fleet.seen <= {*ALL}, "a step that nobody is killed at: add it to the lists"
    assert all({event.name for event in died} == {*ALL} for died in fleet.died_at.values())


def at_random(folder: Path, providers: list[str], seed: int) -> None:
    """A driver is killed a random time after its start, again and again; sometimes its workdir is damaged as well."""
    chance = random.Random(seed)
    provider = chance.choice(providers)
    say(f"random: seed {seed}, {provider}")
    with Drivers(folder / f"random-{seed}", 40, seed=seed, provider=provider) as drivers:
        ended = False
        lives = 0
        while not ended:
            visible = drivers.visible
            driver = drivers.start()
            if lives >= 60:
                assert driver.wait() == 0, driver.said
                break
            # Until it has come somewhere, then at any moment: during an epoch, between two, in Spark's own writes.
            wait_until(
                lambda driver=driver, visible=visible: (
                    driver.process.poll() is not None or drivers.visible > visible or chance.random() < 0.001
                ),
                lambda driver=driver: f"it moves\n{driver.said}",
            )
            time.sleep(chance.random() * 3)
            ended = driver.process.poll() == 0
            assert ended or driver.process.poll() is None, driver.said
            driver.kill()
            lives += 1
            say(f"  life {lives}: {check_sinks_so_far(drivers.root, drivers.epochs)} epochs visible")
            if not ended:
                damage_at_random(drivers.root, chance)
        drivers.check()


def damage_at_random(root: Path, chance: random.Random) -> None:
    """Now and then something happens to the workdir between two lives."""
    files = sorted(path for path in workdirs(root) if path.is_file() and path.name != ".holdfast.json")
    kind = chance.choice([*KINDS, "lost", None, None, None, None])
    if kind is None or not files:
        return
    if kind == "lost":
        for workdir in (root / "store").glob("workdir*"):
            shutil.rmtree(workdir)
        say("  workdir lost")
        return
    victim = chance.choice(files)
    if victim.stat().st_size:
        KINDS[kind](victim)
        say(f"  {victim.relative_to(root)} {kind}")


def workdirs(root: Path) -> Iterator[Path]:
    for workdir in (root / "store").glob("workdir*"):
        yield from workdir.rglob("*")


def damage(folder: Path, providers: list[str], seed: int) -> None:
    """Every file of a workdir, hidden ones included, damaged in every way."""
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_START
    spark = make_session(folder / "spark")
    for provider in providers:
        shop = Workshop(spark, folder / f"damage-{provider}", provider)
        shop.arrive(4)
        shop.run()
        shop.arrive(2)
        shop.run()
        shop.save()
        files = sorted(path.relative_to(shop.workdir) for path in shop.workdir.rglob("*") if path.is_file())
        for path, kind in itertools.product(files, KINDS):
            shop.put_back()
            KINDS[kind](shop.workdir / path)
            try:
                goes_on(shop)
            except Invalid as refused:
                if path.name != ".holdfast.json":  # a mark that says something else: it might be somebody else's
                    raise
                say(f"  {path} {kind}: {refused.code}")
            say(f"damage: {provider}, {path} {kind}: {shop.said.splitlines()[-1] if shop.said else 'refused'}")
    spark.stop()


def frozen(folder: Path, providers: list[str], seed: int) -> None:
    """A driver frozen at every step of an epoch, and thawed while another is at work."""
    steps = [(name, phase) for name in EPOCH if name not in FIRST_START for phase in PHASES]
    for number, (name, phase) in enumerate(steps):
        provider = providers[number % len(providers)]
        say(f"frozen: {provider}, at the {phase} of {name}")
        with Drivers(folder / f"frozen-{number}", 12, seed=seed, provider=provider) as drivers:
            sleeper = drivers.start(freeze_at=(name, phase, 40 if name.startswith(("file", "directory.sync")) else 8))
            sleeper.wait_until_frozen()
            asleep_at = drivers.visible
            other = drivers.start()
            wait_until(
                lambda drivers=drivers, asleep_at=asleep_at: drivers.visible >= asleep_at + 2,
                lambda other=other: f"the other one is at work\n{other.said}",
            )
            sleeper.thaw()
            assert sleeper.wait() == FENCED, sleeper.said
            assert other.wait() == 0, other.said
            drivers.check()


PARTS = {"matrix": matrix, "random": at_random, "damage": damage, "frozen": frozen}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all of them if none is named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--provider", choices=[*PROVIDERS], action="append")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as everything:
        os.environ["TMPDIR"] = tempfile.tempdir = everything  # what killed processes leave behind goes with it
        for seed, part in itertools.product(range(asked.seed, asked.seed + asked.rounds), asked.parts or PARTS):
            say(f"{part}: seed {seed}; once more with: make soak ARGS='{part} --seed {seed}'")
            with tempfile.TemporaryDirectory(prefix=f"{part}-") as folder:
                PARTS[part](Path(folder), asked.provider or [*PROVIDERS], seed)
    say("everything was exact")


if __name__ == "__main__":
    main()
