"""Where indexes are tested. A backend joins every test of indexes with one line in `PLACES`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.testing.conformance.index.suite import IndexAbilities


class Place(NamedTuple):
    """A kind of index."""

    abilities: IndexAbilities
    fresh: Callable[[pytest.FixtureRequest], str]
    """The address of an index that does not exist yet, another one with each call."""
    examples: int = 15
    """Of what is made up at random: few where each takes long."""


def _new_path(request: pytest.FixtureRequest) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"{folder}/{uuid.uuid4().hex}"


PLACES = {
    "memory": Place(
        IndexAbilities(persistent=False, second_opening="refused"),
        lambda _: f"memory://{uuid.uuid4().hex}",
        examples=60,
    ),
    "sqlite": Place(
        IndexAbilities(persistent=True, second_opening="refused"),
        lambda request: f"sqlite:///{_new_path(request)}/index.db",
        examples=30,
    ),
    "rocksdb": Place(
        IndexAbilities(persistent=True, second_opening="refused"),
        lambda request: f"rocksdb:///{_new_path(request)}",
    ),
    "redis": Place(
        IndexAbilities(persistent=True, second_opening="fences"),
        lambda request: request.getfixturevalue("valkey").url(uuid.uuid4().hex),
    ),
    "postgres": Place(
        IndexAbilities(persistent=True, second_opening="fences"),
        lambda request: f"{request.getfixturevalue('index_dsn')}&index={uuid.uuid4().hex}",
    ),
    "slatedb": Place(
        IndexAbilities(persistent=True, second_opening="fences"),
        lambda request: f"file://{_new_path(request)}",
        examples=5,
    ),
}
