"""Where projection stores are tested. A backend joins every test of this folder with one line in `PLACES`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.testing.conformance.projections.suite import ProjectionAbilities


class Place(NamedTuple):
    """A kind of store."""

    abilities: ProjectionAbilities
    fresh: Callable[[pytest.FixtureRequest], str]
    """The address of a store that does not exist yet, another one with each call."""


def _new_path(request: pytest.FixtureRequest) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"{folder}/{uuid.uuid4().hex}"


PLACES = {
    "memory": Place(
        ProjectionAbilities(persistent=False, second_opening="shares", sql=False),
        lambda _: f"memory://{uuid.uuid4().hex}",
    ),
    "sqlite": Place(
        ProjectionAbilities(persistent=True, second_opening="shares", sql=True),
        lambda request: f"sqlite:///{_new_path(request)}/store.db",
    ),
    "postgres": Place(
        ProjectionAbilities(persistent=True, second_opening="fences", sql=True),
        lambda request: f"{request.getfixturevalue('projection_dsn')}&store={uuid.uuid4().hex}",
    ),
    "rocksdb": Place(
        ProjectionAbilities(persistent=True, second_opening="refused", sql=False),
        lambda request: f"rocksdb:///{_new_path(request)}",
    ),
    "redis": Place(
        ProjectionAbilities(persistent=True, second_opening="fences", sql=False),
        lambda request: request.getfixturevalue("valkey").url(uuid.uuid4().hex).replace("?index=", "?store="),
    ),
    "slatedb": Place(
        ProjectionAbilities(persistent=True, second_opening="fences", sql=False),
        lambda request: f"file://{_new_path(request)}",
    ),
    "slatedb-s3": Place(
        ProjectionAbilities(persistent=True, second_opening="fences", sql=False),
        lambda request: f"s3://{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}",
    ),
}
