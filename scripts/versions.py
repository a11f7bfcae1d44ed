"""`make versions`: a pipeline is killed and goes on, on each supported Spark and Python, and through an upgrade.

    python scripts/versions.py          # each Spark on the oldest Python, each Python on the newest Spark, one upgrade
    python scripts/versions.py --all    # every Spark on every Python, and an upgrade from every Spark to the newest

Each pair has an environment of its own with what `constraints.txt` pins, but for PySpark. They are kept in
`$XDG_CACHE_HOME/holdfast/versions` (`~/.cache` by default) and hold no Holdfast: this checkout's is used.
Prints the table in README.md. Exit code 1 if a pipeline fails, or if no Python is found.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
SMOKE = CHECKOUT / "scripts" / "versions_smoke.py"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "versions"

SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
PYTHONS = ("3.11", "3.12", "3.13")
STATES = {"hdfs": "HDFS-backed state", "rocksdb": "RocksDB state", "transform": "`transformWithState`"}
"""As the smoke program names them, and as the table does."""
NOT_OURS = ("pyspark", "py4j")
"""Pins that each environment leaves to PySpark."""


class Run(NamedTuple):
    """A pipeline that begins on one Spark, is killed, and goes on: on the same, or on a newer one."""

    python: str
    first: str
    then: str


def matrix(pythons: Sequence[str], *, is_full: bool = False) -> list[Run]:
    """What to run where these versions of Python are found. Pure."""
    newest = SPARKS[-1]
    runs = [
        Run(python, spark, spark)
        for spark in SPARKS
        for python in pythons
        if is_full or spark == newest or python == pythons[0]
    ]
    return runs + [Run(pythons[0], spark, newest) for spark in (SPARKS[:-1] if is_full else SPARKS[:1])]


def table(results: Iterable[tuple[Run, Collection[str]]]) -> str:
    """The runs, each with the states in which its pipeline failed, as README.md shows them. Pure."""
    rows = [["Spark", "Python", *STATES.values()], ["---"] * (2 + len(STATES))]
    for run, failed in results:
        spark = run.first if run.first == run.then else f"{run.first}, then {run.then}"
        rows.append([spark, run.python, *("failed" if state in failed else "ok" for state in STATES)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def constraints_for(spark: str, pinned: str) -> str:
    """The pins of constraints.txt with this PySpark in the place of its own. Pure."""
    kept = [line for line in pinned.splitlines() if line.partition("==")[0] not in NOT_OURS]
    return "\n".join([*kept, f"pyspark=={spark}", ""])


def find_python(version: str) -> str | None:
    """The interpreter that `python3.N` on PATH is; None if there is none. With pyenv also one that is not activated."""
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    ask = "import sys; print(sys.executable)"
    settings = {**os.environ, "PYENV_VERSION": version}
    done = subprocess.run([found, "-c", ask], capture_output=True, text=True, env=settings)
    return done.stdout.strip() if done.returncode == 0 else None


def environment(spark: str, python: str, interpreter: str) -> Path:
    """The interpreter of an environment with these versions; made, or made anew, where it is not as it should be."""
    place = CACHE / f"spark-{spark}-python-{python}"
    pins = constraints_for(spark, (CHECKOUT / "constraints.txt").read_text())
    wanted = (CHECKOUT / "pyproject.toml").read_text()
    stamp, made_of = place / "made-of", hashlib.sha256(f"{interpreter}\n{pins}{wanted}".encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != made_of:
        print(f"installing PySpark {spark} for Python {python} in {place}", flush=True)
        uv = str(CHECKOUT / "scripts" / "uv.sh")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", interpreter, str(place)], check=True)
        (place / "constraints.txt").write_text(pins)
        pinned = ["-c", str(place / "constraints.txt"), "--build-constraint", str(place / "constraints.txt")]
        what = ["-r", "pyproject.toml", "--extra", "spark", "--extra", "delta"]
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(place), *pinned, *what], check=True)
        stamp.write_text(made_of)
    return place / "bin" / "python"


def smoke(first: Path, then: Path, state: str) -> bool:
    """Whether a pipeline that was killed with the one interpreter went on exactly with the other."""
    with tempfile.TemporaryDirectory(prefix="holdfast-versions-") as folder:
        settings = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "PYTHONNOUSERSITE": "1"}
        settings.pop("SPARK_HOME", None)  # it would take the place of the environment's Spark
        for half, python in ("begin", first), ("finish", then):
            command = [str(python), str(SMOKE), half, folder, state]
            done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                print(f"{half}, {state}: failed\n{done.stdout}", flush=True)
                return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every Spark on every Python, every upgrade to the newest")
    is_full = parser.parse_args().all
    interpreters = {version: found for version in PYTHONS if (found := find_python(version))}
    missing = [f"python{version}" for version in PYTHONS if version not in interpreters]
    if not interpreters:
        print(f"None of these is on PATH: {', '.join(missing)}. Install one of them.", file=sys.stderr)
        return 1
    results: list[tuple[Run, list[str]]] = []
    for run in matrix(list(interpreters), is_full=is_full):
        first, then = (environment(spark, run.python, interpreters[run.python]) for spark in (run.first, run.then))
        print(f"Spark {run.first} then {run.then}, Python {run.python}", flush=True)
        results.append((run, [state for state in STATES if not smoke(first, then, state)]))
    print(table(results))
    if missing:
        print(f"Not run, since not found on PATH: {', '.join(missing)}.", file=sys.stderr)
    return 1 if any(failed for _, failed in results) else 0


if __name__ == "__main__":
    sys.exit(main())
