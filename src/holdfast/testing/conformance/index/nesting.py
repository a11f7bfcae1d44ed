"""Sessions inside sessions: the outermost commits, the first rollback undoes everything."""

from __future__ import annotations

import pytest

from holdfast.errors import Invalid
from holdfast.testing.conformance.index.subject import SessionsUnderTest, WorkError, contents, write_and_fail, write_one


class NestingConformance(SessionsUnderTest):
    """`begin` within a session, and blocks within blocks."""

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
                with pytest.raises(WorkError):
                    write_and_fail(index)

        with pytest.raises(Invalid) as caught:
            swallow()
        assert caught.value.code == "session.over"
        self.expect(index, False)

    def test_nothing_is_written_in_what_is_left_of_a_block_after_a_rollback(self) -> None:
        index = self.open()

        def go_on() -> None:
            with index.session():
                with pytest.raises(WorkError):
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
