"""The configuration hash, clearing, resets and gaps: commits of their own, and crashes half-way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from holdfast.base.arguments import MAX_U64
from holdfast.base.steps import Phase, observe
from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.index import configuration, records, session
from holdfast.index.index import Index
from holdfast.index.records import SourceCheckpoint
from holdfast.testing.conformance.index.subject import NOW, IndexUnderTest, contents, fill


class Died(BaseException):
    """Stands for the death of the process."""


class ClearingConformance(IndexUnderTest):
    """`write_config_hash`, `read_config_hash`, `clear_checkpoints`, `configure`, `reset`, gaps."""

    def test_config_hash_and_clear_outside_a_session(self) -> None:
        index = self.open()
        fill(index)
        for number in (0, 42, MAX_U64):
            index.checkpoints.write_config_hash(number)
            index = self.reopened(index)
            assert index.checkpoints.read_config_hash() == number
        index.checkpoints.clear_checkpoints()
        for found in self.now_and_reopened(index):
            assert found.checkpoints.read_config_hash() is None
            assert found.checkpoints.read_all_checkpoints() == {}
            assert len(contents(found)) == 3

    @pytest.mark.parametrize("wrong", [-1, MAX_U64 + 1, True, "1", None, 1.5])
    def test_hashes_that_are_refused(self, wrong: int) -> None:
        index = self.open()
        index.checkpoints.write_config_hash(42)
        with pytest.raises(Invalid):
            index.checkpoints.write_config_hash(wrong)
        with pytest.raises(Invalid):
            index.configure(wrong)
        assert index.checkpoints.read_config_hash() == 42

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_standing_alone_inside_a_session(self, end: str) -> None:
        """Clearing and writing the hash take effect at once and survive a rollback; the session keeps its changes."""
        index = self.open()
        fill(index)
        index.begin()
        index.results.put(b"new", b"x")
        index.checkpoints.stage_checkpoint("new", 9)
        index.checkpoints.clear_checkpoints()
        index.checkpoints.write_config_hash(5)
        assert index.checkpoints.read_config_hash() == 5
        assert index.checkpoints.read_all_checkpoints() == {}
        (index.commit if end == "commit" else index.rollback)()
        index = self.reopened(index)
        assert index.checkpoints.read_config_hash() == 5
        assert index.checkpoints.read_all_checkpoints() == ({"new": SourceCheckpoint(9)} if end == "commit" else {})
        assert index.results.get(b"new") == (b"x" if end == "commit" else None)

    def test_beside_a_session_that_has_outgrown_memory(self) -> None:
        index = self.open()
        index.checkpoints.write_config_hash(5)
        with index.session():
            for number in range(session.HELD_CHANGES + 1):
                index.results.put(b"%06d" % number, b"x")
            for call in (index.checkpoints.clear_checkpoints, lambda: index.checkpoints.write_config_hash(6)):
                with pytest.raises(Invalid) as caught:
                    call()
                assert caught.value.code == "session.large"
        assert index.checkpoints.read_config_hash() == 5
        assert len(contents(index)) == session.HELD_CHANGES + 1

    def test_clear_is_the_way_out_of_damage(self) -> None:
        index = self.open()
        fill(index)
        for key in (b"s/source-1", b"s/\xff", records.HASH_KEY, records.gap_key(3)):
            self.plant("meta", key, b"rubbish")
        index.checkpoints.clear_checkpoints()
        index = self.reopened(index)
        assert index.checkpoints.read_all_checkpoints() == {}
        assert index.checkpoints.read_config_hash() is None
        assert index.gaps() == []

    def test_clear_that_fails_leaves_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = self.open()
        fill(index)
        index.checkpoints.write_config_hash(5)

        def fail(_: object) -> None:
            raise Unavailable("The disk is full.")

        with monkeypatch.context() as broken:
            self.break_transactions(broken, "commit", fail)
            with pytest.raises(Unavailable):
                index.checkpoints.clear_checkpoints()
        for found in self.now_and_reopened(index):
            assert found.checkpoints.read_config_hash() == 5
            assert len(found.checkpoints.read_all_checkpoints()) == 3

    # Configuration.

    def test_first_start_and_resume(self) -> None:
        index = self.open()
        assert index.configure(1).action == "first"
        fill(index)
        start = index.configure(1)
        if self.abilities.persistent:
            assert (start.action, start.resumes) == ("resume", True)
            assert len(contents(index)) == 3
        else:
            assert (start.action, start.resumes) == ("reset", False)
            assert contents(index) == {}
        assert self.reopened(index).checkpoints.read_config_hash() == 1

    def test_change_fails_resets_or_is_accepted(self) -> None:
        index = self.open()
        index.configure(1)
        fill(index)
        if not self.abilities.persistent:
            assert not index.configure(2).resumes
            self._expect_empty(index, 2)
            return
        with pytest.raises(Invalid) as caught:
            index.configure(2)
        assert caught.value.code == "config.changed"
        assert index.checkpoints.read_config_hash() == 1
        assert len(contents(index)) == len(index.checkpoints.read_all_checkpoints()) == 3
        assert index.configure(2, on_change="accept").resumes
        assert index.checkpoints.read_config_hash() == 2
        assert len(contents(index)) == len(index.checkpoints.read_all_checkpoints()) == 3
        assert not index.configure(3, on_change="reset").resumes
        self._expect_empty(self.reopened(index), 3)

    def test_results_without_a_hash_are_not_taken_for_a_first_start(self) -> None:
        index = self.open()
        index.configure(1)
        fill(index)
        index.checkpoints.clear_checkpoints()
        if not self.abilities.persistent:
            assert index.configure(1).action == "reset"
            self._expect_empty(index, 1)
            return
        with pytest.raises(Invalid):
            index.configure(1)
        index.configure(1, on_change="reset")
        assert contents(index) == {}

    def test_policy_that_does_not_exist(self) -> None:
        with pytest.raises(Invalid):
            self.open().configure(1, on_change="wipe")  # type: ignore[arg-type]

    @pytest.mark.parametrize("call", ["reset", "configure"])
    def test_not_inside_a_session(self, call: str) -> None:
        index = self.open()
        with index.session(), pytest.raises(Invalid) as caught:
            index.reset() if call == "reset" else index.configure(1)
        assert caught.value.code == "session.open"

    # Resets.

    def test_reset_keeps_the_hash_it_had(self) -> None:
        index = self.open()
        fill(index)
        index.checkpoints.write_config_hash(5)
        index.checkpoints.pass_over("source-1", 5, b"further", "log was cut")
        index.reset()
        self._expect_empty(self.reopened(index), 5)

    def _expect_empty(self, index: Index, config_hash: int | None) -> None:
        assert contents(index) == {}
        assert index.checkpoints.read_all_checkpoints() == {}
        assert index.gaps() == []
        assert index.checkpoints.read_config_hash() == config_hash
        assert self._stores[-1].get("meta", records.RESET_KEY) is None

    def _steps_of_a_reset(self, die_at: int | None) -> Iterator[tuple[str, Phase]]:
        """Reset an index of several chunks, and die at the begin or end of its nth step."""
        index = self.open()
        with index.session():
            for number in range(configuration.RESET_CHUNK + 10):
                index.results.put(b"%06d" % number, b"x")
        fill(index)
        index.checkpoints.write_config_hash(1)
        count = itertools.count()
        seen: list[tuple[str, Phase]] = []

        def die(name: str, phase: Phase, _: float) -> None:
            seen.append((name, phase))
            if next(count) == die_at:
                raise Died

        forget = observe(die)
        try:
            index.reset(2)
        except Died:
            pass
        finally:
            forget()
        yield from seen

    def test_reset_that_is_cut_short_is_finished_by_the_next_opening(self) -> None:
        steps = list(self._steps_of_a_reset(None))
        names = [name for name, phase in steps if phase == "begin" and name.startswith("reset.")]
        assert names == ["reset.begin", *["reset.clear"] * (names.count("reset.clear")), "reset.finish"]
        assert names.count("reset.clear") >= 3
        begun = steps.index(("reset.begin", "end"))
        self._indexes[-1].close()
        for at in range(len(steps)):
            assert len(list(self._steps_of_a_reset(at))) >= at + 1
            index = self._indexes[-1]
            if begun <= at:
                with pytest.raises(HoldfastError):
                    index.results.get(b"000000")
                with pytest.raises(HoldfastError):
                    index.begin()
            index.close()
            index = self.open()
            is_untouched = self.abilities.persistent and index.checkpoints.read_config_hash() == 1
            assert is_untouched or at > 0 or not self.abilities.persistent
            if is_untouched:
                assert at < begun
                assert len(contents(index)) == configuration.RESET_CHUNK + 13
                assert len(index.checkpoints.read_all_checkpoints()) == 3
            else:
                self._expect_empty(index, 2 if self.abilities.persistent else None)
            index.reset()
            index.close()

    def test_marker_that_is_damaged(self) -> None:
        index = self.open()
        fill(index)
        self.plant("meta", records.RESET_KEY, b"rubbish")
        index.close()
        if not self.abilities.persistent:
            assert contents(self.open()) == {}
            return
        with pytest.raises(Corrupt):
            self.open()
        store = self.open_store()
        assert len(list(store.scan("results", b"", None))) == 3
        store.close()

    # Gaps.

    def test_gap_and_checkpoint_move_together(self) -> None:
        index = self.open()
        fill(index)
        first = index.checkpoints.pass_over("source-1", 7, b"further", "log was cut")
        second = index.checkpoints.pass_over("new", 0, None, "lost \udcff" + "x" * 10_000)
        assert (first.source_id, first.from_position, first.to_position) == ("source-1", b"position-1", b"further")
        assert (first.when_ms, first.why) == (int(NOW * 1000), "log was cut")
        assert (second.from_position, second.to_position) == (None, None)
        index = self.reopened(index)
        assert index.gaps() == [first, second]
        assert index.checkpoints.read_checkpoint("source-1") == SourceCheckpoint(7, b"further")
        assert index.checkpoints.read_checkpoint("new") == SourceCheckpoint(0)
        assert len(contents(index)) == 3
        index.checkpoints.clear_checkpoints()
        assert index.gaps() == []

    def test_damaged_gap(self) -> None:
        index = self.open()
        index.checkpoints.pass_over("s", 1, None, "why")
        self.plant("meta", records.gap_key(1), b"rubbish")
        with pytest.raises(Corrupt):
            index.gaps()
