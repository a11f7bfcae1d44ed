"""The names that are promised to the outside, used exactly as promised, and the small things beneath them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.projections
from holdfast.errors import Invalid, NotFound
from holdfast.projections import GlobalProjectionCheckpoint, ProjectionRunner, keys, open_projections, view
from holdfast.projections.keys import check_name
from holdfast.storage.kv.sqlite_reader import SqliteReader
from holdfast.storage.kv.store import end_of

SQL = SqliteReader  # has no prefix for tables
NAMES = st.text("/%25F_xab\0é😀", min_size=1, max_size=12)


def test_as_promised(tmp_path: Path) -> None:
    s = open_projections(f"sqlite:///{tmp_path}/data/p.db")
    previous = s.load_projection_checkpoint("turnover")
    s.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({"order-1": 7}))
    previous, current = s.load_projection_checkpoint("turnover"), s.load_projection_checkpoint("turnover")
    assert previous.cursors == {"order-1": 7}
    current.advance("order-1", 9)
    current.advance("order-2", 1)
    s.advance_projection_cursors("turnover", previous, current)
    assert s.load_projection_checkpoint("turnover").cursors == {"order-1": 9, "order-2": 1}
    for method in ("run", "catch_up", "catch_up_all_streams", "catch_up_persistent"):
        assert callable(getattr(ProjectionRunner(s), method))
    s.close()


def test_everything_in_all_is_there() -> None:
    names = holdfast.projections.__all__
    assert sorted(names) == list(names)
    assert all(getattr(holdfast.projections, name) is not None for name in names)


def test_a_checkpoint() -> None:
    one = GlobalProjectionCheckpoint({"a": 3})
    assert (one.cursor_for("a"), one.cursor_for("b")) == (3, 0)
    other = one.copy()
    other.advance("a", 2)
    assert other == one
    other.advance("a", 4)
    other.advance("b", 1)
    assert other != one
    assert (one.cursors, other.cursors) == ({"a": 3}, {"a": 4, "b": 1})
    assert GlobalProjectionCheckpoint() == GlobalProjectionCheckpoint({"z": 0})
    assert one != {"a": 3}
    assert repr(one) == "GlobalProjectionCheckpoint({'a': 3})"


@given(NAMES, NAMES)
def test_escaped_names_come_back_and_never_meet(one: str, other: str) -> None:
    escaped = check_name(one)
    assert keys.unescaped(escaped) == one
    assert b"/" not in escaped
    assert (escaped == check_name(other)) is (one == other)
    tables = view.table_prefix(SQL, escaped, 1), view.table_prefix(SQL, check_name(other), 1)
    assert tables[0].startswith(tables[1]) is (one == other)


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_the_end_of_a_prefix(prefix: bytes, key: bytes) -> None:
    end = end_of(prefix)
    assert key.startswith(prefix) is (key >= prefix and (end is None or key < end))


@pytest.mark.parametrize(
    "url",
    ["", ".", "/tmp", "sqlite:p.db", "sqlite://p.db", "sqlite:///", "sqlite:///a?mode=ro", "sqlite:///a%00b", "sqlite:///a\0b",
     "s3://bucket", "s3:///path", "s3://bucket/path?x=1", "ftp://host/x", "redis://", None, b"memory://"],
)  # fmt: skip
def test_bad_addresses(url: Any) -> None:
    with pytest.raises(Invalid) as caught:
        open_projections(url)
    assert caught.value.code in ("address.refused", "address.scheme")


def test_secrets_are_not_shown() -> None:
    with pytest.raises(Invalid) as caught:
        open_projections("mysql://me:secret@host/db?password=secret")
    assert "secret" not in str(caught.value)


def test_memory_is_shared_by_name_as_long_as_it_is_open() -> None:
    with open_projections("memory://shared") as one, open_projections("memory://shared") as other:
        one.save_projection_checkpoint("p", GlobalProjectionCheckpoint({"a": 1}))
        assert other.load_projection_checkpoint("p").cursors == {"a": 1}
    with open_projections("memory://shared") as again, open_projections("memory://") as nameless:
        assert again.load_projection_checkpoint("p").cursors == nameless.load_projection_checkpoint("p").cursors == {}
        with pytest.raises(NotFound):
            again.lag("p")
