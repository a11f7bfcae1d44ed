"""RocksDB: whose directory it is, damage, limits, and writes that fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from holdfast.errors import Conflict, Corrupt, Invalid, NotFound
from holdfast.storage.kv.backend import Changes
from holdfast.storage.kv.rocksdb import RocksdbBackend
from holdfast.storage.kv.rocksdb_directory import MARK, TEXT
from holdfast.storage.kv.rocksdb_looking import RocksdbLooker


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "index")


@pytest.fixture
def backend(path: str) -> Iterator[RocksdbBackend]:
    backend = RocksdbBackend(path)
    yield backend
    backend.close()


def puts(number: int, count: int = 100, size: int = 1000) -> Changes:
    return {"results": {b"%03d-%05d" % (number, key): os.urandom(size) for key in range(count)}}


def commit(backend: RocksdbBackend, changes: Changes) -> None:
    backend.write(changes)
    backend.commit()


def killed_after(path: str, commits: int) -> None:
    """Leave a log that was never turned into a table, as a crash does."""
    program = (
        f"import sys, os; sys.path[:] = {sys.path!r}\n"
        "from test_rocksdb import RocksdbBackend, commit, puts\n"
        f"backend = RocksdbBackend({path!r})\n"
        f"for number in range({commits}): commit(backend, puts(number))\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9


def count(path: str) -> int:
    backend = RocksdbBackend(path)
    try:
        return sum(1 for _ in backend.scan("results", b""))
    finally:
        backend.close()


@pytest.mark.parametrize("spelling", ["same", "link", "dots"])
def test_open_twice_in_a_process_is_refused(backend: RocksdbBackend, path: str, tmp_path: Path, spelling: str) -> None:
    """RocksDB's own lock knows paths by their spelling: through a link, the same directory would open twice."""
    link = tmp_path / "link"
    link.symlink_to(path)
    second = {"same": path, "link": str(link), "dots": f"{path}/../index"}[spelling]
    with pytest.raises(Conflict) as caught:
        RocksdbBackend(second)
    assert caught.value.code == "index.in-use"
    commit(backend, puts(1))
    backend.close()
    RocksdbBackend(second).close()


def test_open_in_another_process_is_refused(backend: RocksdbBackend, path: str) -> None:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from holdfast.storage.kv.rocksdb import RocksdbBackend\n"
        f"try: RocksdbBackend({path!r})\n"
        "except Exception as error: print(error.code)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert told == "index.in-use\n"


