"""Spark's JVM is asked in one module only, so that Spark Connect can be added there."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast

SOURCES = Path(holdfast.__file__).parent
OF_THE_JVM = re.compile(
    r"\b(_jdf|_jo|_jvm|_jsparkSession|_jsc|_gateway|_active_spark_context|sparkContext|SparkContext|parallelize)\b"
    r"|\.rdd\b|\bSparkSession\.active\b|\blaunch_gateway\b|\b(?:analysed|optimised)_plan\([^)]*\)\."
)


def uses(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if OF_THE_JVM.search(line)]


def test_nothing_else_asks_the_jvm() -> None:
    found = {
        str(path.relative_to(SOURCES)): uses(path)
        for path in SOURCES.rglob("*.py")
        if path != SOURCES / "base" / "jvm.py" and uses(path)
    }
    # A pattern for a message of Spark's, not a use.
    assert [line for line in found.pop("pipeline/supervisor.py") if not line.startswith("_PASSING = ")] == []
    assert found == {}


def test_the_module_is_what_asks() -> None:
    assert len(uses(SOURCES / "base" / "jvm.py")) >= 5
