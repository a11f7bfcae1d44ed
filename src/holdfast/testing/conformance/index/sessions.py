"""Sessions: what belongs together is committed together, and only then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import Fenced, HoldfastError, Invalid, Unavailable
from holdfast.index import session
from holdfast.index.index import Index
from holdfast.index.records import SourceCheckpoint
from holdfast.storage.kv.store import WriteBatch
from holdfast.testing.conformance.index.subject import IndexUnderTest, contents

ONE = SourceCheckpoint(1, b"one")


class Boom(RuntimeError):
    """What a query raises when it fails."""


def write_one(index: Index) -> None:
    index.results.put(b"k", b"v")
    index.checkpoints.stage_checkpoint("s", 1, b"one")


def write_and_fail(index: Index, how: type[BaseException] = Boom) -> None:
    with index.session():
        write_one(index)
        raise how


def in_thread(call: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as other:
        return other.submit(call).result()


class SessionConformance(IndexUnderTest):
    """`begin`, `commit`, `rollback`, `session`."""

    def expect(self, index: Index, is_there: bool) -> Index:
        """One result and one checkpoint, both or neither, now and after a restart; the index to go on with."""
        for found in self.now_and_reopened(index):
            assert contents(found) == ({b"k": b"v"} if is_there else {})
            assert found.results.get(b"k") == (b"v" if is_there else None)
            assert found.checkpoints.read_all_checkpoints() == ({"s": ONE} if is_there else {})
            assert found.checkpoints.read_checkpoint("s") == (ONE if is_there else None)
        return found

    def test_commit(self) -> None:
        index = self.open()
        index.begin()
        write_one(index)
        index.commit()
        self.expect(index, True)

    def test_rollback(self) -> None:
        index = self.open()
        index.begin()
        write_one(index)
        index.rollback()
        self.expect(index, False)

    def test_retry_after_a_rollback(self) -> None:
        index = self.open()
        index.begin()
        index.results.put(b"other", b"x")
        index.checkpoints.stage_checkpoint("s", 9, b"nine")
        index.rollback()
        with index.session():
            write_one(index)
        self.expect(index, True)

    def test_block_commits_and_nothing_rolls_it_back_afterwards(self) -> None:
        index = self.open()
        with index.session() as same:
            assert same is index
            write_one(index)
        index.rollback()
        self.expect(index, True)

    def test_block_that_raises_rolls_back_and_lets_the_error_out(self) -> None:
        index = self.open()
        for error in (Boom, KeyboardInterrupt):
            with pytest.raises(error):
                write_and_fail(index, error)
            index = self.expect(index, False)

    def test_close_without_commit_rolls_back(self) -> None:
        index = self.open()
        index.begin()
        write_one(index)
        index.close()
        index = self.open()
        self.expect(index, False)

    def test_reads_in_a_session_return_what_is_committed(self) -> None:
        index = self.open()
        with index.session():
            write_one(index)
            index.results.put(b"gone", b"soon")
        with index.session():
            index.results.put(b"k", b"newer")
            index.results.put(b"new", b"x")
            index.results.delete(b"gone")
            index.checkpoints.stage_checkpoint("s", 2, b"two")
            index.checkpoints.stage_checkpoint("t", 2)
            assert contents(index) == {b"gone": b"soon", b"k": b"v"}
            assert index.results.get(b"new") is None
            assert index.checkpoints.read_all_checkpoints() == {"s": ONE}
            assert index.checkpoints.read_checkpoint("t") is None
        assert contents(index) == {b"k": b"newer", b"new": b"x"}
        assert index.checkpoints.read_all_checkpoints() == {"s": SourceCheckpoint(2, b"two"), "t": SourceCheckpoint(2)}

    def test_last_change_of_a_key_wins(self) -> None:
        index = self.open()
        with index.session():
            for value in (b"a", b"b", b"v"):
                index.results.delete(b"k")
                index.results.put(b"k", value)
            index.results.put(b"x", b"x")
            index.results.delete(b"x")
            index.results.delete(b"never there")
            index.checkpoints.stage_checkpoint("s", 7)
            index.checkpoints.stage_checkpoint("s", 1, b"one")
        self.expect(index, True)

    def test_session_without_changes(self) -> None:
        index = self.open()
        with index.session():
            pass
        index.begin()
        index.commit()
        self.expect(index, False)

    # Nesting.

    def test_write_between_inner_and_outer_commit_is_kept(self) -> None:
        index = self.open()
        index.begin()
        index.begin()
        index.results.put(b"k", b"v")
        index.commit()
        assert contents(index) == {}
        index.checkpoints.stage_checkpoint("s", 1, b"one")
        index.commit()
        self.expect(index, True)

    def test_outer_rollback_after_inner_commit(self) -> None:
        index = self.open()
        index.begin()
        index.begin()
        write_one(index)
        index.commit()
        index.rollback()
        self.expect(index, False)

    def test_inner_rollback_undoes_everything(self) -> None:
        index = self.open()
        index.begin()
        index.results.put(b"outer", b"x")
        index.begin()
        write_one(index)
        index.rollback()
        with pytest.raises(Invalid) as caught:
            index.commit()
        assert caught.value.code == "session.none"
        self.expect(index, False)

    def test_three_deep(self) -> None:
        index = self.open()
        for _ in range(3):
            index.begin()
        write_one(index)
        for _ in range(2):
            index.commit()
            assert contents(index) == {}
        index.commit()
        with pytest.raises(Invalid):
            index.commit()
        self.expect(index, True)

    def test_commit_without_a_session(self) -> None:
        index = self.open()
        with pytest.raises(Invalid) as caught:
            index.commit()
        assert caught.value.code == "session.none"

    def test_rollback_without_a_session(self) -> None:
        index = self.open()
        index.rollback()
        with index.session():
            write_one(index)
        index.rollback()
        self.expect(index, True)

    def test_blocks_inside_blocks(self) -> None:
        index = self.open()
        with index.session():
            with index.session():
                index.results.put(b"k", b"v")
            assert contents(index) == {}
            index.checkpoints.stage_checkpoint("s", 1, b"one")
        self.expect(index, True)

    def test_inner_failure_that_is_swallowed_is_not_taken_for_success(self) -> None:
        index = self.open()

        def swallow() -> None:
            with index.session():
                index.results.put(b"outer", b"x")
                with pytest.raises(Boom):
                    write_and_fail(index)

        with pytest.raises(Invalid) as caught:
            swallow()
        assert caught.value.code == "session.over"
        self.expect(index, False)

    def test_nothing_is_written_in_what_is_left_of_a_block_after_a_rollback(self) -> None:
        index = self.open()

        def go_on() -> None:
            with index.session():
                with pytest.raises(Boom):
                    write_and_fail(index)
                with pytest.raises(Invalid):
                    index.results.put(b"k", b"v")
                with pytest.raises(Invalid):
                    index.checkpoints.stage_checkpoint("s", 1)
                with pytest.raises(Invalid):
                    index.begin()

        with pytest.raises(Invalid):
            go_on()
        index = self.expect(index, False)
        with index.session():
            write_one(index)
        self.expect(index, True)

    def test_block_that_was_ended_by_hand(self) -> None:
        index = self.open()
        with index.session():
            index.results.put(b"other", b"x")
            index.rollback()
        index = self.expect(index, False)
        with index.session():
            write_one(index)
            index.commit()
        self.expect(index, True)

    def test_begin_in_a_block_that_nobody_commits(self) -> None:
        index = self.open()

        def forget_to_commit() -> None:
            with index.session():
                index.begin()
                write_one(index)

        with pytest.raises(Invalid):
            forget_to_commit()
        self.expect(index, False)

    # Outside a session.

    def test_staging_without_a_session(self) -> None:
        """An error where commits last; at once where they do not."""
        index = self.open()
        if not self.abilities.persistent:
            write_one(index)
            index = self.expect(index, True)
            index.rollback()
            index = self.expect(index, True)
            index.results.delete(b"k")
            assert contents(index) == {}
            return
        calls: list[Callable[[], object]] = [
            lambda: index.checkpoints.stage_checkpoint("s", 1, b"one"),
            lambda: index.results.put(b"k", b"v"),
            lambda: index.results.delete(b"k"),
        ]
        for call in calls:
            with pytest.raises(Invalid, match="session") as caught:
                call()
            assert caught.value.code == "session.none"
        self.expect(index, False)

    def test_closed_index(self) -> None:
        index = self.open()
        index.close()
        index.close()
        index.rollback()
        for call in (
            index.begin,
            index.commit,
            lambda: index.results.put(b"k", b"v"),
            lambda: index.results.get(b"k"),
            lambda: index.results.scan(),
            lambda: index.checkpoints.stage_checkpoint("s", 1),
            lambda: index.checkpoints.read_checkpoint("s"),
            index.checkpoints.read_all_checkpoints,
            index.checkpoints.clear_checkpoints,
            index.checkpoints.read_config_hash,
            lambda: index.checkpoints.write_config_hash(1),
            index.gaps,
            index.reset,
            lambda: index.configure(1),
        ):
            with pytest.raises(Invalid) as caught:
                call()
            assert caught.value.code == "index.closed"

    def test_used_as_a_block(self) -> None:
        with self.open() as index:
            index.begin()
        with pytest.raises(Invalid):
            index.begin()

    # Threads.

    def test_other_threads_read_and_do_not_write(self) -> None:
        index = self.open()
        index.checkpoints.write_config_hash(5)
        with index.session():
            write_one(index)
            assert in_thread(lambda: contents(index)) == {}
            assert in_thread(index.checkpoints.read_all_checkpoints) == {}
            assert in_thread(index.checkpoints.read_config_hash) == 5
            for call in (
                index.begin,
                index.commit,
                index.rollback,
                lambda: index.results.put(b"k", b"theirs"),
                lambda: index.checkpoints.stage_checkpoint("s", 9),
                lambda: index.checkpoints.write_config_hash(9),
                index.checkpoints.clear_checkpoints,
            ):
                with pytest.raises(Invalid) as caught:
                    in_thread(call)
                assert caught.value.code == "session.other-thread"
        assert in_thread(lambda: contents(index)) == {b"k": b"v"}
        assert index.checkpoints.read_config_hash() == 5
        self.expect(index, True)

    def test_one_thread_after_another(self) -> None:
        index = self.open()

        def change() -> None:
            with index.session():
                write_one(index)

        in_thread(change)
        with index.session():
            index.results.put(b"k", b"v")
        self.expect(index, True)

    def test_thread_that_ends_in_a_session(self) -> None:
        """Its number is given to the next thread, its session is not."""
        index = self.open()

        def begin_and_end() -> None:
            index.begin()
            index.results.put(b"lost", b"x")

        def change() -> None:
            with index.session():
                write_one(index)

        for work in (begin_and_end, change, begin_and_end):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        with index.session():
            write_one(index)
        self.expect(index, True)

    def test_rolled_back_inside_while_another_thread_rolls_back(self) -> None:
        index = self.open()

        def swallow() -> None:
            with index.session():
                with contextlib.suppress(Boom):
                    write_and_fail(index)
                with contextlib.suppress(Boom):
                    in_thread(lambda: write_and_fail(index))

        with pytest.raises(Invalid) as caught:
            swallow()
        assert caught.value.code == "session.over"
        self.expect(index, False)

    def test_readers_never_see_half_a_commit(self) -> None:
        index = self.open()
        ended = threading.Event()

        def look() -> list[tuple[int, int]]:
            seen: list[tuple[int, int]] = []
            while not ended.is_set() or not seen:
                low = index.checkpoints.read_checkpoint("s")
                value = index.results.get(b"k")
                high = index.checkpoints.read_checkpoint("s")
                number = int(value) if value else 0
                assert (low.sequence if low else 0) <= number <= (high.sequence if high else 0)
                seen.append((number, len(list(index.results.scan()))))
            return seen

        with ThreadPoolExecutor(2) as readers:
            looking = [readers.submit(look) for _ in range(2)]
            try:
                for number in range(1, 31):
                    with index.session():
                        index.checkpoints.stage_checkpoint("s", number)
                        for key in range(10):
                            index.results.put(b"k%d" % key, b"%d" % number)
                        index.results.put(b"k", b"%d" % number)
            finally:
                ended.set()
            for seen in looking:
                assert {count for _, count in seen.result()} <= {0, 11}

    # Large sessions.

    def test_session_larger_than_what_is_held_in_memory(self) -> None:
        index = self.open()
        many = session.HELD_CHANGES * 2 + 7
        with index.session():
            for number in range(many):
                index.results.put(b"%06d" % number, b"first")
            index.results.put(b"large", bytes(session.HELD_BYTES))
            index.checkpoints.stage_checkpoint("s", 1, b"one")
            assert contents(index) == {}
            assert index.checkpoints.read_all_checkpoints() == {}
            for number in range(0, many, 2):
                index.results.delete(b"%06d" % number)
            index.results.put(b"000001", b"second")
        index = self.reopened(index)
        found = contents(index)
        assert len(found) == many // 2 + 1
        assert found[b"000001"] == b"second"
        assert len(found[b"large"]) == session.HELD_BYTES
        assert index.checkpoints.read_all_checkpoints() == {"s": ONE}

    @pytest.mark.parametrize("end", ["rollback", "raise", "close"])
    def test_large_session_that_is_undone(self, end: str) -> None:
        index = self.open()
        with index.session():
            write_one(index)

        def write_much() -> None:
            for number in range(session.HELD_CHANGES + 7):
                index.results.put(b"%06d" % number, b"x")
            index.results.delete(b"k")
            index.checkpoints.stage_checkpoint("s", 2)

        def write_much_and_fail() -> None:
            with index.session():
                write_much()
                raise Boom

        if end == "raise":
            with pytest.raises(Boom):
                write_much_and_fail()
        else:
            index.begin()
            write_much()
            (index.rollback if end == "rollback" else index.close)()
        if end == "close":
            index = self.open()
        assert contents(index) == ({b"k": b"v"} if end != "close" or self.abilities.persistent else {})
        with index.session():
            write_one(index)
        self.expect(index, True)

    # One at a time.

    def test_second_opening(self) -> None:
        index = self.open()
        with index.session():
            write_one(index)
        if self.abilities.second_opening == "refused":
            with pytest.raises(HoldfastError) as refused:
                self.open_store()
            assert refused.value.code == "index.in-use"
            with index.session():
                write_one(index)
            self.expect(index, True)
            return
        index.begin()
        index.results.put(b"k", b"too late")
        second = self.open()
        with pytest.raises(Fenced):
            index.commit()
        for _ in range(2):
            with pytest.raises(Fenced), index.session():
                index.results.put(b"k", b"too late")
        with pytest.raises(Fenced):
            index.checkpoints.clear_checkpoints()
        index.close()
        self.expect(second, True)

    def test_opening_again_after_a_close(self) -> None:
        for _ in range(3):
            self.open().close()
        self.expect(self.open(), False)

    # Failures of the backend.

    def test_commit_that_fails_leaves_no_session_and_nothing_applied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = self.open()

        def fail(_: object) -> None:
            raise Unavailable("The disk is full.")

        with monkeypatch.context() as broken:
            self.break_transactions(broken, "commit", fail)
            with pytest.raises(Unavailable), index.session():
                write_one(index)
            index.begin()
            write_one(index)
            with pytest.raises(Unavailable):
                index.commit()
            with pytest.raises(Unavailable):
                index.checkpoints.write_config_hash(1)
        with pytest.raises(Invalid):
            index.commit()
        with index.session():
            index.results.put(b"next", b"x")
        for found in self.now_and_reopened(index):
            assert contents(found) == {b"next": b"x"}
            assert found.checkpoints.read_all_checkpoints() == {}
            assert found.checkpoints.read_config_hash() is None

    def test_failed_commit_that_is_swallowed_is_not_taken_for_success(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = self.open()

        def fail(_: object) -> None:
            raise Unavailable("The disk is full.")

        def swallow() -> None:
            with index.session():
                write_one(index)
                with pytest.raises(Unavailable):
                    index.commit()

        with monkeypatch.context() as broken:
            self.break_transactions(broken, "commit", fail)
            with pytest.raises(Invalid) as caught:
                swallow()
        assert caught.value.code == "session.over"
        self.expect(index, False)

    def test_write_that_fails_ends_the_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = self.open()
        writes: list[int] = []

        def fail_second(really: Callable[[WriteBatch], None], batch: WriteBatch) -> None:
            writes.append(1)
            if len(writes) == 2:
                raise Unavailable("The disk is full.")
            really(batch)

        def swallow() -> None:
            with index.session(), contextlib.suppress(Unavailable):
                for number in range(session.HELD_CHANGES * 2):
                    index.results.put(b"%06d" % number, b"x")

        with monkeypatch.context() as broken:
            self.break_transactions(broken, "write", fail_second)
            with pytest.raises(Invalid) as caught:
                swallow()
        assert caught.value.code == "session.over"
        self.expect(index, False)
