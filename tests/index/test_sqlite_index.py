"""What is SQLite's own: its files, its errors, its lock, and processes that fork."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Conflict, Corrupt, Invalid, OutcomeUnknown, Unavailable
from holdfast.index import Index, open_index, session
from holdfast.index.records import SCHEMA
from holdfast.storage.kv.sqlite import SqliteStore
from holdfast.testing.conformance.index.subject import contents, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "index.db"


@pytest.fixture
def index(path: Path) -> Iterator[Index]:
    with open_index(f"sqlite:///{path}") as index:
        yield index


def writer_of(index: Index) -> sqlite3.Connection:
    store = index._store
    assert isinstance(store, SqliteStore)
    return store.writer


def write_much(index: Index) -> None:
    for number in range(session.HELD_CHANGES + 10):
        index.results.put(b"%06d" % number, bytes(100))


def test_commits_are_synchronised_in_full(index: Index) -> None:
    writer = writer_of(index)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)


def test_every_new_name_is_synchronised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's own entry and those of the folders above it; SQLite does the content of its files."""
    synced: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        really(descriptor)
        found = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append(found + (" with the database" if path.exists() else ""))

    monkeypatch.setattr(os, "fsync", fsync)
    open_index(f"sqlite:///{path}").close()
    assert synced == [
        str(path.parents[3]),  # which has the lowest folder that was there: its maker may have died too early
        str(path.parents[2]),
        str(path.parents[1]),
        f"{path.parent} with the database",
    ]


def test_every_spelling_of_a_path_opens_the_same_file(tmp_path: Path) -> None:
    odd = tmp_path / "a b%20?#ü.db"
    quoted = str(tmp_path) + "/a%20b%2520%3F%23ü.db"
    for url in (f"sqlite:///{quoted}", f"sqlite:////{quoted}", f"SQLite:///{quoted}", str(odd), odd):
        with open_index(url) as index:
            assert odd.exists()
            assert index.address.startswith("sqlite:////")
            with open_index(f"sqlite:///{tmp_path}/other.db") as beside:
                assert beside.address != index.address


@pytest.mark.parametrize(
    "wrong",
    ["sqlite://", "sqlite:///", "sqlite://relative.db", "sqlite://:memory:", "sqlite:///x?mode=ro", "sqlite:///x%00"],
)
def test_addresses_that_are_refused(wrong: str) -> None:
    with pytest.raises(Invalid):
        open_index(wrong)


def test_tables_as_they_are_documented(index: Index, path: Path) -> None:
    fill(index, 2)
    with sqlite3.connect(path) as foreign:
        found = foreign.execute("SELECT key, value FROM results ORDER BY key").fetchall()
    foreign.close()
    assert found == [(b"key-000000", b"value-0"), (b"key-000001", b"value-1")]


# One at a time.


def other_process(path: Path, what: str) -> subprocess.CompletedProcess[str]:
    program = f"from holdfast import open_index\nindex = open_index('sqlite:///{path}')\n{what}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_second_process_is_refused_and_told_who(index: Index, path: Path) -> None:
    refused = other_process(path, "")
    assert refused.returncode == 1
    assert "Conflict" in refused.stderr
    assert f"process {os.getpid()}" in refused.stderr
    index.close()
    assert other_process(path, "print('fine')").stdout == "fine\n"


def test_links_lead_to_the_same_lock(index: Index, path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path.parent)
    (tmp_path / "link.db").symlink_to(path)
    for other in (tmp_path / "link" / "index.db", tmp_path / "link.db", Path(f"{path.parent}/../folder/index.db")):
        with pytest.raises(Conflict) as caught:
            open_index(f"sqlite:///{other}")
        assert caught.value.code == "index.in-use"


def test_index_that_nobody_closed_is_let_go_with_its_last_reference(path: Path) -> None:
    index = open_index(f"sqlite:///{path}")
    fill(index)
    index.begin()
    write_much(index)
    del index
    with open_index(f"sqlite:///{path}") as again:
        assert len(contents(again)) == 3


