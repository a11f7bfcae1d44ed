"""`make versions` runs for many minutes. What it runs and prints is checked here; that it works, by running it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


versions = load("versions")
smoke = load("versions_smoke")


def test_each_spark_and_each_python_runs_once_and_the_oldest_spark_is_upgraded() -> None:
    assert versions.matrix(["3.11", "3.12", "3.13"]) == [
        ("3.11", "4.0.5", "4.0.5"),
        ("3.11", "4.1.4", "4.1.4"),
        ("3.11", "4.2.1", "4.2.1"),
        ("3.11", "4.3.0", "4.3.0"),
        ("3.12", "4.3.0", "4.3.0"),
        ("3.13", "4.3.0", "4.3.0"),
        ("3.11", "4.0.5", "4.3.0"),
    ]


def test_all_is_every_pair_and_every_upgrade_to_the_newest() -> None:
    runs = versions.matrix(["3.11", "3.12", "3.13"], is_full=True)
    assert len({run for run in runs if run.first == run.then}) == 12
    assert [(run.first, run.then) for run in runs[12:]] == [(old, "4.3.0") for old in ("4.0.5", "4.1.4", "4.2.1")]


def test_what_is_not_found_is_left_out() -> None:
    assert {run.python for run in versions.matrix(["3.12"])} == {"3.12"}
    assert versions.find_python("3.1234") is None


def test_the_newest_spark_is_the_pinned_one_and_the_pythons_are_the_supported_ones() -> None:
    pinned = (ROOT / "constraints.txt").read_text()
    assert f"pyspark=={versions.SPARKS[-1]}\n" in pinned
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    supported = [name.rpartition(" ")[2] for name in classifiers if re.search(r":: 3\.\d+$", name)]
    assert list(versions.PYTHONS) == supported


def test_every_pin_but_those_of_pyspark_is_kept() -> None:
    pins = versions.constraints_for("4.0.5", "pandas==2.3.3\npy4j==0.10.9.9\npyspark==4.3.0\npytz==2026.6\n")
    assert pins == "pandas==2.3.3\npytz==2026.6\npyspark==4.0.5\n"


def test_a_failure_is_in_the_table() -> None:
    upgrade, plain = versions.matrix(["3.11"])[-1], versions.matrix(["3.11"])[0]
    assert versions.table([(plain, []), (upgrade, ["rocksdb"])]).splitlines()[2:] == [
        "| 4.0.5 | 3.11 | ok | ok | ok |",
        "| 4.0.5, then 4.3.0 | 3.11 | ok | failed | ok |",
    ]


def test_the_readme_shows_the_table_of_these_versions() -> None:
    results = [(run, []) for run in versions.matrix(versions.PYTHONS)]
    assert versions.table(results) in (ROOT / "README.md").read_text()


def test_the_smoke_program_knows_every_state_and_works_out_what_is_due() -> None:
    assert list(smoke.STATES) == list(versions.STATES)
    epochs = smoke.sums_by_epoch()
    assert len(epochs) == smoke.FILES
    assert sum(total for _, total in smoke.merged(epochs)) == sum(
        amount for lines in smoke.orders() for _, amount in lines
    )


def test_a_row_that_is_not_due_fails_the_smoke_program(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="rows: found 1, and 2 is due"):
        smoke.expect("rows", 1, 2)
    script = "import sys; sys.exit('rows: found 1, and 2 is due')"
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{script}\n")
    (tmp_path / "python").chmod(0o755)
    assert not versions.smoke(tmp_path / "python", tmp_path / "python", "hdfs")


def test_the_options_are_told() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "versions.py"), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--all" in done.stdout
