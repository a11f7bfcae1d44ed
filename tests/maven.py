"""Jars that tests need besides PySpark's own: `scripts/jars.sh` fetches them once, with Maven.

Without Maven the tests that need them are left out, and the last lines of the run say so.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[1] / "scripts" / "jars.sh"
_LEFT_OUT = "needs jars from Maven"


@functools.cache
def jars(profile: str) -> tuple[Path, ...]:
    """The jars of one profile of tests/jars/pom.xml; none if they cannot be had."""
    done = subprocess.run([str(_SCRIPT), profile], capture_output=True, text=True)
    return tuple(sorted(Path(done.stdout.strip()).glob("*.jar"))) if done.returncode == 0 else ()


def require_jars(profile: str) -> tuple[Path, ...]:
    """The jars of a profile. The test that asks for them is left out if they cannot be had."""
    return jars(profile) or pytest.skip(f"{_LEFT_OUT}: {profile}")


def left_out(reasons: Iterable[str]) -> list[str]:
    """The last lines of a run, by the reasons why tests were skipped."""
    count = sum(_LEFT_OUT in reason for reason in reasons)
    if not count:
        return []
    return [
        f"Left out: {count} tests on S3 or HDFS that need jars from Maven.",
        "To run them, install it (Debian, Ubuntu: apt install maven) and run make test again.",
    ]
