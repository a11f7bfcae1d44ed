"""Several writers of one store: one wins; the others are fenced and have changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from holdfast.checkpoints.manifest import OperatorCheckpoint
from holdfast.checkpoints.store import CheckpointStore
from holdfast.errors import Fenced, Invalid
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest, pending, settled


class WritersConformance(StoreUnderTest):
    """The fence on ids, and the lease."""

    def test_saving_the_same_again_through_the_same_handle(self) -> None:
        store = self.open()
        for _ in range(2):
            store.save(manifest(1))
            store.save_with_state(manifest(2), [b"state"])
        body = self.read(self.manifest_key(1))
        store.save(manifest(1))
        assert self.read(self.manifest_key(1)) == body
        assert self.open().list_ids() == [1, 2]
        assert self.open().load_state_data(2) == b"state"

    def test_saving_the_same_again_after_its_state_went_ahead(self) -> None:
        store = self.open()
        store.save_state_data(1, [b"state"])
        store.save(manifest(1))
        store.save(manifest(1))
        assert self.open().validate_checkpoint(1).valid
        assert self.open().load_state_data(1) == b"state"

    def test_other_content_under_a_taken_id_is_fenced(self) -> None:
        store = self.open()
        store.save(manifest(1, watermark=1))
        body = self.read(self.manifest_key(1))
        for rival in (store, self.open()):
            with pytest.raises(Fenced) as caught:
                rival.save(manifest(1, watermark=2))
            assert caught.value.unchanged
        assert self.read(self.manifest_key(1)) == body

    def test_equal_content_of_another_writer_is_fenced_too(self) -> None:
        self.open().save(manifest(1))
        with pytest.raises(Fenced):
            self.open().save(manifest(1))

    def test_loser_leaves_the_winners_state_alone(self) -> None:
        operators = {"agg": OperatorCheckpoint.external_slice(0, 6)}
        self.open().save_with_state(manifest(1, operator_states=operators), [b"winner"])
        with pytest.raises(Fenced):
            self.open().save_with_state(manifest(1, operator_states=operators), [b"loser!"])
        with pytest.raises(Fenced):
            self.open().save_state_data(1, [b"loser!"])
        assert self.open().load_states(1) == {"agg": b"winner"}
        assert self.open().validate_checkpoint(1).valid
        assert [key for key in self.all_keys() if "state" in key] == [self.sidecar_key(1)]

    def test_losers_state_is_not_taken_for_the_winners(self) -> None:
        self.open().save(manifest(1))
        with pytest.raises(Fenced):
            self.open().save_with_state(manifest(1), [b"loser"])
        assert self.open().load_state_data(1) is None
        assert self.open().validate_checkpoint(1).valid

    def test_state_of_a_writer_that_died_does_not_block_the_id(self) -> None:
        self.open().save_state_data(1, [b"died before its manifest"])
        operators = {"agg": OperatorCheckpoint.external_slice(0, 4)}
        self.open().save_with_state(manifest(1, operator_states=operators), [b"mine"])
        assert self.open().load_states(1) == {"agg": b"mine"}
        assert self.open().load_state_data(1) == b"mine"
        assert self.open().validate_checkpoint(1).valid
        assert self.open_later().cleanup_orphans() == 1
        assert self.open().load_states(1) == {"agg": b"mine"}

    def test_state_written_ahead_by_two_goes_with_whoever_saves(self) -> None:
        operators = {"agg": OperatorCheckpoint.external_slice(0, 5)}
        loser, winner = self.open(), self.open()
        loser.save_state_data(1, [b"first"])
        winner.save_state_data(1, [b"other"])
        assert self.read(self.sidecar_key(1)) == b"first"
        winner.save(manifest(1, operator_states=operators))
        with pytest.raises(Fenced):
            loser.save(manifest(1, operator_states=operators))
        assert self.open().load_state_data(1) == b"other"
        assert self.open().load_states(1) == {"agg": b"other"}
        assert self.open().validate_checkpoint(1).valid

    def test_state_written_ahead_twice_by_one_the_last_counts(self) -> None:
        store = self.open()
        store.save_state_data(1, [b"first try"])
        store.save_state_data(1, [b"second try"])
        store.save(manifest(1))
        assert self.open().load_state_data(1) == b"second try"
        assert self.open().validate_checkpoint(1).valid

    def test_loser_does_not_move_the_pointer(self) -> None:
        self.open().save(manifest(5))
        self.overwrite(self.layout.pointer_key, self.layout.pointer_body(3))
        with pytest.raises(Fenced):
            self.open().save(manifest(5, watermark=1))
        assert self.open().latest_pointer() == 3

    def test_of_many_at_once_one_wins(self) -> None:
        rivals = 6
        for number in range(1, 4):
            stores = [self.open(max_retained=None) for _ in range(rivals)]

            def attempt(index: int, number: int = number, stores: list[CheckpointStore] = stores) -> int | None:
                state = f"state of {index}".encode()
                operators = {"agg": OperatorCheckpoint.external_slice(0, len(state))}
                try:
                    stores[index].save_with_state(manifest(number, watermark=index, operator_states=operators), [state])
                except Fenced:
                    return None
                return index

            with ThreadPoolExecutor(rivals) as threads:
                winners = [index for index in threads.map(attempt, range(rivals)) if index is not None]
            assert len(winners) == 1
            found = self.open().load_by_id(number)
            assert found is not None
            assert found.watermark == winners[0]
            assert self.open().load_states(number) == {"agg": f"state of {winners[0]}".encode()}
            assert self.open().validate_checkpoint(number).valid

    def test_of_many_at_once_the_pointer_ends_at_the_newest(self) -> None:
        numbers = list(range(1, 9))
        stores = [self.open(max_retained=None) for _ in numbers]
        with ThreadPoolExecutor(len(numbers)) as threads:
            list(threads.map(lambda number: stores[number - 1].save(manifest(number)), numbers))
        assert self.open().list_ids() == numbers
        assert self.open().latest_pointer() == numbers[-1]

    # The lease

    def test_generation_rises_with_every_claim(self) -> None:
        first, second = self.open(), self.open()
        assert first.claim("a").generation == 1
        assert second.claim("b").generation == 2
        assert first.claim("a").generation == 3
        first.save(manifest(1))
        assert self.document(1)["holdfast"]["generation"] == 3

    def test_of_many_claims_at_once_no_two_are_alike(self) -> None:
        stores = [self.open() for _ in range(6)]
        with ThreadPoolExecutor(6) as threads:
            generations = list(threads.map(lambda store: store.claim().generation, stores))
        assert sorted(generations) == [1, 2, 3, 4, 5, 6]

    def test_stale_holder_is_fenced_at_every_durable_step(self) -> None:
        stale = self.open()
        stale.claim("old driver")
        stale.save(pending(1))
        self.open().claim("new driver")
        before = {key: self.read(key) for key in self.all_keys()}
        steps: list[Callable[[], object]] = [
            lambda: stale.save(manifest(2)),
            lambda: stale.save_with_state(manifest(2), [b"x"]),
            lambda: stale.save_states(manifest(2), {"a": b"x"}),
            lambda: stale.save_state_data(2, [b"x"]),
            lambda: stale.update_manifest(settled(pending(1))),
            lambda: stale.prune(1),
            lambda: stale.cleanup_orphans(older_than=0),
        ]
        for durable_step in steps:
            with pytest.raises(Fenced) as caught:
                durable_step()
            assert "new driver" in str(caught.value)
        assert {key: self.read(key) for key in self.all_keys()} == before

    def test_reading_needs_no_lease(self) -> None:
        stale = self.open()
        stale.claim()
        stale.save(manifest(1))
        self.open().claim()
        assert stale.list_ids() == [1]
        assert stale.recover_latest_validated().chosen_id == 1

    def test_handle_without_a_claim_goes_on(self) -> None:
        store = self.open()
        self.open().claim()
        store.save(manifest(1))
        assert self.open().list_ids() == [1]

    def test_next_id_is_above_every_trace(self) -> None:
        store = self.open(max_retained=None)
        assert store.next_id() == 1
        store.save(manifest(3))
        assert self.open().next_id() == 4
        store.save_state_data(9, [b"never saved"])
        assert self.open().next_id() == 10
        assert self.open().next_id(saved_only=True) == 4
        self.overwrite(self.layout.pointer_key, self.layout.pointer_body(20))
        assert self.open().next_id() == self.open().next_id(saved_only=True) == 21

    def test_parent_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(Invalid):
            self.open().save(replace(manifest(2), is_incremental=True, parent_id=1))
        assert self.all_keys() == []
