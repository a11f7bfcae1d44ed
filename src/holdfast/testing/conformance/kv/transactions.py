"""Transactions: all of a batch or nothing of it, one after another."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from holdfast.errors import Invalid
from holdfast.storage.kv.store import SqlStore, SqlTransaction
from holdfast.testing.conformance.kv.subject import MEGABYTE, KeyValueUnderTest, rows


class TransactionConformance(KeyValueUnderTest):
    """`begin`, `write`, `commit`, `rollback`, `execute`."""

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

    def test_one_that_could_not_begin_is_never_taken_for_committed(self) -> None:
        """Even if the caller swallowed the error of its first read or write."""
        store = self.open()
        for first in ("get", "write"):
            with store.begin() as transaction:
                transaction.write({"results": {b"k": b"v"}})
                second = store.begin()
                with pytest.raises(Invalid):
                    second.get("results", b"k") if first == "get" else second.write({"results": {b"l": b"v"}})
                with pytest.raises(Invalid) as caught:
                    second.commit()
                assert caught.value.code == "transaction.nested"
                second.rollback()
                second.commit()  # after a rollback there is nothing to be mistaken about
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
