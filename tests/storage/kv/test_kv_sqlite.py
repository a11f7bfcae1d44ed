"""A SQLite file that one process makes while another opens it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.index import open_index, records
from holdfast.projections import keys, open_projections
from holdfast.storage.kv.sqlite import SqliteStore
from holdfast.storage.kv.sqlite_reader import SqliteReader
from holdfast.storage.kv.store import Schema

MODELS = [pytest.param(records.SCHEMA, open_index, id="index"), pytest.param(keys.SCHEMA, open_projections, id="store")]


@pytest.mark.parametrize(("schema", "opening"), MODELS)
@pytest.mark.parametrize("statement", ["PRAGMA application_id", "PRAGMA user_version", "SELECT count(*)"])
def test_tables_that_another_process_makes_between_two_looks(
    schema: Schema, opening: Callable[..., Any], statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.db"
    others: list[SqliteStore] = []
    connect = SqliteStore._connect

    def traced(self: SqliteStore) -> sqlite3.Connection:
        connection = connect(self)

        def make_it(begun: str) -> None:
            if begun.startswith(statement) and not others:
                others.append(self)  # before the next line, which comes here again
                SqliteStore(str(path), schema, "shared").close()

        connection.set_trace_callback(make_it)
        return connection

    monkeypatch.setattr(SqliteStore, "_connect", traced)
    opening(f"sqlite:///{path}").close()
    assert others


@pytest.mark.parametrize(("schema", "opening"), MODELS)
def test_a_format_that_another_process_records_between_two_looks(
    schema: Schema, opening: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    SqliteStore(f"{tmp_path}/x.db", schema, "shared").close()
    get = SqliteReader.get
    found: list[bytes | None] = []

    def get_and_make_it(self: SqliteReader, space: str, key: bytes) -> bytes | None:
        value = get(self, space, key)
        found.append(value)
        if len(found) == 1:
            monkeypatch.setattr(SqliteReader, "get", get)
            opening(url).close()
        return value

    monkeypatch.setattr(SqliteReader, "get", get_and_make_it)
    opening(url, read_only=True).close()
    assert found == [None]
