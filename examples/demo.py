"""`make demo`: a pipeline is killed between its two sinks and loses its workdir; every order arrives exactly once."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

console = Console(highlight=False)
RATES = {"EUR": 1.0, "USD": 0.9, "GBP": 1.2}
FILES_IN_EACH_ACT = 3
ORDERS_IN_A_FILE = 400


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", nargs=2, help=argparse.SUPPRESS)  # how the demonstration starts its own drivers
    if driver := parser.parse_args().driver:
        return drive(Path(driver[0]), die_in_epoch=int(driver[1]))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        folder = Path(name)
        shop = Shop(folder)
        console.print(
            "Orders in three currencies become revenue in euros, per shop and minute. Each epoch goes to two sinks:\n"
            "[b]files[/], a directory of parquet files, and [b]delta[/], a Delta table that is updated by key."
        )

        title(1, "The driver is killed with SIGKILL in epoch 2, after the first sink's commit and before the second's")
        shop.sell(FILES_IN_EACH_ACT)
        start_driver(folder, die_in_epoch=2)
        say(
            f"files has epochs {epochs_in_files(folder)}; delta has epochs up to {epoch_in_delta(folder)}. They differ."
        )
        say("But epoch 2 was decided: one manifest says what both sinks hold staged.")
        command("status", str(folder / "checkpoints"))

        title(2, "The next start finishes epoch 2 in the other sink, and goes on")
        start_driver(folder)
        say(f"files has epochs {epochs_in_files(folder)}; delta has epochs up to {epoch_in_delta(folder)}.")
        compare(shop, folder)

        title(3, "Spark's own checkpoint directory is deleted, with all its state, and new orders arrive")
        shutil.rmtree(folder / "checkpoints" / "workdir")
        shop.sell(FILES_IN_EACH_ACT)
        start_driver(folder)
        compare(shop, folder)

        title(4, "What was kept")
        command("ls", str(folder / "checkpoints"))
        command("verify", "--deep", str(folder / "checkpoints"))
        seconds = time.monotonic() - began
    console.print(f"\n[b]Done in {seconds:.0f} seconds.[/] Both sinks hold every order exactly once.")
    return 0


def drive(folder: Path, *, die_in_epoch: int) -> int:
    """A driver of its own process: run the pipeline, and die where we are told to."""
    from revenue import local_session, run

    from holdfast.base import steps
    from holdfast.spark import EpochReport, watch

    committed: list[str] = []

    def die(name: str, phase: str, _: float) -> None:
        if name == "sink.commit" and phase == "end":
            committed.append(name)
            if die_in_epoch and len(committed) == 2 * die_in_epoch - 1:
                os.killpg(os.getpgrp(), signal.SIGKILL)

    def show(event: object) -> None:
        if isinstance(event, EpochReport):
            again = ", run again for its state" if event.is_replay else ""
            text = f"epoch {event.epoch}: {event.rows} orders, checkpoint {event.checkpoint_id}{again}"
        else:
            text = getattr(event, "text", "")
        print(f"    {text}", flush=True)

    steps.observe(die)
    watch(show)
    session = local_session()
    run(folder, session)
    session.stop()
    return 0


def start_driver(folder: Path, *, die_in_epoch: int = 0) -> None:
    """Run a driver in a process group of its own, so that a kill takes the JVM along."""
    command = [sys.executable, __file__, "--driver", str(folder), str(die_in_epoch)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "spark.log").open("ab") as log:
        driver = subprocess.Popen(
            command, process_group=0, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert driver.stdout is not None
        with waiting("Spark starts"):
            first = driver.stdout.readline()
        print(first, end="", flush=True)
        for line in driver.stdout:
            print(line, end="", flush=True)
        driver.wait()
    if die_in_epoch:
        say(f"the driver died of {signal.Signals(-driver.returncode).name}")
    elif driver.returncode:
        console.print((folder / "spark.log").read_text()[-4000:], markup=False)
        raise SystemExit("The driver failed; above is the end of its log.")


class Shop:
    """Sells at random, and keeps its own books."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = random.Random(7)
        self._clock = datetime(2026, 1, 1, 9, tzinfo=UTC)
        self._files = 0
        self.books: dict[tuple[str, datetime], float] = defaultdict(float)
        for name in ("orders", "rates"):
            (folder / name).mkdir()
        lines = [json.dumps({"currency": currency, "euros": rate}) for currency, rate in RATES.items()]
        (folder / "rates" / "1.json").write_text("\n".join(lines))

    def sell(self, files: int) -> None:
        """Some minutes of orders, a file each."""
        for _ in range(files):
            self._sell_a_minute()

    def _sell_a_minute(self) -> None:
        lines = []
        for _ in range(ORDERS_IN_A_FILE):
            shop, currency = self._random.choice(("Porto", "Lyon", "Graz")), self._random.choice(tuple(RATES))
            amount = self._random.randrange(100, 10_000) / 100
            at = self._clock + timedelta(seconds=self._random.randrange(60))
            lines.append(json.dumps({"shop": shop, "currency": currency, "amount": amount, "at": at.isoformat()}))
            self.books[shop, self._clock] += amount * RATES[currency]
        hidden = self._folder / "orders" / f".{self._files}"
        hidden.write_text("\n".join(lines))
        os.rename(hidden, self._folder / "orders" / f"{self._files:04}.json")
        self._files += 1
        self._clock += timedelta(minutes=1)


