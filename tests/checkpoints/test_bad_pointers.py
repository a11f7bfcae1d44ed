"""Pointers to the latest checkpoint that are none: passed over, and put right by the next save."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest

BAD_POINTERS = [
    b"",
    b"\n",
    b"\x00" * 100,
    b"\xff\xfe",
    b"checkpoint_",
    b"checkpoint_1",
    b"checkpoint_0000001",
    b"checkpoint_-00001",
    b"checkpoint_000000",
    b"checkpoint_99999999999999999999999999",
    "checkpoint_00000\u0661".encode(),
    b"../../etc/passwd",
    b"checkpoint_000001/../x",
    b"{}",
    b"[]",
    b"null",
    b'"1"',
    b'{"checkpoint_id": null}',
    b'{"checkpoint_id": "1"}',
    b'{"checkpoint_id": 1.0}',
    b'{"checkpoint_id": true}',
    b'{"checkpoint_id": 0}',
    b'{"checkpoint_id": -1}',
    b'{"checkpoint_id": 99999999999999999999999999}',
    b'{"checkpoint_id": ' + b"9" * 5000 + b"}",
    b'{"checkpoint_id": ' * 3000,
    b"[" * 100_000,
    b"x" * 1_000_000,
]


@pytest.mark.parametrize("body", BAD_POINTERS, ids=lambda body: repr(body[:24]))
def test_bad_pointer(place: StoreUnderTest, body: bytes) -> None:
    store = place.open()
    store.save(manifest(1))
    store.save(manifest(2))
    place.overwrite(place.layout.pointer_key, body)
    fresh = place.open()
    assert fresh.latest_pointer() is None
    latest = fresh.load_latest()
    assert latest is not None
    assert latest.checkpoint_id == 2
    assert fresh.recover_latest_validated().chosen_id == 2
    assert fresh.next_id() == 3
    place.open().save(manifest(3))
    assert place.open().latest_pointer() == 3
