"""Failures of the backend in a session: nothing is applied, and nothing is taken for success."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from holdfast.errors import Invalid, Unavailable
from holdfast.index import session
from holdfast.storage.kv.store import WriteBatch
from holdfast.testing.conformance.index.subject import SessionsUnderTest, contents, write_one


class SessionFailuresConformance(SessionsUnderTest):
    """Writes and commits that the backend fails."""

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
