"""`make demo`: a pipeline's checkpoints survive a kill, a rival and a damaged disk, and you can watch."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.panel import Panel

import holdfast
from holdfast import CheckpointManifest, CheckpointStore, ConnectorCheckpoint, SinkCommitStatus, steps
from holdfast.errors import Fenced

console = Console(highlight=False)
SINKS = ("lake", "serving")


def main() -> int:
    if sys.argv[1:2] == ["driver"]:
        return drive(sys.argv[2], die_in_epoch=int(sys.argv[3]))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        store_path = os.path.join(folder, "orders")
        title("1", "A driver runs epochs of an orders pipeline, and is killed with SIGKILL in the middle of epoch 6")
        killed = subprocess.run([sys.executable, __file__, "driver", store_path, "6"], check=False)
        say(f"the driver died of {signal.Signals(-killed.returncode).name}; what it had acknowledged:")
        command("ls", store_path)

        title("2", "A new driver comes back, finds where to resume, and goes on")
        command("recover", "--dry-run", store_path)
        resumed = subprocess.run([sys.executable, __file__, "driver", store_path, "0"], check=False)
        assert resumed.returncode == 0
        command("ls", store_path)
        say("only what changed was written: compare the sizes of full and incremental checkpoints")

        title("3", "A second driver takes over; the first one is told at its next step")
        zombie_is_fenced(store_path)

        title("4", "One bit of the newest checkpoint flips on disk")
        flip_one_bit(store_path)
        command("verify", "--deep", store_path, expect=6)
        command("recover", "--dry-run", store_path)

        title("5", "What the crash left behind is found, shown and removed")
        command("gc", "--older-than", "0s", "--yes", store_path)
        seconds = time.monotonic() - began
    console.print(f"\nDone in {seconds:.0f} seconds. Every acknowledged epoch was there each time we looked.")
    return 0


def drive(path: str, *, die_in_epoch: int) -> int:
    """Run a few epochs the way a pipeline does: decide with sinks pending, commit, then record the commits."""
    store = holdfast.open_store(path, max_retained=6, full_every=4)
    store.claim(f"driver {os.getpid()}")
    newest = store.recover_latest_validated().require()  # an error if there are checkpoints and none can be trusted
    states = store.load_states(newest) if newest else {}
    last = store.load_by_id(newest) if newest else None
    first = last.epoch + 1 if last else 1
    for epoch in range(first, first + (8 if die_in_epoch else 3)):
        if epoch == die_in_epoch:
            steps.observe(kill_before_the_decision)
        states = next_states(states, epoch)
        run_epoch(store, epoch, states)
        narrate(f"epoch {epoch} committed")
    return 0


def run_epoch(store: CheckpointStore, epoch: int, states: dict[str, bytes]) -> None:
    manifest = replace(
        CheckpointManifest.new(store.next_id(), epoch),
        source_offsets={"orders": ConnectorCheckpoint(offsets={"partition-0": str(epoch * 1000)}, epoch=epoch)},
        source_names=["orders"],
        sink_names=list(SINKS),
        sink_commit_statuses=dict.fromkeys(SINKS, SinkCommitStatus.pending()),
        watermark=1_700_000_000_000 + epoch * 60_000,
    )
    decided = store.save_states(manifest, states)
    store.update_manifest(replace(decided, sink_commit_statuses=dict.fromkeys(SINKS, SinkCommitStatus.committed())))


def next_states(states: dict[str, bytes], epoch: int) -> dict[str, bytes]:
    """Sixteen partitions of state, of which an epoch touches two."""
    chance = random.Random(epoch)
    touched = chance.sample(range(16), 2 if states else 16)
    return {**states, **{f"revenue/partition-{number}": chance.randbytes(1_200_000) for number in touched}}


def kill_before_the_decision(name: str, phase: str, _: float) -> None:
    if (name, phase) == ("manifest.create", "begin"):
        narrate("epoch 6: state is written, the manifest is not: kill -9")
        os.kill(os.getpid(), signal.SIGKILL)


def zombie_is_fenced(path: str) -> None:
    first, second = holdfast.open_store(path), holdfast.open_store(path)
    first.claim("driver A")
    second.claim("driver B")
    try:
        first.save(CheckpointManifest.new(first.next_id(), 99))
    except Fenced as error:
        say(f"driver A: [bold]Fenced[/bold]. {error}")
    else:
        raise AssertionError("a driver that was taken over must not be able to save")


def flip_one_bit(path: str) -> None:
    newest = holdfast.open_store(path).list_ids()[-1]
    state = Path(path, f"checkpoints/checkpoint_{newest:06}/state.bin")
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    say(f"flipped one bit of {len(content):,} bytes in checkpoint {newest}")


def command(*words: str, expect: int = 0) -> None:
    shown = " ".join(word if os.sep not in word else os.path.basename(word) for word in words)
    console.print(f"\n[dim]$[/dim] [bold]holdfast {shown}[/bold]", soft_wrap=True)
    sys.stdout.flush()
    done = subprocess.run([sys.executable, "-m", "holdfast", *words], check=False, stdin=subprocess.DEVNULL)
    if done.returncode != expect:
        raise AssertionError(f"holdfast {shown} exited with {done.returncode}, expected {expect}")
    if expect:
        say(f"exit code {expect}: fit for cron")


def title(number: str, text: str) -> None:
    console.print()
    console.print(Panel(f"[bold]{number}.[/bold] {text}", expand=False))


def say(text: str) -> None:
    console.print(f"  {text}", soft_wrap=True)


def narrate(text: str) -> None:
    print(f"  driver {os.getpid()}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
