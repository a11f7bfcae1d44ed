"""The keys of both layouts, and the way back from a key to an id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.layout import BATCH, DirectoryLayout, Layout, ObjectLayout

LAYOUTS: list[Layout] = [DirectoryLayout(), ObjectLayout()]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["directory", "object"])


@layouts
@given(number=st.integers(1, 2**64 - 1))
def test_layout_there_and_back(layout: Layout, number: int) -> None:
    assert layout.manifest_id(layout.manifest_key(number)) == number
    assert layout.sidecar_id(layout.sidecar_key(number)) == number
    assert layout.sidecar_id(layout.sidecar_key(number, "0123abcd")) == number
    assert layout.pointer_id(layout.pointer_body(number)) == number
    assert layout.manifest_key(number).startswith(layout.folders[0])
    assert layout.manifest_id(layout.sidecar_key(number)) is None
    assert layout.sidecar_id(layout.manifest_key(number)) is None


@layouts
@given(number=st.integers(1, 10**9), noise=st.text("0123456789abc_-./ x", min_size=1, max_size=4))
def test_layout_second_spellings_are_refused(layout: Layout, number: int, noise: str) -> None:
    key = layout.manifest_key(number)
    digits = f"{number:06}"
    for other in (key.replace(digits, noise + digits), key + noise, key.replace(digits, digits + noise)):
        found = layout.manifest_id(other)
        assert found is None or layout.manifest_key(found) == other


@layouts
@given(body=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_layout_pointer_of_anything(layout: Layout, body: bytes) -> None:
    found = layout.pointer_id(body)
    assert found is None or 0 < found < 2**64


def test_layout_names_are_laminardbs() -> None:
    directory, flat = DirectoryLayout(), ObjectLayout()
    assert directory.manifest_key(1) == "checkpoints/checkpoint_000001/manifest.json"
    assert directory.sidecar_key(1) == "checkpoints/checkpoint_000001/state.bin"
    assert (directory.pointer_key, directory.pointer_body(1)) == ("checkpoints/latest.txt", b"checkpoint_000001")
    assert flat.manifest_key(1) == "manifests/manifest-000001.json"
    assert flat.sidecar_key(1) == "checkpoints/state-000001.bin"
    assert (flat.pointer_key, flat.pointer_body(1)) == ("manifests/latest.json", b'{"checkpoint_id": 1}')
    assert directory.pointer_id(b" checkpoint_000007\n") == 7


def test_batch_names() -> None:
    found = BATCH.fullmatch("nodes/a/checkpoints/batch-000042-part-0002.lz4")
    assert found is not None
    assert (found["prefix"], int(found["epoch"])) == ("nodes/a/", 42)
    assert BATCH.fullmatch("checkpoints/batch-42.lz4") is None