def compare(shop: Shop, folder: Path) -> None:
    """Both sinks against the shop's own books, read with readers that know nothing of Holdfast."""
    import pyarrow.dataset
    from deltalake import DeltaTable

    files = pyarrow.dataset.dataset(folder / "files", partitioning="hive").to_table().to_pylist()
    ordered = sorted(files, key=lambda row: row["epoch"])
    newest = {(row["shop"], row["minute"].replace(tzinfo=UTC)): row for row in ordered}
    delta = {(row["shop"], row["minute"]): row for row in DeltaTable(folder / "delta").to_pyarrow_table().to_pylist()}
    table = Table(
        "shop", "minute", "books", "files", "delta", title="The last two minutes, in euros", title_justify="left"
    )
    same = 0
    keys = sorted(shop.books, key=lambda key: (key[1], key[0]))
    for number, (name, minute) in enumerate(keys):
        books = round(shop.books[name, minute], 2)
        found = [side.get((name, minute), {}).get("euros") for side in (newest, delta)]
        same += all(value is not None and abs(value - books) < 0.011 for value in found)
        if number >= len(keys) - 6:
            table.add_row(
                name, f"{minute:%H:%M}", f"{books:.2f}", *(f"{value:.2f}" if value else "-" for value in found)
            )
    console.print(table)
    extra = (newest.keys() | delta.keys()) - shop.books.keys()
    orders = sum(row["orders"] for row in delta.values())
    if same != len(keys) or extra:
        raise SystemExit(f"{len(keys) - same} of {len(keys)} differ, and {len(extra)} should not be there.")
    say(f"all {len(keys)} sums in both sinks agree with the books, and delta counts all {orders} orders")


def epochs_in_files(folder: Path) -> str:
    found = sorted(int(path.name.partition("=")[2]) for path in (folder / "files").glob("epoch=*"))
    return f"1 to {found[-1]}" if found else "none"


def epoch_in_delta(folder: Path) -> int | None:
    from deltalake import DeltaTable

    return DeltaTable(folder / "delta").transaction_version("holdfast/revenue/delta/0")


def command(*arguments: str) -> None:
    shown = " ".join(argument if "/" not in argument else "…/" + Path(argument).name for argument in arguments)
    console.print(f"[dim]$ holdfast {shown}[/]")
    subprocess.run([sys.executable, "-m", "holdfast", *arguments], check=True)


def title(number: int, text: str) -> None:
    console.print()
    console.print(Panel(f"[b]{number}.[/] {text}", expand=False))


def say(text: str) -> None:
    console.print(f"  [green]>[/] {text}")


class waiting:  # noqa: N801 - reads as a statement
    """A dot a second at a terminal while something takes its time."""

    def __init__(self, text: str) -> None:
        self._status = console.status(text) if console.is_terminal else None

    def __enter__(self) -> None:
        if self._status:
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()


if __name__ == "__main__":
    sys.exit(main())
