"""The example of projections: its figures are right, also when it is run again over what it left."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from holdfast.projections import open_projections

EXAMPLE = Path(__file__).parents[2] / "examples/turnover.py"


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_turnover_live_and_rebuilt(tmp_path: Path) -> None:
    folder = tmp_path / "a shop"
    for _ in range(2):
        out = run(str(folder))
        assert [line.split()[1] for line in out.splitlines() if line.startswith("  version")] == ["1,", "2,"]
        assert "folded anew" in out
        with open_projections(f"sqlite:///{tmp_path}/a%20shop/shop.db", read_only=True) as store:
            expected: Counter[str] = Counter()
            for event in store.read_all():
                sale = event.json()
                day = datetime.fromtimestamp(event.time_ms // 1000, UTC).date()
                cents = {"placed": 0, "paid": sale["cents"], "refunded": -sale["cents"]}[event.type]
                expected[f"{sale['shop']} {day}"] += cents
            found = {key.decode(): int(value) for key, value in store.view("turnover").scan()}
            assert found == expected
            assert len(found) == 6
            (status,) = store.projections()
            assert (status.version, status.lag.events, status.dead_letters) == (2, 0, 0)
        for key, cents in found.items():
            assert f"    {key}  {cents / 100:>10,.2f}\n" in out


def test_it_needs_no_directory() -> None:
    assert "folded anew" in run()
