"""Objects that are larger than they should be, or say so: bounded memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from manifest_bytes import with_

from holdfast import OperatorCheckpoint
from holdfast.checkpoints import manifest_json, read_batch
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.testing.conformance.checkpoints.subject import manifest, pending
from places import LocalPlace, MemoryPlace

MIB = 1 << 20


@contextmanager
def at_most(peak: int) -> Iterator[None]:
    """Fail if the block has more than so many bytes of memory at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()


def test_manifest_larger_than_any_manifest(local: LocalPlace) -> None:
    local.open().save(pending(1))
    path = local.root / local.manifest_key(2)
    path.parent.mkdir()
    path.touch()
    os.truncate(path, 1 << 36)
    store = local.open()
    with at_most(4 * MIB):
        result = store.validate_checkpoint(2)
        assert not result.valid
        assert local.manifest_key(2) in result.reason
        assert store.recover_latest_validated().chosen_id == 1
        assert store.list() == [(1, 1)]
        with pytest.raises(Corrupt):
            store.load_by_id(2)
        with pytest.raises(Corrupt):
            store.update_manifest(manifest(2))
        store.prune(1)
        store.cleanup_orphans()
        with pytest.raises(HoldfastError):
            store.save(manifest(2))


def test_pointer_larger_than_any_pointer(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    os.truncate(local.root / local.layout.pointer_key, 1 << 36)
    with at_most(4 * MIB):
        assert local.open().latest_pointer() is None
        assert local.open().recover_latest_validated().chosen_id == 1
        local.open().save(manifest(2))
        assert local.open().next_id() == 3


def test_sidecar_larger_than_it_was(local: LocalPlace) -> None:
    local.open().save_with_state(manifest(1, operator_states={"a": OperatorCheckpoint.external(0, 5)}), [b"state"])
    os.truncate(local.root / local.sidecar_key(1), 1 << 36)
    with at_most(4 * MIB):
        assert not local.open().validate_checkpoint(1).valid
        assert local.open().load_states(1) == {"a": b"state"}


def test_sidecar_is_verified_in_bounded_memory(local: LocalPlace) -> None:
    chunk = bytes(MIB)
    local.open().save_with_state(manifest(1), [chunk] * 64)
    with at_most(16 * MIB):
        assert local.open().validate_checkpoint(1).valid


def test_manifest_near_the_limit_is_refused_before_anything_is_written(memory: MemoryPlace) -> None:
    huge = {"a": OperatorCheckpoint(state_b64="A" * (manifest_json.MAX_MANIFEST_BYTES + 4))}
    with pytest.raises(Invalid) as caught:
        memory.open().save(manifest(1, operator_states=huge))
    assert "limit" in str(caught.value)
    assert memory.all_keys() == []


@pytest.mark.parametrize("filler", ["[],", '"",', "0,", '{"a":0},'], ids=["lists", "strings", "numbers", "objects"])
def test_manifest_full_of_nothing_costs_in_proportion(memory: MemoryPlace, filler: str) -> None:
    body = with_()[:-1] + b', "x": [' + filler.encode() * (2 * MIB // len(filler)) + b"0]}"
    memory.overwrite(memory.manifest_key(2), body)
    store = memory.open()
    with at_most(100 * len(body)):
        store.validate_checkpoint(2)


@pytest.mark.parametrize(
    "body",
    [
        b"LCB1" + struct.pack("<IIII", 2, 1, 0xFFFFFFFF, 0),
        b"LCB1" + struct.pack("<IIII", 2, 0xFFFFFFFF, 0xFFFFFFFF, 0),
        b"LCB1" + struct.pack("<III", 1, 0xFFFFFFFF, 0xFFFFFFFF) + struct.pack("<I", 0xFFFFFFFF),
        b"LCB1",
        b"",
    ],
    ids=["4 GiB", "4 GiB in as many entries", "version 1", "magic alone", "empty"],
)
def test_batch_that_lies_about_its_size(memory: MemoryPlace, body: bytes) -> None:
    memory.overwrite("checkpoints/batch-000001.lz4", body)
    with at_most(MIB), pytest.raises(Corrupt) as caught:
        list(read_batch(memory.open_objects(), "checkpoints/batch-000001.lz4"))
    assert "checkpoints/batch-000001.lz4" in str(caught.value)
