"""Changes one at a time, and sources that cannot go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import Invalid, OutcomeUnknown
from holdfast.index import (
    Applier,
    Change,
    Index,
    PositionUnavailable,
    Resume,
    Source,
    SourceCheckpoint,
    open_index,
    recover,
)
from holdfast.storage.kv.transaction import BufferedTransaction
from holdfast.testing.conformance.index.subject import contents, fill
from index_places import PLACES


@pytest.fixture(params=PLACES)
def index(request: pytest.FixtureRequest) -> Iterator[Index]:
    with open_index(PLACES[request.param].fresh(request), clock=lambda: 5.0) as index:
        yield index


class Boom(RuntimeError):
    pass


def put(key: bytes) -> Any:
    return lambda index: index.results.put(key, b"x")


def fail(index: Index) -> None:
    index.results.put(b"half", b"x")
    raise Boom


def test_change_and_checkpoint_together(index: Index) -> None:
    applier = Applier(index)
    assert applier.apply("s", 1, b"one", put(b"a"))
    assert applier.apply("s", 5, None, put(b"b"))
    assert applier.apply("t", 0, b"zero", put(b"c"))
    assert contents(index) == {b"a": b"x", b"b": b"x", b"c": b"x"}
    assert index.checkpoints.read_all_checkpoints() == {"s": SourceCheckpoint(5), "t": SourceCheckpoint(0, b"zero")}


def test_resume_gives_the_position_and_the_sequence(index: Index) -> None:
    applier = Applier(index)
    assert applier.resume("s") == Resume(None, None)
    applier.apply("s", 7, b"seven", put(b"a"))
    assert applier.resume("s") == Resume(b"seven", 7)
    applier.apply("s", 8, None, put(b"a"))
    assert applier.resume("s") == Resume(None, 8)
    assert applier.resume("t") == Resume()


class Letters:
    """A source whose positions are indices into a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[tuple[bytes | None, int | None]] = []

    def changes(self, resume_from: bytes | None, last_sequence: int | None) -> Iterator[Change]:
        self.asked.append((resume_from, last_sequence))
        for at in range(int(resume_from or b"0"), len(self.text)):
            yield Change(at + 1, b"%d" % (at + 1), self.text[at])


def test_source_is_followed_from_where_it_resumes(index: Index) -> None:
    def spell(index: Index, letter: str) -> None:
        if letter == "!":
            raise Boom
        index.results.put(b"word", (index.results.get(b"word") or b"") + letter.encode())

    source: Source = (letters := Letters("ab!"))
    with pytest.raises(Boom):
        Applier(index).follow("s", source, spell)
    letters.text = "abcd"
    applier = Applier(index)
    assert applier.follow("s", source, spell) == 2
    assert applier.follow("s", source, spell) == 0
    assert letters.asked == [(None, None), (b"2", 2), (b"4", 4)]
    assert index.results.get(b"word") == b"abcd"
    assert applier.skipped == {}


