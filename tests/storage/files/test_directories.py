"""The `Directory` of a disk, of memory and of S3: one contract."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest

from holdfast.errors import Unavailable
from holdfast.storage.files.directory import Directory, LocalDirectory, TakesParts, TakesPieces
from holdfast.storage.objects import open_objects
from holdfast.storage.objects.cloud import CloudObjects
from holdfast.storage.objects.directory import ObjectDirectory, folders
from servers.clouds import CLOUDS, new_address

ODD = "state/0/0/my store/1.delta", "state/0/0/a%20b/1.delta", "state/0/0/grün#1/1.delta", "state/0/0/a+b=c/1.delta"


@pytest.fixture(params=["local", "memory", *CLOUDS])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    if request.param == "local":
        return LocalDirectory(tmp_path / "work")
    if request.param == "memory":
        return ObjectDirectory(open_objects("memory://"), "place", "memory://place")
    url, options = new_address(request, request.param, "work")
    return ObjectDirectory(open_objects(url, options=options), "place", f"{url}/place")


def paths(directory: Directory) -> list[str]:
    return sorted(path for path, _ in directory.files())


def test_what_was_written_is_listed_and_read(directory: Directory) -> None:
    assert (paths(directory), directory.names("offsets"), directory.exists("metadata")) == ([], [], False)
    directory.write_new([("metadata", b"{}"), ("offsets/0", b"v1"), ("offsets/1", memoryview(b"v2"))])
    directory.write(".hidden", b"x")
    assert paths(directory) == ["metadata", "offsets/0", "offsets/1"]
    assert sorted(directory.names("offsets")) == ["0", "1"]
    assert sorted(directory.names("")) == [".hidden", "metadata", "offsets"]
    assert directory.exists("offsets/0")
    assert directory.read("offsets/1") == b"v2"


def test_a_missing_file(directory: Directory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.read("metadata")
    with pytest.raises(FileNotFoundError):
        directory.read_range("metadata", 0, 1)
    directory.remove("metadata")
    assert directory.stamps(["metadata"]) == directory.identities(["metadata"]) == {}


def test_a_file_that_is_written_again(directory: Directory) -> None:
    directory.write("state/0/0/1.delta", b"one")
    before, identity = directory.stamps(["state/0/0/1.delta"]), directory.identities(["state/0/0/1.delta"])
    assert directory.read("state/0/0/1.delta") == b"one"
    directory.write("state/0/0/1.delta", b"two")
    assert directory.stamps(["state/0/0/1.delta"]) != before
    assert directory.identities(["state/0/0/1.delta"]) != identity
    assert directory.read("state/0/0/1.delta") == b"two"


def test_stamps_are_those_of_the_listing(directory: Directory) -> None:
    directory.write_new([("a/1", b"x" * 10), ("a/2", b"y" * (2 << 20))])
    assert directory.stamps(["a/1", "a/2", "a/3"]) == dict(directory.files())
    assert directory.read("a/2") == b"y" * (2 << 20)


def test_what_was_read_ahead_is_not_read_later(directory: Directory) -> None:
    directory.write("a", b"old")
    directory.stamps(["a"])
    directory.write("a", b"new")
    directory.stamps(["b"])
    assert directory.read("a") == b"new"


def test_asking_for_nothing_forgets_nothing() -> None:
    """A file that is looked at and then read is one request."""
    objects = open_objects("memory://")
    directory = ObjectDirectory(objects, "place", "memory://")
    directory.write("a", b"body")
    directory.stamps(["a"])
    assert directory.stamps([]) == {}
    objects.delete(["place/a"])
    assert directory.read("a") == b"body"


def test_large_files(directory: Directory) -> None:
    if isinstance(directory, TakesParts):
        directory.write_part("large", 3, b"def")
        directory.write_part("large", 0, b"abc")
    else:
        assert isinstance(directory, TakesPieces)
        file = directory.new_file("large")
        for piece in (b"abc", memoryview(b"def")):
            file.write(piece)
        assert not directory.exists("large")
        file.close()
        file.abandon()
    assert directory.read("large") == b"abcdef"
    assert directory.read_range("large", 2, 3) == (b"cde", 6)
    assert directory.read_range("large", 4, 10) == (b"ef", 6)


@pytest.mark.parametrize("directory", ["memory", *CLOUDS], indirect=True)
def test_files_in_several_requests(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 takes no part of less than 5 MiB but the last."""
    monkeypatch.setattr("holdfast.storage.objects.cloud.UPLOADED_PART", 5 << 20)
    assert isinstance(directory, TakesPieces)
    body = random.Random(0).randbytes((11 << 20) + 1)
    whole, abandoned = directory.new_file("whole"), directory.new_file("abandoned")
    for file in (whole, abandoned):
        file.write(body)
    abandoned.abandon()
    whole.close()
    assert paths(directory) == ["whole"]
    assert directory.read("whole") == body


def test_a_panic_of_the_client_library_is_an_error() -> None:
    """It is no `Exception`: nothing that handles errors would see it."""
    objects = open_objects("memory://")
    assert isinstance(objects, CloudObjects)
    with pytest.raises(Unavailable, match="the client library failed") as raised, objects._explained("a", writing=True):
        obstore.put(objects._store, "a", iter(objects.read(key, limit=9) for key in "b"))
    assert raised.value.code == "cloud.unavailable"


def test_folders_are_removed_by_the_beginning_of_their_names(directory: Directory) -> None:
    directory.write_new([(".probe-1/driver", b"x"), (".probe-2/a/b", b"x"), ("offsets/0", b"x"), (".spool-1/x", b"x")])
    directory.remove_folders(".probe-")
    assert sorted(directory.names("")) == [".spool-1", "offsets"]


@pytest.mark.parametrize("path", ODD)
def test_names_that_users_choose(directory: Directory, path: str) -> None:
    """The states of transformWithState are called as users like."""
    directory.write_new([(path, b"x")])
    assert paths(directory) == [path]
    assert (directory.read(path), list(directory.stamps([path]))) == (b"x", [path])


def test_empty_objects_stand_for_folders() -> None:
    objects = open_objects("memory://")
    objects.create("place/commits", [b""])
    objects.create("place/commits/0", [b"v1"])
    directory = ObjectDirectory(objects, "place", "memory://")
    assert paths(directory) == ["commits/0"]
    assert directory.stamps(["commits"]) == {}
    assert folders(objects) == ["place"]


def test_files_that_never_change_are_read_once() -> None:
    objects = open_objects("memory://")
    directory = ObjectDirectory(objects, "place", "memory://", lambda path: path.startswith("offsets/"))
    directory.write_new([("offsets/0", b"v1"), ("state", b"old")])
    assert (directory.read("offsets/0"), directory.read("state")) == (b"v1", b"old")
    objects.delete(["place/offsets/0"])
    directory.write("state", b"new")
    assert (directory.read("offsets/0"), directory.read("state")) == (b"v1", b"new")


@pytest.mark.parametrize("look", [lambda it: it.stamps(["schema"]), lambda it: list(it.files())], ids=["stamp", "list"])
def test_a_file_that_changed_all_the_same_is_read_again(look: Callable[[Directory], object]) -> None:
    """Spark rewrites a description now and then: its new stamp must not go with its old bytes."""
    directory = ObjectDirectory(open_objects("memory://"), "place", "memory://", lambda path: True)
    directory.write("schema", b"old")
    assert directory.read("schema") == b"old"
    look(directory)
    assert directory.read("schema") == b"old"
    other = ObjectDirectory(directory._objects, "place", "memory://")
    other.write("schema", b"new")
    look(directory)
    assert directory.read("schema") == b"new"
