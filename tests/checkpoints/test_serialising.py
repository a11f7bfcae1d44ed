"""A manifest becomes a document once when it is saved, and once when its statuses are updated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import CheckpointManifest, open_store
from holdfast.errors import Invalid
from holdfast.testing.conformance.checkpoints.subject import manifest

PENDING = {"sink_commit_statuses": {"lake": "Pending"}}
COMMITTED = {"sink_commit_statuses": {"lake": "Committed"}}


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with every manifest that is turned into JSON or back."""
    seen: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> None:
        def call(value: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(value, CheckpointManifest) or (isinstance(value, bytes) and b"checkpoint_id" in value):
                seen.append(name)
            return function(value, *args, **kwargs)

        monkeypatch.setattr(msgspec.json, name, call)

    for name in ("encode", "decode", "format"):
        counted(name, getattr(msgspec.json, name))
    return seen


@pytest.mark.parametrize("chunks", [None, [b"state", b"more"]], ids=["no sidecar", "with a sidecar"])
def test_a_save_makes_one_document(documents: list[str], chunks: list[bytes] | None) -> None:
    store = open_store("memory://")
    for number in range(1, 6):  # retention at work as well
        del documents[:]
        store.save_with_state(manifest(number), chunks)
        assert documents == ["encode", "format"]


def test_an_update_reads_one_document_and_makes_one(documents: list[str]) -> None:
    store = open_store("memory://")
    store.save(manifest(1, **PENDING))
    del documents[:]
    store.update_manifest(manifest(1, **COMMITTED))
    assert [name for name in documents if name != "decode"] == ["encode", "format"]
    assert documents.count("decode") == 1


@pytest.mark.parametrize("layout", ["directory", "object"])
def test_the_size_is_that_of_the_stored_objects(layout: Any) -> None:
    """Also where the number of its own digits changes what it has to be."""
    store = open_store("memory://", layout=layout, max_retained=None)
    for number in range(1, 60):
        chunks = [b"x" * (number * 173)]
        runtime = {"nested": {"size_bytes": 0}, "text": '\n  "size_bytes": 0,'}
        own = msgspec.structs.replace(manifest(1).own, runtime=runtime)
        store.save_with_state(manifest(number, holdfast=own), chunks)
        sizes = [info.size for info in store.objects.list("") if f"{number:06}" in info.key]
        found = store.load_by_id(number)
        assert found is not None
        assert found.size_bytes == sum(sizes)
        assert found.own.runtime == runtime


def test_what_json_cannot_hold_leaves_nothing_behind() -> None:
    store = open_store("memory://")
    own = msgspec.structs.replace(manifest(1).own, runtime={"lone": "\ud800"})
    with pytest.raises(Invalid):
        store.save_with_state(manifest(1, holdfast=own), [b"state"])
    assert list(store.objects.list("")) == []
