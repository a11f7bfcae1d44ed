"""No two classes of a module's top level share a name, so that a search for one finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import holdfast

SOURCES = Path(holdfast.__file__).parent
ONE_IN_PROCESS_AND_ONE_ON_SPARK = {"ProjectionRunner": ["projections/runner.py", "projections/spark/runner.py"]}


def test_no_two_classes_share_a_name() -> None:
    where = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(SOURCES)))
    assert len(where) > 300
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == ONE_IN_PROCESS_AND_ONE_ON_SPARK
