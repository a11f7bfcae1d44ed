"""Which addresses open what, and which are refused before a directory of a strange name is made."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.storage.objects import CloudObjects, LocalObjects, open_objects


@pytest.mark.parametrize(
    ("address", "root"),
    [
        ("/data/x", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("FILE:///data/x", "/data/x"),
        ("file://localhost/data/x", "/data/x"),
        ("file:/data/x", "/data/x"),
        ("file:///data/with%20space", "/data/with space"),
        (Path("/data/x"), "/data/x"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_local_addresses(address: str | Path, root: str) -> None:
    objects = open_objects(address)
    assert isinstance(objects, LocalObjects)
    assert objects.root == root


@pytest.mark.parametrize(
    "address",
    [
        "s3:/bucket/x",
        "dbfs:/x",
        "hdfs://host/x",
        "http://host/x",
        "s3://",
        "s3:///x",
        "s3://me:secret@bucket/x",
        "abfss://container:secret@account.dfs.core.windows.net/x",
        "s3://bucket/a/../b",
        "s3://bucket/a?b",
        "file:x",
        "file://host/x",
        "",
        "a\0b",
    ],
)
def test_addresses_that_are_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid):
        open_objects(address)
    assert list(tmp_path.iterdir()) == []


def test_a_path_made_of_an_address_is_refused() -> None:
    with pytest.raises(Invalid, match="as text rather than as a Path"):
        open_objects(Path("s3://bucket/x"))


def test_cloud_schemes_in_any_case() -> None:
    objects = open_objects("S3://bucket/x", options={"region": "us-east-1"})
    assert isinstance(objects, CloudObjects)
    assert objects.address == "s3://bucket/x"


def test_a_copy_for_another_thread_has_the_same_service() -> None:
    """Without one, no conditional write would be tried out through it."""
    objects = open_objects("s3://bucket/x", options={"region": "us-east-1", "endpoint": "http://localhost:1"})
    assert objects.service == "s3://bucket/x at http://localhost:1"
    assert copy.copy(objects).service == objects.service


def test_memory_is_new_unless_named() -> None:
    open_objects("memory://shared-name").create("a", [b"1"])
    assert open_objects("memory://shared-name").read("a", limit=9) == b"1"
    open_objects("memory://").create("a", [b"1"])
    assert open_objects("memory://").list("") == []
