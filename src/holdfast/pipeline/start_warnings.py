"""What a start warns about: settings that work, and that people regret. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MANY_PARTITIONS = 8
"""State partitions per core from which on an epoch is mostly the opening and closing of state stores."""


def growing_sinks(output_mode: str, append_only: Iterable[str]) -> Iterator[str]:
    """Sinks that get a row again with each of its changes, or the whole result with each epoch."""
    if output_mode == "append":
        return
    what = "the whole result" if output_mode == "complete" else "one more row for each change of a row"
    for sink in append_only:
        yield (
            f"Sink {sink!r} only appends: with output mode {output_mode!r} every epoch adds {what}. "
            "Give it a key, if it can have one, or use output mode 'append' with a watermark."
        )


def many_partitions(partitions: int, cores: int, *, is_stateful: bool, is_first_start: bool) -> Iterator[str]:
    """Spark's default of 200 partitions on a few cores. Later it cannot be changed: Spark pins it with the state."""
    if is_stateful and is_first_start and partitions >= MANY_PARTITIONS * cores:
        yield (
            f"The query keeps its state in {partitions} partitions on {cores} cores: each epoch opens that many state "
            f"stores, and the first one takes long. Set spark.sql.shuffle.partitions, to {2 * cores} for instance, "
            "before the first start: later the number stays as it is."
        )