def test_directories_that_are_not_ours_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, options in (("pickled", Options()), ("raw", Options(raw_mode=True))):
        database = Rdict(str(tmp_path / name), options)
        database[b"key"] = b"value"
        database.close()
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / MARK).write_bytes(b"Holdfast index, RocksDB, layout 2\n")
    for name in ("other", "file", "pickled", "raw", "newer"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(Invalid) as caught:
            RocksdbBackend(str(tmp_path / name))
        assert caught.value.code == "index.not-ours"
        assert sorted(tmp_path.rglob("*")) == before


def test_index_that_was_opened_in_pickled_mode_is_refused(path: str) -> None:
    RocksdbBackend(path).close()
    Rdict(path, Options()).close()
    with pytest.raises(Invalid):
        RocksdbBackend(path)


@pytest.mark.parametrize("left", [b"", TEXT[:10]])
def test_directory_with_half_a_mark_is_finished(path: str, left: bytes) -> None:
    os.makedirs(path)
    Path(path, MARK).write_bytes(left)
    RocksdbBackend(path).close()
    assert Path(path, MARK).read_bytes() == TEXT


def test_session_beyond_the_limit_is_refused_as_a_whole(path: str) -> None:
    backend = RocksdbBackend(path, limit=1 << 20)
    backend.write(puts(1, 100))
    with pytest.raises(Invalid, match="maxOffsetsPerTrigger"):
        backend.write(puts(2, 1000))
    for call in (lambda: backend.write(puts(3, 1)), backend.commit):
        with pytest.raises(Invalid) as caught:
            call()
        assert caught.value.code == "index.session-too-large"
    assert list(backend.scan("results", b"")) == []
    commit(backend, puts(4, 10))
    backend.close()
    assert count(path) == 10


def test_scan_ends_where_the_prefix_does(backend: RocksdbBackend) -> None:
    """The iterator has a pointer to the bound's bytes, which must not be gone before it."""
    commit(backend, {"meta": {b"s/a": b"", b"t": b""}, "results": {b"key": b"", b"\xff\xff": b""}})
    for _ in range(100):
        assert list(backend.scan("meta", bytes(bytearray(b"s/")))) == [(b"s/a", b"")]
        assert list(backend.scan("results", b"\xff")) == [(b"\xff\xff", b"")]
        assert [key for key, _ in backend.scan("results", b"")] == [b"key", b"\xff\xff"]


def test_scan_is_of_one_moment(backend: RocksdbBackend) -> None:
    commit(backend, puts(1, 50))
    scan = backend.scan("results", b"")
    next(scan)
    commit(backend, {"results": {**puts(0, 10)["results"], b"001-00007": None}})
    assert len(list(scan)) == 49


def test_scan_of_an_index_that_was_closed_is_an_error_not_an_end(backend: RocksdbBackend, path: str) -> None:
    commit(backend, puts(1, 50))
    scan = backend.scan("results", b"")
    next(scan)
    backend.close()
    with pytest.raises(Invalid):
        next(scan)
    assert count(path) == 50  # and it does not keep the directory locked
    for call in (lambda: backend.read("meta", b"a"), lambda: backend.scan("meta", b""), backend.commit):
        with pytest.raises(Invalid) as caught:
            call()
        assert caught.value.code == "index.closed"


def test_damaged_table_is_noticed_by_reads_and_scans(path: str) -> None:
    backend = RocksdbBackend(path)
    commit(backend, puts(1, 2000))
    backend.close()
    RocksdbBackend(path).close()  # turns the log into a table
    (table,) = Path(path).glob("*.sst")
    body = bytearray(table.read_bytes())
    body[len(body) // 2] ^= 1
    table.write_bytes(body)
    backend = RocksdbBackend(path)
    with pytest.raises(Corrupt):
        list(backend.scan("results", b""))
    with pytest.raises(Corrupt):
        [backend.read("results", b"001-%05d" % key) for key in range(2000)]
    backend.close()


def log_of(path: str) -> tuple[Path, bytearray]:
    file = max(Path(path).glob("*.log"))
    return file, bytearray(file.read_bytes().rstrip(b"\0"))


def test_commit_that_was_cut_short_is_left_out(path: str) -> None:
    killed_after(path, 5)
    file, body = log_of(path)
    file.write_bytes(body[:-1000])
    assert count(path) == 400


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_damage_in_the_log_is_not_passed_over(path: str, place: float) -> None:
    """RocksDB's default would drop every commit from there on, without a word."""
    killed_after(path, 5)
    file, body = log_of(path)
    body[int(len(body) * place)] ^= 1
    file.write_bytes(body)
    with pytest.raises(Corrupt) as caught:
        RocksdbBackend(path)
    assert caught.value.code == "index.damaged"


FULL = """
import resource, sys
sys.path[:] = {path!r}
from test_rocksdb import RocksdbBackend, commit, puts
from holdfast.errors import OutcomeUnknown, Unavailable
backend = RocksdbBackend({where!r})
commit(backend, puts(1, 10))
scan = backend.scan("results", b"")
next(scan)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        commit(backend, puts(2, 2000))
    except Unavailable as error:
        print(error.code)
    print(sum(1 for _ in backend.scan("results", b"")))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
try:
    commit(backend, puts(2, 2000))
except OutcomeUnknown as error:
    print(error.code)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
commit(backend, puts(3, 20))
backend.close()
"""


def test_disk_that_takes_no_more(path: str) -> None:
    """A write that fails applied nothing, now or when the log is read again; and the next one goes through.

    Where the log cannot be read again, what became of the write is not claimed to be known.
    """
    done = subprocess.run(
        [sys.executable, "-c", FULL.format(path=sys.path, where=path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [*["index.unavailable", "10"] * 2, "index.outcome-unknown"], done.stderr
    assert done.returncode == 0, done.stderr
    assert count(path) == 30


# Looking.


def test_looking_writes_nothing_there(backend: RocksdbBackend, path: str) -> None:
    commit(backend, puts(1))
    backend.close()
    before = {file.name: file.stat().st_mtime_ns for file in Path(path).iterdir()}
    looker = RocksdbLooker(path)
    assert sum(1 for _ in looker.scan("results", b"")) == 100
    looker.close()
    with pytest.raises(Invalid):
        looker.read("results", b"a")
    assert {file.name: file.stat().st_mtime_ns for file in Path(path).iterdir()} == before


def test_looking_while_logs_become_tables_and_tables_are_replaced(backend: RocksdbBackend, path: str) -> None:
    """Each look sees at least what was committed when it began, and goes on to, whatever becomes of the files."""
    committed = 0
    is_over = threading.Event()

    def write_on() -> None:
        nonlocal committed
        while not is_over.wait(0.005):  # or a look would never come between
            commit(backend, {"results": {b"number": b"%d" % (committed + 1)}})
            committed += 1
            if committed % 5 == 0:
                backend._opened().raw.flush()

    thread = threading.Thread(target=write_on)
    thread.start()
    try:
        for _ in range(50):
            before = committed
            looker = RocksdbLooker(path)
            found = looker.read("results", b"number")
            assert int(found or b"0") >= before
            assert list(looker.scan("results", b"")) == ([(b"number", found)] if found else [])
            looker.close()
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("left", [None, b"", TEXT[:10], TEXT])
def test_looking_at_what_a_crash_left_of_a_new_index(path: str, left: bytes | None) -> None:
    os.makedirs(path)
    if left is not None:
        Path(path, MARK).write_bytes(left)
    with pytest.raises(NotFound):
        RocksdbLooker(path)


def test_looking_at_something_else(tmp_path: Path) -> None:
    (tmp_path / MARK).write_bytes(b"Holdfast index, RocksDB, layout 2\n")
    with pytest.raises(Invalid) as caught:
        RocksdbLooker(str(tmp_path))
    assert caught.value.code == "index.not-ours"
