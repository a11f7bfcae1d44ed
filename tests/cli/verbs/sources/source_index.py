"""An index read, damaged and held open past Holdfast."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HASH = 0xDEADBEEF12345678
KAFKA = b'{"orders":{"10":42,"0":17,"2":9}}'


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def contents(path: Path) -> list[tuple[object, ...]]:
    """Every record and result, read past Holdfast."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        both = "SELECT 'meta', * FROM meta UNION ALL SELECT 'results', * FROM results ORDER BY 1, 2"
        return database.execute(both).fetchall()


def keys(path: Path) -> list[bytes]:
    return [row[1] for row in contents(path)]  # type: ignore[misc]


def damage(path: Path, key: bytes) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute("UPDATE meta SET value = x'0102030405060708' WHERE key = ?", (key,)).rowcount == 1


@contextlib.contextmanager
def held_by_another(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has it open, and does as much as each line that it is sent says."""
    code = (
        "import sys, holdfast\n"
        "with holdfast.open_index(sys.argv[1]) as index:\n"
        "    print('open', flush=True)\n"
        "    for number, line in enumerate(sys.stdin):\n"
        "        with index.session():\n"
        "            index.checkpoints.stage_checkpoint('other', number)\n"
        "        print('written', flush=True)\n"
    )
    words = [sys.executable, "-c", code, url_of(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "open\n"
        try:
            yield child
        finally:
            child.stdin.close()
            assert child.wait(30) == 0
