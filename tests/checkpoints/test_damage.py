"""Whatever happens to one byte or one object of a checkpoint that Holdfast wrote, validation notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import CheckpointBatcher, OperatorCheckpoint
from holdfast.checkpoints import manifest_json
from holdfast.errors import Corrupt
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest, with_everything
from places import LocalPlace, MemoryPlace

CHECKPOINT, BEFORE = 5, 1


@pytest.fixture(scope="module", params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoreUnderTest:
    """A valid checkpoint 1, and checkpoint 5, a child of 4 that has everything a checkpoint can have."""
    found: StoreUnderTest = (
        MemoryPlace() if request.param == "memory" else LocalPlace(tmp_path_factory.mktemp("damage") / "store")
    )
    store = found.open(max_retained=None)
    store.save(manifest(BEFORE))
    batcher = CheckpointBatcher(store, prefix="nodes/a/")
    batches = []
    for number in (1, 2):
        batcher.add(f"partition-{number}/agg", bytes(range(64)))
        batch = batcher.flush(CHECKPOINT)
        assert batch is not None
        batches.append(batch)
    store.save_with_state(
        manifest(4, operator_states={"base": OperatorCheckpoint.external(0, 16)}), [b"state of parent!"]
    )
    full = with_everything(CHECKPOINT)
    operators = {
        "small": OperatorCheckpoint.inline(b"small"),
        "large": OperatorCheckpoint.external(0, 20),
        "larger": OperatorCheckpoint.external(20, 28),
    }
    child = manifest(
        CHECKPOINT,
        source_offsets=full.source_offsets,
        sink_epochs=full.sink_epochs,
        sink_commit_statuses=full.sink_commit_statuses,
        inflight_data=full.inflight_data,
        watermark=full.watermark,
        operator_states=operators,
        is_incremental=True,
        parent_id=4,
    ).with_batches(batches)
    store.save_with_state(child, [b"x" * 20, b"y" * 28])
    assert found.open().validate_checkpoint(CHECKPOINT).issues == []
    return found


def owned(place: StoreUnderTest) -> list[str]:
    """Every object that checkpoint 5 stands on."""
    batches = [key for key in place.all_keys() if key.endswith(".lz4")]
    assert len(batches) == 2
    numbers = (4, CHECKPOINT)
    return [*map(place.manifest_key, numbers), *map(place.sidecar_key, numbers), *batches]


def notices(place: StoreUnderTest, key: str, body: bytes | None) -> None:
    """Replace an object (None: delete it), see that validation and the walk notice, and put it back."""
    intact = place.read(key)
    assert body != intact
    try:
        _write(place, key, body)
        result = place.open().validate_checkpoint(CHECKPOINT)
        assert not result.valid, f"{key} was damaged and nobody noticed"
        assert result.reason
    finally:
        _write(place, key, intact)


def _write(place: StoreUnderTest, key: str, body: bytes | None) -> None:
    """As bad luck would: no lock, no sync, and a new handle so that nothing is remembered."""
    if isinstance(place, LocalPlace):
        path = place.root / key
        if body is None:
            path.unlink()
        else:
            path.write_bytes(body)
    elif body is None:
        place.open_objects().delete([key])
    else:
        assert place.open_objects().update(key, lambda _: body)


def flips(body: bytes, step: int = 1) -> Iterator[bytes]:
    for position in range(0, 8 * len(body), step):
        damaged = bytearray(body)
        damaged[position // 8] ^= 1 << position % 8
        yield bytes(damaged)


def cuts(body: bytes, step: int = 1) -> Iterator[bytes]:
    yield from (body[:length] for length in range(0, len(body), step))


def losses(body: bytes, step: int = 1) -> Iterator[bytes]:
    for position in range(0, len(body), step):
        yield body[:position] + body[position + 1 :]


Damage = Callable[[bytes, int], Iterator[bytes]]
every_damage = pytest.mark.parametrize("damage", [flips, cuts, losses], ids=["flip a bit", "cut short", "lose a byte"])


@every_damage
def test_every_position_of_the_state(place: StoreUnderTest, damage: Damage) -> None:
    for key in owned(place):
        if not key.endswith(".json"):
            for body in damage(place.read(key), 5 if damage is flips else 1):  # of every byte some bit
                notices(place, key, body)


@every_damage
def test_every_position_of_the_manifest(place: StoreUnderTest, damage: Damage) -> None:
    """All of them against the decoder, which is where the store learns of damage, and every 37th through the store."""
    key = place.manifest_key(CHECKPOINT)
    intact = place.read(key)
    for body in damage(intact, 1):
        with pytest.raises(Corrupt):
            manifest_json.decode(body, about=key, checkpoint_id=CHECKPOINT)
    for manifest_key in (key, place.manifest_key(4)):
        for body in damage(place.read(manifest_key), 37):
            notices(place, manifest_key, body)


def test_every_object_deleted_or_emptied_or_swapped(place: StoreUnderTest) -> None:
    keys = owned(place)
    for key in keys:
        notices(place, key, None)
        notices(place, key, b"")
        for other in keys:
            if other != key:
                notices(place, key, place.read(other))


def test_two_objects_swapped(place: StoreUnderTest) -> None:
    first, second = (key for key in owned(place) if key.endswith(".lz4"))
    bodies = place.read(first), place.read(second)
    assert len(bodies[0]) == len(bodies[1])
    _write(place, first, bodies[1])
    _write(place, second, bodies[0])
    assert not place.open().validate_checkpoint(CHECKPOINT).valid
    _write(place, first, bodies[0])
    _write(place, second, bodies[1])


@settings(max_examples=250)
@given(data=st.data())
def test_any_damage(place: StoreUnderTest, data: st.DataObject) -> None:
    """Several bytes changed, cut out, repeated or inserted, anywhere."""
    key = data.draw(st.sampled_from(owned(place)))
    intact = place.read(key)
    body = intact
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(len(body), start + 40)))
        body = body[:start] + data.draw(st.one_of(st.binary(max_size=20), st.just(body[start:end] * 2))) + body[end:]
    if body != intact:
        notices(place, key, body)


@pytest.mark.parametrize("what", ["flip", "delete"])
def test_the_walk_takes_the_one_before(place: StoreUnderTest, what: str) -> None:
    for key in owned(place):
        intact = place.read(key)
        middle = len(intact) // 2
        _write(
            place,
            key,
            None if what == "delete" else intact[:middle] + bytes([intact[middle] ^ 16]) + intact[middle + 1 :],
        )
        try:
            store = place.open()
            report = store.recover_latest_validated()
            parent_is_hit = key in (place.manifest_key(4), place.sidecar_key(4))
            assert report.chosen_id == (BEFORE if parent_is_hit else 4)
            skipped = [number for number, _ in report.skipped]
            if key == place.manifest_key(CHECKPOINT) and what == "delete":
                assert skipped == []
            else:
                gone = key == place.manifest_key(4) and what == "delete"
                assert skipped == ([CHECKPOINT, 4] if parent_is_hit and not gone else [CHECKPOINT])
        finally:
            _write(place, key, intact)
    assert place.open().recover_latest_validated().chosen_id == CHECKPOINT


def test_a_manifest_that_hides_its_origin_is_still_caught(place: StoreUnderTest) -> None:
    """Our section cut out cleanly makes a foreign manifest: its state is then all that can be checked."""
    key = place.manifest_key(CHECKPOINT)
    intact = place.read(key)
    for sign in (b'"holdfast": {', b'"write_id": "', b'"checksum": "sha256:'):
        assert intact.count(sign) == 1
        notices(place, key, intact.replace(sign, sign.replace(b'"', b"'", 1)))
        notices(place, key, intact.replace(sign, sign[:-1] + b" "))
