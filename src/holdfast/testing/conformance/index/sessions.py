"""Sessions: what belongs together is committed together, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import Fenced, HoldfastError, Invalid
from holdfast.index import session
from holdfast.index.records import SourceCheckpoint
from holdfast.testing.conformance.index.subject import (
    ONE,
    SessionsUnderTest,
    WorkError,
    contents,
    write_and_fail,
    write_one,
)


class SessionConformance(SessionsUnderTest):
    """`begin`, `commit`, `rollback`, `session`."""

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
        for error in (WorkError, KeyboardInterrupt):
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

    def test_many_at_once_as_one_by_one(self) -> None:
        index = self.open()
        many = session.HELD_CHANGES + 7
        keys = [b"%06d" % number for number in range(many)]
        with index.session():
            index.results.put_many(keys, [b"first"] * many)
            index.results.put_many([b"000002", b"000003", b"large"], [b"second", None, bytes(session.SMALL + 1)])
            index.results.put_many([], [])
            assert contents(index) == {}
        found = contents(self.reopened(index))
        assert len(found) == many
        assert b"000003" not in found
        assert found[b"000002"] == b"second"
        assert found[keys[-1]] == b"first"
        assert len(found[b"large"]) == session.SMALL + 1

    @pytest.mark.parametrize(
        ("keys", "values"),
        [
            ([b"a", b""], [b"1", b"2"]),
            ([b"a", b"k" * 2049], [b"1", b"2"]),
            ([b"a", "b"], [b"1", b"2"]),
            ([b"a", None], [b"1", b"2"]),
            ([b"a", b"b"], [b"1", 2]),
            ([b"a", b"b"], [b"1"]),
            ([b"a"], [b"1", b"2"]),
        ],
    )
    def test_many_of_which_one_is_refused(self, keys: list[bytes], values: list[bytes | None]) -> None:
        index = self.open()
        with pytest.raises(Invalid), index.session():
            index.results.put_many(keys, values)
        assert contents(index) == {}

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
                raise WorkError

        if end == "raise":
            with pytest.raises(WorkError):
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
