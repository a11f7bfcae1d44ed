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
from holdfast.index.records import SCHEMA
from holdfast.storage.kv.rocksdb import RocksdbReader, RocksdbStore
from holdfast.storage.kv.rocksdb_directory import MARKS, TEXTS
from holdfast.storage.kv.store import WriteBatch

MARK, TEXT = MARKS["index"], TEXTS["index"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "index")


@pytest.fixture
def store(path: str) -> Iterator[RocksdbStore]:
    store = RocksdbStore(path, SCHEMA)
    yield store
    store.close()


def puts(number: int, count: int = 100, size: int = 1000) -> WriteBatch:
    return {"results": {b"%03d-%05d" % (number, key): os.urandom(size) for key in range(count)}}


def commit(store: RocksdbStore, changes: WriteBatch) -> None:
    with store.begin() as transaction:
        transaction.write(changes)


def killed_after(path: str, commits: int) -> None:
    """Leave a log that was never turned into a table, as a crash does."""
    program = (
        f"import sys, os; sys.path[:] = {sys.path!r}\n"
        "from test_rocksdb import SCHEMA, RocksdbStore, commit, puts\n"
        f"store = RocksdbStore({path!r}, SCHEMA)\n"
        f"for number in range({commits}): commit(store, puts(number))\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9


def count(path: str) -> int:
    store = RocksdbStore(path, SCHEMA)
    try:
        return sum(1 for _ in store.scan("results", b"", None))
    finally:
        store.close()


@pytest.mark.parametrize("spelling", ["same", "link", "dots"])
def test_open_twice_in_a_process_is_refused(store: RocksdbStore, path: str, tmp_path: Path, spelling: str) -> None:
    """RocksDB's own lock knows paths by their spelling: through a link, the same directory would open twice."""
    link = tmp_path / "link"
    link.symlink_to(path)
    second = {"same": path, "link": str(link), "dots": f"{path}/../index"}[spelling]
    with pytest.raises(Conflict) as caught:
        RocksdbStore(second, SCHEMA)
    assert caught.value.code == "index.in-use"
    commit(store, puts(1))
    store.close()
    RocksdbStore(second, SCHEMA).close()


def test_open_in_another_process_is_refused(store: RocksdbStore, path: str) -> None:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from holdfast.storage.kv.rocksdb import RocksdbStore\n"
        "from holdfast.index.records import SCHEMA\n"
        f"try: RocksdbStore({path!r}, SCHEMA)\n"
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
            RocksdbStore(str(tmp_path / name), SCHEMA)
        assert caught.value.code == "index.not-ours"
        assert sorted(tmp_path.rglob("*")) == before


def test_index_that_was_opened_in_pickled_mode_is_refused(path: str) -> None:
    RocksdbStore(path, SCHEMA).close()
    Rdict(path, Options()).close()
    with pytest.raises(Invalid):
        RocksdbStore(path, SCHEMA)


@pytest.mark.parametrize("left", [b"", TEXT[:10]])
def test_directory_with_half_a_mark_is_finished(path: str, left: bytes) -> None:
    os.makedirs(path)
    Path(path, MARK).write_bytes(left)
    RocksdbStore(path, SCHEMA).close()
    assert Path(path, MARK).read_bytes() == TEXT


def test_session_beyond_the_limit_is_refused_as_a_whole(path: str) -> None:
    store = RocksdbStore(path, SCHEMA, limit=1 << 20)
    transaction = store.begin()
    transaction.write(puts(1, 100))
    with pytest.raises(Invalid, match="maxOffsetsPerTrigger"):
        transaction.write(puts(2, 1000))
    for call in (lambda: transaction.write(puts(3, 1)), transaction.commit):
        with pytest.raises(Invalid) as caught:
            call()
        assert caught.value.code == "index.session-too-large"
    assert list(store.scan("results", b"", None)) == []
    commit(store, puts(4, 10))
    store.close()
    assert count(path) == 10


def test_scan_ends_where_the_prefix_does(store: RocksdbStore) -> None:
    """The iterator has a pointer to the bound's bytes, which must not be gone before it."""
    commit(store, {"meta": {b"s/a": b"", b"t": b""}, "results": {b"key": b"", b"\xff\xff": b""}})
    for _ in range(100):
        assert list(store.scan("meta", bytes(bytearray(b"s/")), bytes(bytearray(b"s0")))) == [(b"s/a", b"")]
        assert list(store.scan("results", b"\xff", None)) == [(b"\xff\xff", b"")]
        assert [key for key, _ in store.scan("results", b"", None)] == [b"key", b"\xff\xff"]


def test_scan_is_of_one_moment(store: RocksdbStore) -> None:
    commit(store, puts(1, 50))
    scan = store.scan("results", b"", None)
    next(scan)
    commit(store, {"results": {**puts(0, 10)["results"], b"001-00007": None}})
    assert len(list(scan)) == 49


def test_scan_of_an_index_that_was_closed_is_an_error_not_an_end(store: RocksdbStore, path: str) -> None:
    commit(store, puts(1, 50))
    scan = store.scan("results", b"", None)
    next(scan)
    store.close()
    with pytest.raises(Invalid):
        next(scan)
    assert count(path) == 50  # and it does not keep the directory locked
    for call in (lambda: store.get("meta", b"a"), lambda: store.scan("meta", b"", None), store.begin):
        with pytest.raises(Invalid) as caught:
            call()
        assert caught.value.code == "index.closed"


def test_damaged_table_is_noticed_by_reads_and_scans(path: str) -> None:
    store = RocksdbStore(path, SCHEMA)
    commit(store, puts(1, 2000))
    store.close()
    RocksdbStore(path, SCHEMA).close()  # turns the log into a table
    (table,) = Path(path).glob("*.sst")
    body = bytearray(table.read_bytes())
    body[len(body) // 2] ^= 1
    table.write_bytes(body)
    store = RocksdbStore(path, SCHEMA)
    with pytest.raises(Corrupt):
        list(store.scan("results", b"", None))
    with pytest.raises(Corrupt):
        [store.get("results", b"001-%05d" % key) for key in range(2000)]
    store.close()


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
        RocksdbStore(path, SCHEMA)
    assert caught.value.code == "index.damaged"


FULL = """
import resource, sys
sys.path[:] = {path!r}
from test_rocksdb import SCHEMA, RocksdbStore, commit, puts
from holdfast.errors import OutcomeUnknown, Unavailable
store = RocksdbStore({where!r}, SCHEMA)
commit(store, puts(1, 10))
scan = store.scan("results", b"", None)
next(scan)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        commit(store, puts(2, 2000))
    except Unavailable as error:
        print(error.code)
    print(sum(1 for _ in store.scan("results", b"", None)))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
try:
    commit(store, puts(2, 2000))
except OutcomeUnknown as error:
    print(error.code)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
commit(store, puts(3, 20))
store.close()
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


def test_looking_writes_nothing_there(store: RocksdbStore, path: str) -> None:
    commit(store, puts(1))
    store.close()
    before = {file.name: file.stat().st_mtime_ns for file in Path(path).iterdir()}
    reader = RocksdbReader(path, SCHEMA)
    assert sum(1 for _ in reader.scan("results", b"", None)) == 100
    reader.close()
    with pytest.raises(Invalid):
        reader.get("results", b"a")
    assert {file.name: file.stat().st_mtime_ns for file in Path(path).iterdir()} == before


def test_looking_while_logs_become_tables_and_tables_are_replaced(store: RocksdbStore, path: str) -> None:
    """Each look sees at least what was committed when it began, and goes on to, whatever becomes of the files."""
    committed = 0
    is_over = threading.Event()

    def write_on() -> None:
        nonlocal committed
        while not is_over.wait(0.005):  # or a look would never come between
            commit(store, {"results": {b"number": b"%d" % (committed + 1)}})
            committed += 1
            if committed % 5 == 0:
                store._opened().raw.flush()

    thread = threading.Thread(target=write_on)
    thread.start()
    try:
        for _ in range(50):
            before = committed
            reader = RocksdbReader(path, SCHEMA)
            found = reader.get("results", b"number")
            assert int(found or b"0") >= before
            assert list(reader.scan("results", b"", None)) == ([(b"number", found)] if found else [])
            reader.close()
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("left", [None, b"", TEXT[:10], TEXT])
def test_looking_at_what_a_crash_left_of_a_new_index(path: str, left: bytes | None) -> None:
    os.makedirs(path)
    if left is not None:
        Path(path, MARK).write_bytes(left)
    with pytest.raises(NotFound):
        RocksdbReader(path, SCHEMA)


def test_looking_at_something_else(tmp_path: Path) -> None:
    (tmp_path / MARK).write_bytes(b"Holdfast index, RocksDB, layout 2\n")
    with pytest.raises(Invalid) as caught:
        RocksdbReader(str(tmp_path), SCHEMA)
    assert caught.value.code == "index.not-ours"
