"""Moves modules and rewrites everything that names them: imports, dotted strings, prose.

    python scripts/move.py MAPPING

MAPPING has one move a line: `old.module new.module`, or `tests/old/file.py tests/new/file.py` for a file that has no
dotted name. Run it on a branch before rebasing it onto a tree that has moved. Logger names are an interface: they stay.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "tests", "bench", "examples")
PROSE = ("pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md", "docs")
LOGGER = re.compile(r"getLogger|at_level|set_level")


def file_of(module: str) -> Path:
    path = ROOT / "src" / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def move(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "mv", str(old), str(new)], cwd=ROOT, check=True)


def rewrite_from_imports(text: str, moves: dict[str, str]) -> str:
    """`from package import module`: the only form of import that does not spell the dotted name."""
    lines = text.split("\n")
    edits: list[tuple[int, int, int, str]] = []
    statements: list[tuple[int, int, str]] = []
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        moved = [a for a in node.names if f"{node.module}.{a.name}" in moves]
        if not moved:
            continue
        indent = " " * node.col_offset
        said = []
        kept = [a for a in node.names if a not in moved]
        if kept:
            names = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in kept)
            said.append(f"{indent}from {node.module} import {names}")
        for alias in moved:
            package, _, name = moves[f"{node.module}.{alias.name}"].rpartition(".")
            if alias.asname or name == alias.name:
                said.append(f"{indent}from {package} import {name}" + (f" as {alias.asname}" if alias.asname else ""))
                continue
            taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            taken |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
            if alias.name in taken or name in taken:
                said.append(f"{indent}from {package} import {name} as {alias.name}")
                continue
            said.append(f"{indent}from {package} import {name}")
            for other in ast.walk(tree):
                if isinstance(other, ast.Name) and other.id == alias.name:
                    edits.append((other.lineno, other.col_offset, len(alias.name), name))
        assert node.end_lineno is not None
        statements.append((node.lineno, node.end_lineno, "\n".join(said)))
    for line, column, length, name in sorted(edits, reverse=True):
        raw = lines[line - 1].encode()
        lines[line - 1] = (raw[:column] + name.encode() + raw[column + length :]).decode()
    for first, last, said_text in sorted(statements, reverse=True):
        lines[first - 1 : last] = [said_text]
    return "\n".join(lines)


def rewrite_dotted(text: str, moves: dict[str, str]) -> str:
    if not moves:
        return text
    names = sorted(moves, key=len, reverse=True)
    pattern = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, names)) + r")(?!\w)")
    return "\n".join(
        line if LOGGER.search(line) else pattern.sub(lambda found: moves[found[1]], line) for line in text.split("\n")
    )


def main(mapping: str) -> None:
    modules: dict[str, str] = {}
    for line in Path(mapping).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        old, new = line.split()
        if "/" in old:
            move(ROOT / old, ROOT / new)
            continue
        source = file_of(old)
        package = source.name == "__init__.py"
        target = ROOT / "src" / Path(*new.split("."))
        move(source, target / "__init__.py" if package else target.with_suffix(".py"))
        modules[old] = new
    for top in CODE:
        for path in (ROOT / top).rglob("*.py"):
            before = path.read_text()
            after = rewrite_dotted(rewrite_from_imports(before, modules), modules)
            if after != before:
                path.write_text(after)
    for name in PROSE:
        top_path = ROOT / name
        for path in top_path.rglob("*.md") if top_path.is_dir() else [top_path]:
            before = path.read_text()
            after = rewrite_dotted(before, modules)
            if after != before:
                path.write_text(after)


if __name__ == "__main__":
    main(sys.argv[1])