def test_what_is_there_already_is_skipped_and_told_once(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    applier = Applier(index)
    applier.apply("s", 5, b"five", put(b"a"))
    with caplog.at_level(logging.WARNING, "holdfast.sources"):
        for sequence in (5, 4, 0, 5):
            assert not applier.apply("s", sequence, b"other", fail)
        assert applier.apply("t", 3, None, put(b"b"))
        assert not applier.apply("t", 3, None, fail)
    assert applier.skipped == {"s": 4, "t": 1}
    assert [record.args[2] for record in caplog.records if record.args] == ["s", "t"]
    assert index.checkpoints.read_checkpoint("s") == SourceCheckpoint(5, b"five")
    assert contents(index) == {b"a": b"x", b"b": b"x"}


def test_failed_change_is_never_passed_over(index: Index) -> None:
    applier = Applier(index)
    applier.apply("s", 1, b"one", put(b"a"))
    with pytest.raises(Boom):
        applier.apply("s", 2, b"two", fail)
    assert contents(index) == {b"a": b"x"}
    assert index.checkpoints.read_checkpoint("s") == SourceCheckpoint(1, b"one")
    for sequence in (3, 100):
        with pytest.raises(Invalid) as caught:
            applier.apply("s", sequence, b"later", put(b"later"))
        assert caught.value.code == "change.failed-before"
    assert applier.apply("other", 9, None, put(b"other"))
    assert applier.apply("s", 2, b"two", put(b"b"))
    assert applier.apply("s", 3, b"three", put(b"c"))
    assert index.checkpoints.read_checkpoint("s") == SourceCheckpoint(3, b"three")
    assert index.gaps() == []


def test_giving_up_leaves_a_record(index: Index) -> None:
    applier = Applier(index)
    applier.apply("s", 1, b"one", put(b"a"))
    with pytest.raises(Boom):
        applier.apply("s", 2, b"two", fail)
    gap = applier.give_up("s", 2, b"two", "cannot be parsed")
    assert applier.apply("s", 3, b"three", put(b"c"))
    assert index.gaps() == [gap]
    assert (gap.source_id, gap.from_position, gap.to_position, gap.when_ms) == ("s", b"one", b"two", 5000)
    assert contents(index) == {b"a": b"x", b"c": b"x"}


@pytest.mark.parametrize("sequence", [3, 10])
def test_giving_up_what_is_there_moves_nothing_back(index: Index, sequence: int) -> None:
    applier = Applier(index)
    applier.apply("s", 10, b"ten", put(b"a"))
    with pytest.raises(Invalid) as refused:
        applier.give_up("s", sequence, None, "late")
    assert refused.value.code == "change.applied"
    assert index.checkpoints.read_checkpoint("s") == SourceCheckpoint(10, b"ten")
    assert index.gaps() == []


def test_commit_whose_reply_was_lost(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """It turns out to be there when the change comes again; then the source goes on."""
    applier = Applier(index)
    really = BufferedTransaction.commit

    def lose_the_reply(transaction: BufferedTransaction) -> None:
        really(transaction)
        raise OutcomeUnknown("The server is gone.")

    with monkeypatch.context() as broken:
        broken.setattr(BufferedTransaction, "commit", lose_the_reply)
        with pytest.raises(OutcomeUnknown):
            applier.apply("s", 1, b"one", put(b"a"))
    assert not applier.apply("s", 1, b"one", fail)
    assert applier.apply("s", 2, b"two", put(b"b"))
    assert contents(index) == {b"a": b"x", b"b": b"x"}


def test_not_inside_a_session(index: Index) -> None:
    applier = Applier(index)
    with index.session():
        with pytest.raises(Invalid):
            applier.apply("s", 1, None, put(b"a"))
        with pytest.raises(Invalid):
            applier.give_up("s", 1, None, "why")
    assert contents(index) == {}


@pytest.mark.parametrize("wrong", [-1, None, 2**64, "1"])
def test_sequences_that_are_refused(index: Index, wrong: Any) -> None:
    with pytest.raises(Invalid):
        Applier(index).apply("s", wrong, None, fail)


def test_position_that_is_refused_undoes_the_change(index: Index) -> None:
    with pytest.raises(Invalid):
        Applier(index).apply("s", 1, bytes(65_537), put(b"a"))
    assert contents(index) == index.checkpoints.read_all_checkpoints() == {}


# A source that cannot go on.


def failure(resumes_at: bytes | None = b"further") -> PositionUnavailable:
    return PositionUnavailable("source-1", "log was cut", resumes_at=resumes_at, resumes_after=7)


def test_strict_stops_and_changes_nothing(index: Index) -> None:
    fill(index)
    with pytest.raises(PositionUnavailable):
        recover(index, failure())
    assert len(contents(index)) == len(index.checkpoints.read_all_checkpoints()) == 3
    assert index.gaps() == []


def test_reset_once(index: Index) -> None:
    fill(index)
    index.checkpoints.write_config_hash(7)
    assert recover(index, failure(), "reset").action == "reset"
    assert contents(index) == index.checkpoints.read_all_checkpoints() == {}
    assert index.checkpoints.read_config_hash() == 7
    with pytest.raises(PositionUnavailable):
        recover(index, failure(), "reset", resets=1)


@pytest.mark.parametrize("resumes_at", [b"further", None])
def test_skip_puts_the_gap_on_record(index: Index, resumes_at: bytes | None) -> None:
    fill(index)
    done = recover(index, failure(resumes_at), "skip")
    assert index.gaps() == [done.gap]
    assert done.gap is not None
    assert (done.gap.from_position, done.gap.to_position, done.gap.why) == (b"position-1", resumes_at, "log was cut")
    assert index.checkpoints.read_checkpoint("source-1") == SourceCheckpoint(7, resumes_at)
    assert len(contents(index)) == 3


def test_skip_to_another_log_drops_nothing_of_it(index: Index) -> None:
    applier = Applier(index)
    for sequence in range(1, 10):
        applier.apply("s", sequence, b"old log", put(b"old-%d" % sequence))
    done = recover(index, PositionUnavailable("s", "the log was made anew", resumes_at=b"new log"), "skip")
    assert index.gaps() == [done.gap]
    assert done.gap is not None
    assert (done.gap.from_position, done.gap.to_position) == (b"old log", b"new log")
    assert index.checkpoints.read_checkpoint("s") is None
    assert [applier.apply("s", sequence, b"new log", put(b"new-%d" % sequence)) for sequence in range(5)] == [True] * 5
    assert len(contents(index)) == 14


def test_skip_of_a_source_that_never_had_a_checkpoint(index: Index) -> None:
    done = recover(index, PositionUnavailable("new", "log was cut"), "skip")
    assert done.gap is not None
    assert done.gap.from_position is None
    assert index.checkpoints.read_checkpoint("new") is None
