"""Openings: what a store says of itself, other writers and readers, the end, forks."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import pytest

from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid, NotFound
from holdfast.storage.kv.store import KeyValueStore, SqlStore
from holdfast.testing.conformance.kv.subject import MEGABYTE, KeyValueUnderTest, puts, rows


class OpeningConformance(KeyValueUnderTest):
    """What one opening may do beside others, and after a close."""

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
