"""Sessions and threads: one writes, the others read what is committed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import Invalid
from holdfast.testing.conformance.index.subject import SessionsUnderTest, WorkError, contents, write_and_fail, write_one


def in_thread(call: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as other:
        return other.submit(call).result()


class SessionThreadsConformance(SessionsUnderTest):
    """One index, several threads."""

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
                with contextlib.suppress(WorkError):
                    write_and_fail(index)
                with contextlib.suppress(WorkError):
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
