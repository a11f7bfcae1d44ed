"""Copies within a service, and looks into what may be large."""

from __future__ import annotations

import pytest

from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.storage.objects import CloudObjects, open_objects
from servers.clouds import CLOUDS, new_address
from servers.s3 import READ_ONLY_KEY, S3Server


@pytest.fixture(params=["memory", *CLOUDS])
def objects(request: pytest.FixtureRequest) -> CloudObjects:
    if request.param == "memory":
        found = open_objects("memory://")
    else:
        url, options = new_address(request, request.param, "below")
        found = open_objects(url, options=options)
    assert isinstance(found, CloudObjects)
    return found


def test_a_copy_replaces_what_was_there(objects: CloudObjects) -> None:
    objects.create("a b/source=1", [b"one"])
    objects.create("target", [b"two"])
    for target in ("target", "new/target", "target"):
        objects.copy("a b/source=1", target)
        assert objects.read(target, limit=10) == b"one"
    assert objects.read("a b/source=1", limit=10) == b"one"


def test_nothing_to_copy(objects: CloudObjects) -> None:
    objects.create("target", [b"two"])
    with pytest.raises(NotFound) as caught:
        objects.copy("source", "target")
    assert caught.value.code == "object.not-found"
    assert objects.read("target", limit=10) == b"two"
    with pytest.raises(Invalid):
        objects.copy("target", "../x")


def test_some_of_many(objects: CloudObjects) -> None:
    for number in range(12):
        objects.create(f"many/{number:02}", [b"x"])
    objects.create("many-others", [b"x"])
    assert [info.key for info in objects.some("many/", 3)] == ["many/00", "many/01", "many/02"]
    assert len(objects.some("many/", 100)) == 12
    assert objects.some("none/", 3) == []


@pytest.mark.s3
def test_a_copy_that_is_not_allowed(s3_server: S3Server) -> None:
    address = f"s3://{s3_server.new_bucket()}"
    open_objects(address, options=s3_server.options).create("source", [b"one"])
    objects = open_objects(address, options=s3_server.options | {"aws_access_key_id": READ_ONLY_KEY})
    assert isinstance(objects, CloudObjects)
    with pytest.raises(Unavailable) as caught:
        objects.copy("source", "target")
    assert (caught.value.code, caught.value.about) == ("cloud.denied", f"{address}/target")
