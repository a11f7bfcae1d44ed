"""What every backend of the key-value layer has to do.

class TestMyStore(KeyValueConformance):
    abilities = KeyValueAbilities(persistent=True, writers="exclusive")

    @pytest.fixture(autouse=True)
    def place(self, tmp_path): self.path = tmp_path / "store"

    def open_store(self, schema): return MyStore(self.path, schema)

    def open_reader(self, schema): return MyReader(self.path, schema)
"""

from __future__ import annotations

import os
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid, NotFound
from holdfast.storage.kv.store import (
    Keyspace,
    KeyValueStore,
    Kind,
    Reader,
    Row,
    Schema,
    SqlStore,
    SqlTransaction,
    WriteBatch,
    Writers,
    end_of,
)

SCHEMAS = {
    "index": Schema(
        kind="index",
        keyspaces=(Keyspace("meta", "meta", b"m"), Keyspace("results", "results", b"r")),
        application_id=0x48664978,
        version=1,
    ),
    "store": Schema(
        kind="store",
        keyspaces=(
            Keyspace("events", "holdfast_events", b"g/"),
            Keyspace("results", "holdfast_views", b"v/"),
            Keyspace("meta", "holdfast_meta", b"m/"),
        ),
        application_id=0x48664573,
        version=1,
        settings=("cache_size = -65536", "wal_autocheckpoint = 8192"),
    ),
}
"""One like that of an index, one like that of a store of events; both have `meta` and `results`."""
MEGABYTE = 1 << 20
ODD = [
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"a\xff",
    b"aa",
    b"b",
    b"\x7f",
    b"\x80",
    b"\xfe\xff",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\0",
]


class KeyValueAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend does and another does not. Declared, so that a suite never finds out by skipping."""

    persistent: bool
    """What was committed is there when the store is opened again."""
    writers: Writers
    """What a second opening for writing does."""
    max_transaction: int | None = None
    sql: bool = False
    scans_one_moment: bool = True
    """A scan shows nothing of what is committed after it began."""
    reads_one_moment: bool = False
    """A read-only opening shows the moment of the opening, and nothing later."""


def puts(numbers: range, value: bytes = b"v", prefix: bytes = b"k") -> dict[bytes, bytes | None]:
    return {prefix + b"%06d" % number: value for number in numbers}


def rows(reader: Any, space: str = "results", prefix: bytes = b"") -> list[Row]:
    return list(reader.scan(space, prefix, end_of(prefix)))


class KeyValueConformance:
    """One store."""

    abilities: KeyValueAbilities
    kind: Kind = "index"

    def open_store(self, schema: Schema) -> KeyValueStore:
        """Open the store under test for writing, always at the same place."""
        raise NotImplementedError

    def open_reader(self, schema: Schema) -> Reader:
        """Open the same place to read only."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self._open: list[Reader] = []
        yield
        for store in reversed(self._open):
            store.close()

    @property
    def schema(self) -> Schema:
        return SCHEMAS[self.kind]

    def open(self) -> KeyValueStore:
        store = self.open_store(self.schema)
        self._open.append(store)
        return store

    def look(self) -> Reader:
        reader = self.open_reader(self.schema)
        self._open.append(reader)
        return reader

    def reopened(self, store: KeyValueStore) -> KeyValueStore:
        """The same store after a close; the very same where nothing would be left of it."""
        if not self.abilities.persistent:
            return store
        store.close()
        return self.open()

    def commit(self, store: KeyValueStore, batch: WriteBatch) -> None:
        with store.begin() as transaction:
            transaction.write(batch)

    # What it says of itself.

    def test_says_what_it_can(self) -> None:
        store = self.open()
        assert store.is_persistent is self.abilities.persistent
        assert store.writers == self.abilities.writers
        assert store.max_transaction == self.abilities.max_transaction
        assert store.durability
        assert not store.durability.endswith(".")
        assert "://" in store.address
        assert isinstance(store, SqlStore) is self.abilities.sql
        assert isinstance(store, KeyValueStore)

    # Reading what was committed.

    def test_new_store_is_empty(self) -> None:
        store = self.reopened(self.open())
        for space in self.schema.names:
            assert rows(store, space) == []
            assert store.get(space, b"k") is None
            assert store.get_many(space, [b"k", b"l"]) == [None, None]

    def test_round_trip(self) -> None:
        store = self.open()
        values: dict[bytes, bytes | None] = {b"empty": b"", b"zeros": bytes(3), b"large": os.urandom(3 * MEGABYTE)}
        values |= {key: b"value of " + key for key in ODD}
        self.commit(store, {"results": dict(values), "meta": {b"empty": b"other"}})
        store = self.reopened(store)
        for key, value in values.items():
            assert store.get("results", key) == value
        assert store.get_many("results", list(values)) == list(values.values())
        assert rows(store) == sorted(values.items())
        assert rows(store, "meta") == [(b"empty", b"other")]

    def test_later_changes_win_and_none_deletes(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(5))})
        with store.begin() as transaction:
            transaction.write({"results": {b"k000001": None, b"k000002": b"first", b"new": b"x", b"never": None}})
            transaction.write({"results": {b"k000001": b"back", b"k000002": b"second", b"k000003": b"x"}})
            transaction.write({"results": {b"k000003": None, b"new": None}, "meta": {}})
        store = self.reopened(store)
        assert rows(store) == [
            (b"k000000", b"v"),
            (b"k000001", b"back"),
            (b"k000002", b"second"),
            (b"k000004", b"v"),
        ]

    def test_keyspaces_are_apart(self) -> None:
        store = self.open()
        spaces = self.schema.names
        self.commit(store, {space: {b"key": space.encode(), b"\xff": b"last"} for space in spaces})
        self.commit(store, {spaces[0]: {b"key": None}})
        store = self.reopened(store)
        assert store.get(spaces[0], b"key") is None
        for space in spaces[1:]:
            assert rows(store, space) == [(b"key", space.encode()), (b"\xff", b"last")]

    def test_scans_by_range(self) -> None:
        store = self.open()
        self.commit(store, {"results": {key: key for key in ODD}, "meta": {b"before": b"", b"zz": b""}})
        ordered = sorted(ODD)
        bounds = [b"", b"a", b"a\0", b"ab", b"\x7f\xff", b"\xff", b"\xff\xff", b"\xff\xff\xff"]
        with store.begin() as transaction:
            for start in bounds:
                for end in [None, *bounds]:
                    for limit in (None, 0, 1, 3, 100):
                        expected = [(key, key) for key in ordered if key >= start and (end is None or key < end)]
                        expected = expected if limit is None else expected[:limit]
                        assert list(store.scan("results", start, end, limit)) == expected, (start, end, limit)
                        assert list(transaction.scan("results", start, end, limit)) == expected, (start, end, limit)

    def test_scans_of_many_keys(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(2345))})
        self.commit(store, {"results": puts(range(1000, 1500)) | dict.fromkeys(puts(range(10)), None)})
        assert [key for key, _ in rows(store)] == sorted(puts(range(10, 2345)))
        assert [key for key, _ in rows(store, prefix=b"k0012")] == sorted(puts(range(1200, 1300)))

    def test_gets_of_many_keys(self) -> None:
        store = self.open()
        self.commit(store, {"results": {b"%d" % number: b"%d" % number for number in range(0, 3000, 2)}})
        keys = [b"%d" % number for number in range(2999, -1, -1)]
        expected = [key if int(key) % 2 == 0 else None for key in keys]
        assert store.get_many("results", keys) == expected
        assert store.get_many("results", [b"2", b"3", b"2"]) == [b"2", None, b"2"]
        assert store.get_many("results", []) == []
        with store.begin() as transaction:
            assert transaction.get_many("results", keys) == expected
            assert transaction.get_many("results", []) == []

    def test_gets_of_many_keys_are_of_one_moment(self) -> None:
        """One thread sets all keys to the same value again and again; whoever reads them sees one value."""
        store = self.open()
        keys = [b"%d" % number for number in range(1200)]
        self.commit(store, {"results": dict.fromkeys(keys, b"0")})
        is_over = threading.Event()

        def write() -> None:
            for number in range(1, 60):
                if is_over.is_set():
                    return
                self.commit(store, {"results": dict.fromkeys(keys, b"%d" % number)})

        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen: set[bytes | None] = set()
            while writer.is_alive() and len(seen) < 5:
                found = set(store.get_many("results", keys))
                assert len(found) == 1
                seen |= found
        finally:
            is_over.set()
            writer.join()

    def test_scan_is_of_one_moment(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(2000))})
        scan = store.scan("results", b"", None)
        seen = [next(scan)]
        self.commit(store, {"results": puts(range(2000), b"new") | puts(range(5), prefix=b"z")})
        seen += scan
        if self.abilities.scans_one_moment:
            assert dict(seen) == puts(range(2000))
        else:
            assert [key for key, _ in seen][:2000] == sorted(puts(range(2000)))

    # Transactions.

    def test_writes_are_seen_after_the_commit_and_not_before(self) -> None:
        store = self.open()
        self.commit(store, {"results": {b"k": b"old", b"gone": b"x"}})
        with store.begin() as transaction:
            transaction.write({"results": {b"k": b"new", b"l": b"new", b"gone": None}})
            for reader in (transaction, store):
                assert reader.get("results", b"k") == b"old"
                assert reader.get_many("results", [b"k", b"l"]) == [b"old", None]
                assert rows(reader) == [(b"gone", b"x"), (b"k", b"old")]
        assert rows(store) == [(b"k", b"new"), (b"l", b"new")]

    def test_reads_of_a_transaction_that_has_spilled_see_what_was_committed(self) -> None:
        """Also what the backend has already: ten megabytes are more than any of them holds back."""
        store = self.open()
        self.commit(store, {"results": {b"k": b"old"}})
        with store.begin() as transaction:
            for number in range(10):
                transaction.write({"results": {b"k": b"new", b"%d" % number: bytes(MEGABYTE)}})
            for reader in (transaction, store):
                assert reader.get("results", b"k") == b"old"
                assert reader.get_many("results", [b"0", b"k", b"9"]) == [None, b"old", None]
                assert rows(reader) == [(b"k", b"old")]
                assert list(reader.scan("results", b"", None, 5)) == [(b"k", b"old")]
        store = self.reopened(store)
        assert [key for key, _ in rows(store)] == [*(b"%d" % number for number in range(10)), b"k"]

    @pytest.mark.parametrize("size", [1, 10 * MEGABYTE])
    def test_rollback_leaves_nothing(self, size: int) -> None:
        store = self.open()
        self.commit(store, {"results": {b"k": b"old"}})
        transaction = store.begin()
        with suppress(ZeroDivisionError), transaction:
            transaction.write({"results": {b"k": b"new", b"l": bytes(size)}})
            raise ZeroDivisionError
        transaction.rollback()
        transaction.commit()
        self.commit(store, {"meta": {b"next": b"x"}})
        store = self.reopened(store)
        assert rows(store) == [(b"k", b"old")]
        assert rows(store, "meta") == [(b"next", b"x")]

    def test_one_that_has_ended_stays_ended(self) -> None:
        store = self.open()
        for end in ("commit", "rollback"):
            transaction = store.begin()
            transaction.write({"results": {end.encode(): b"x"}})
            getattr(transaction, end)()
            for call in (
                partial(transaction.write, {"results": {b"late": b"x"}}),
                partial(transaction.get, "results", b"k"),
            ):
                with pytest.raises(Invalid) as caught:
                    call()
                assert caught.value.code == "transaction.over"
            transaction.commit()
            transaction.rollback()
        assert rows(store) == [(b"commit", b"x")]

    def test_empty_transactions(self) -> None:
        store = self.open()
        store.begin()
        store.begin().commit()
        store.begin().rollback()
        with store.begin() as transaction:
            transaction.write({})
            transaction.write({"results": {}})
        with store.begin() as transaction:
            assert transaction.get("results", b"k") is None
        assert rows(store) == []

    def test_second_one_of_a_thread_is_refused_and_harms_nothing(self) -> None:
        store = self.open()
        with store.begin() as transaction:
            transaction.write({"results": {b"k": b"v"}})
            with pytest.raises(Invalid) as caught, store.begin() as second:
                second.write({"results": {b"k": b"second"}})
            assert caught.value.code == "transaction.nested"
        assert rows(store) == [(b"k", b"v")]

    def test_threads_take_turns(self) -> None:
        """Each adds one to what it has read: none is lost."""
        store = self.open()
        threads, times = 4, 10

        def count() -> None:
            for _ in range(times):
                with store.begin() as transaction:
                    number = int(transaction.get("meta", b"n") or b"0")
                    transaction.write({"meta": {b"n": b"%d" % (number + 1)}})

        running = [threading.Thread(target=count) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert self.reopened(store).get("meta", b"n") == b"%d" % (threads * times)

    def test_threads_read_while_one_writes(self) -> None:
        store = self.open()
        self.commit(store, {"results": {b"k": b"old"}})
        found: list[bytes | None] = []
        with store.begin() as transaction:
            transaction.write({"results": {b"k": b"new"}})
            thread = threading.Thread(target=lambda: found.append(store.get("results", b"k")))
            thread.start()
            thread.join()
        assert found == [b"old"]

    def test_transaction_of_a_thread_that_is_gone_is_rolled_back_by_another(self) -> None:
        store = self.open()
        left: list[Any] = []

        def leave() -> None:
            left.append(store.begin())
            left[0].write({"results": {b"k": b"v"}})

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        left[0].rollback()
        self.commit(store, {"results": {b"l": b"v"}})
        assert rows(store) == [(b"l", b"v")]

    def test_too_large_is_refused_as_a_whole(self) -> None:
        store = self.open()
        limit = store.max_transaction
        if limit is None:
            assert self.abilities.max_transaction is None
            return
        transaction = store.begin()
        transaction.write({"results": {b"first": b"x"}})
        value = bytes(8 * MEGABYTE)
        for number in range(limit // len(value) - 1):
            transaction.write({"results": {b"%d" % number: value}})
        with pytest.raises(Invalid) as caught:
            transaction.write({"results": {b"last": value + value}})
        assert caught.value.code.startswith(f"{self.kind}.")
        assert caught.value.code.endswith("-too-large")
        calls: list[Callable[[], None]] = [lambda: transaction.write({"results": {b"k": b"v"}}), transaction.commit]
        for call in calls:
            with pytest.raises(Invalid):
                call()
        self.commit(store, {"results": {b"next": b"x"}})
        assert rows(store) == [(b"next", b"x")]

    # Others.

    def test_second_writer(self) -> None:
        store = self.open()
        self.commit(store, {"results": {b"k": b"first"}})
        if self.abilities.writers == "exclusive":
            with pytest.raises(Conflict) as caught:
                self.open_store(self.schema)
            assert caught.value.code == f"{self.kind}.in-use"
            self.commit(store, {"results": {b"k": b"second"}})
            assert store.get("results", b"k") == b"second"
            return
        other = self.open()
        assert other.get("results", b"k") == b"first"
        self.commit(other, {"results": {b"k": b"second"}})
        if self.abilities.writers == "shared":
            self.commit(store, {"results": {b"l": b"third"}})
            assert rows(store) == rows(other) == [(b"k", b"second"), (b"l", b"third")]
            return
        for _ in range(2):
            with pytest.raises(Fenced) as fenced:
                self.commit(store, {"results": {b"k": b"third"}})
            assert fenced.value.code == f"{self.kind}.fenced"
        assert rows(other) == [(b"k", b"second")]
        self.commit(other, {"results": {b"k": b"fourth"}})

    def test_writer_that_was_fenced_after_it_read_applies_nothing(self) -> None:
        store = self.open()
        if self.abilities.writers != "fencing":
            return
        self.commit(store, {"meta": {b"n": b"1"}})
        transaction = store.begin()
        assert transaction.get("meta", b"n") == b"1"
        other = self.open()
        self.commit(other, {"meta": {b"n": b"2"}})
        with pytest.raises(Fenced), transaction:
            transaction.write({"meta": {b"n": b"lost"}})
        assert other.get("meta", b"n") == b"2"

    def test_shared_writers_see_what_the_other_has_committed(self) -> None:
        if self.abilities.writers != "shared":
            return
        one, other = self.open(), self.open()
        for number in range(10):
            for store in (one, other):
                with store.begin() as transaction:
                    found = int(transaction.get("meta", b"n") or b"0")
                    transaction.write({"meta": {b"n": b"%d" % (found + 1)}})
            assert one.get("meta", b"n") == other.get("meta", b"n") == b"%d" % (2 * number + 2)

    # Read only.

    def test_nothing_to_read_is_not_found_and_nothing_is_made(self) -> None:
        for _ in range(2):
            with pytest.raises(NotFound) as caught:
                self.open_reader(self.schema)
            assert caught.value.code == f"{self.kind}.none"

    def test_read_only_opening(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(600)), "meta": {b"m": b"x"}})
        reader = self.look()
        assert not isinstance(reader, KeyValueStore)
        assert reader.is_persistent is self.abilities.persistent
        assert rows(reader) == sorted(puts(range(600)).items())
        assert reader.get("meta", b"m") == b"x"
        assert reader.get_many("results", [b"k000599", b"none"]) == [b"v", None]
        assert list(reader.scan("results", b"k0005", None, 2)) == [(b"k000500", b"v"), (b"k000501", b"v")]
        self.commit(store, {"meta": {b"m": b"y"}})
        assert reader.get("meta", b"m") == (b"x" if self.abilities.reads_one_moment else b"y")
        fresh = self.look()
        assert fresh.get("meta", b"m") == b"y"
        fresh.close()
        reader.close()
        self.commit(store, {"meta": {b"m": b"z"}})
        if self.abilities.persistent:
            store.close()
            assert self.look().get("meta", b"m") == b"z"

    # The end.

    def test_closed_store_refuses_everything(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(600))})
        transaction = store.begin()
        transaction.write({"results": {b"never": b"x"}})
        reader = self.look()
        for opened in (reader, store):
            opened.close()
            opened.close()
            for call in (lambda: opened.get("results", b"k"), lambda: rows(opened)):  # noqa: B023 - called at once
                with pytest.raises(Invalid) as caught:
                    call()
                assert caught.value.code == f"{self.kind}.closed"
        for refused in (store.begin, transaction.commit):
            with pytest.raises(Invalid):
                refused()
        transaction.rollback()
        if self.abilities.persistent:
            assert rows(self.open()) == sorted(puts(range(600)).items())

    def test_scan_that_outlives_its_store_is_an_error_not_an_end(self) -> None:
        if not self.abilities.persistent:
            return
        store = self.open()
        self.commit(store, {"results": puts(range(3000))})
        scan = store.scan("results", b"", None)
        next(scan)
        store.close()
        with pytest.raises(HoldfastError):
            list(scan)

    # Forks.

    def test_forked_child_can_do_nothing_and_does_no_harm(self) -> None:
        if not self.abilities.persistent:
            return
        store = self.open()
        self.commit(store, {"results": puts(range(10))})
        transaction = store.begin()
        transaction.write({"results": {b"k000001": b"by the parent", b"large": bytes(10 * MEGABYTE)}})

        def in_child() -> None:
            calls: list[Callable[[], object]] = [
                lambda: store.get("results", b"k000001"),
                lambda: self.commit(store, {"results": {b"k000001": b"by the child"}}),
                transaction.commit,
            ]
            for call in calls:
                with pytest.raises(Invalid):
                    call()
            transaction.rollback()
            store.close()

        assert _forked(in_child) == 0
        transaction.commit()
        assert store.get("results", b"k000001") == b"by the parent"
        store = self.reopened(store)
        assert len(rows(store)) == 11
        assert store.get("results", b"k000001") == b"by the parent"

    # SQL.

    def test_sql_is_part_of_the_transaction(self) -> None:
        store = self.open()
        if not isinstance(store, SqlStore):
            return
        mine = f"mine_{uuid.uuid4().hex}"
        with store.begin() as transaction:
            assert isinstance(transaction, SqlTransaction)
            transaction.execute(f"CREATE TABLE {mine} (id INTEGER PRIMARY KEY, name TEXT)")
            transaction.execute(f"INSERT INTO {mine} VALUES (1, 'one')")
            transaction.write({"results": {b"k": b"v"}})
            assert transaction.execute(f"SELECT name FROM {mine}") == [("one",)]
        assert store.query(f"SELECT id, name FROM {mine}", ()) == [(1, "one")]
        transaction = store.begin()
        assert isinstance(transaction, SqlTransaction)
        with suppress(ZeroDivisionError), transaction:
            transaction.execute(f"INSERT INTO {mine} VALUES (2, 'two')")
            raise ZeroDivisionError
        transaction = store.begin()
        assert isinstance(transaction, SqlTransaction)
        with pytest.raises(Invalid), transaction:
            transaction.execute("COMMIT")
        store = self.reopened(store)
        assert isinstance(store, SqlStore)
        assert store.query(f"SELECT id, name FROM {mine}", ()) == [(1, "one")]


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
