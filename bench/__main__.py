"""`make bench`: run everything, or the parts named in ARGS, print one table, fail if something falls short."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from bench import (
    counting,
    epochs,
    indexing,
    memory,
    projections,
    projections_spark,
    remote,
    saving,
    sources,
    starts,
    state,
)


def main() -> int:
    table = Table(
        "what", "measured", "must reach", "", "detail", title="Holdfast benchmarks, each a comparison in one run"
    )
    parts = {
        "saving": saving,
        "state": state,
        "memory": memory,
        "counting": counting,
        "epochs": epochs,
        "starts": starts,
        "sources": sources,
        "indexing": indexing,
        "projections": projections,
        "projections-spark": projections_spark,
        "remote": remote,
    }
    unknown = [name for name in sys.argv[1:] if name not in parts]
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}: {', '.join(parts)}.", file=sys.stderr)
        return 2
    short = 0
    for part in [parts[name] for name in sys.argv[1:] or parts]:
        for row in part.rows():
            short += not row.reached
            table.add_row(row.what, row.measured, row.must_reach, "ok" if row.reached else "SHORT", row.detail)
            print(f"{row.what}: {row.measured} (must reach {row.must_reach})", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