def test_opening_that_fails_does_not_keep_the_lock(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database, and long enough to be looked at" * 100)
    for _ in range(2):
        with pytest.raises(Corrupt):
            open_index(f"sqlite:///{path}")
    path.unlink()
    open_index(f"sqlite:///{path}").close()


# Forks.


FORKING = """
import os, sys
from holdfast import open_index
index = open_index(sys.argv[1])
index.begin()
for number in range(5000):
    index.results.put(b"%06d" % number, bytes(2000))    # more than SQLite's cache: part of it is in the log
child = os.fork()
if child == 0:
    sys.exit(0)                           # with all that the end of an interpreter does
else:
    os.waitpid(child, 0)
    for number in range(0, 5000, 7):
        index.results.put(b"%06d" % number, b"changed")
    index.commit()
    print("committed", flush=True)
"""


def test_forked_child_that_ends_does_not_undo_the_parents_session(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, f"sqlite:///{path}"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("committed\n", "")
    with open_index(f"sqlite:///{path}") as index:
        assert len(contents(index)) == 5000
        assert writer_of(index).execute("PRAGMA integrity_check").fetchone() == ("ok",)


# The medium's failures, real ones.


def test_full_database(index: Index) -> None:
    fill(index)
    writer = writer_of(index)
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    for _ in range(2):
        with pytest.raises(Unavailable, match="full") as caught, index.session():
            write_much(index)
        assert caught.value.next_step is not None
        assert "room" in caught.value.next_step
    assert len(contents(index)) == len(index.checkpoints.read_all_checkpoints()) == 3
    writer.execute("PRAGMA max_page_count = 100000")
    with index.session():
        write_much(index)
    assert len(contents(index)) == session.HELD_CHANGES + 13


def test_database_that_cannot_be_written(index: Index) -> None:
    fill(index)
    writer_of(index).execute("PRAGMA query_only = ON")
    with pytest.raises(Unavailable), index.session():
        index.results.put(b"k", b"v")
    assert len(contents(index)) == 3


def test_database_that_somebody_else_writes(index: Index, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(index)
    writer_of(index).execute("PRAGMA busy_timeout = 50")
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"), index.session():
        index.results.put(b"k", b"v")
    assert len(contents(index)) == 3
    foreign.execute("ROLLBACK")
    foreign.close()
    with index.session():
        index.results.put(b"k", b"v")
    assert len(contents(index)) == 4


def test_disk_that_fails_during_a_commit(path: Path) -> None:
    """A limit on the size of files makes the write to the log fail: what is there is not known until it is opened."""
    index = open_index(f"sqlite:///{path}")
    fill(index)
    log = os.path.getsize(f"{path}-wal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log + 100, hard))
    try:
        with pytest.raises(OutcomeUnknown), index.session():
            index.results.put(b"k", b"v" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for call in (lambda: index.results.get(b"k"), lambda: index.checkpoints.write_config_hash(1), index.reset):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.code == "index.lost"
    index.close()
    with open_index(f"sqlite:///{path}") as index:
        assert len(contents(index)) == len(index.checkpoints.read_all_checkpoints()) == 3


def test_damaged_database(path: Path) -> None:
    with open_index(f"sqlite:///{path}") as index, index.session():
        write_much(index)
    body = bytearray(path.read_bytes())
    for page in range(4096, len(body), 4096):
        body[page : page + 200] = b"\xee" * 200
    path.write_bytes(body)
    with pytest.raises(Corrupt) as caught, open_index(f"sqlite:///{path}") as index:
        contents(index)
    assert caught.value.next_step
    assert path.read_bytes() == body


def test_database_of_something_else_is_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE results (id INTEGER)")
    foreign.commit()
    foreign.close()
    body = path.read_bytes()
    with pytest.raises(Invalid) as caught:
        open_index(f"sqlite:///{path}")
    assert caught.value.code == "index.foreign"
    assert path.read_bytes() == body


def test_tables_of_a_newer_release(path: Path) -> None:
    with open_index(f"sqlite:///{path}") as index:
        fill(index)
        writer_of(index).execute(f"PRAGMA user_version = {SCHEMA.version + 1}")
    body = path.read_bytes()
    with pytest.raises(Invalid, match="newer release"):
        open_index(f"sqlite:///{path}")
    assert path.read_bytes() == body


@pytest.mark.parametrize("kind", ["directory", "below a file"])
def test_path_where_nothing_can_be(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    where = tmp_path / ("directory" if kind == "directory" else "file/index.db")
    with pytest.raises(Unavailable):
        open_index(f"sqlite:///{where}")


def test_scan_that_outlives_its_index(path: Path) -> None:
    index = open_index(f"sqlite:///{path}")
    fill(index)
    scan = index.results.scan()
    next(scan)
    index.close()
    with pytest.raises(Invalid, match="closed"):
        list(scan)


def test_scans_that_nobody_finishes_let_go_of_their_connections(index: Index, path: Path) -> None:
    fill(index)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        next(index.results.scan())
    assert len(os.listdir("/proc/self/fd")) <= before + 3
