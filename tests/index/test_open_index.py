"""Addresses, and names that are taken."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import holdfast
from holdfast.errors import Conflict, Invalid
from holdfast.index import open_index


def test_as_promised() -> None:
    index = holdfast.open_index("memory://")
    assert index.checkpoints.is_persistent is False
    with index.session():
        index.checkpoints.stage_checkpoint("orders", 17, b"at 17")
        index.results.put(b"key", b"value")
    checkpoint = index.checkpoints.read_checkpoint("orders")
    assert checkpoint == holdfast.index.SourceCheckpoint(sequence=17, source_position=b"at 17")
    assert checkpoint is not None
    assert checkpoint.__struct_fields__ == ("sequence", "source_position")
    assert list(index.results.scan(b"k")) == [(b"key", b"value")]


@pytest.mark.parametrize(
    "wrong", ["", "orders.db", "/data/orders.db", "mongodb://x", "sqlite:/x", None, 3, b"memory://", "memory://\0"]
)
def test_addresses_that_are_refused(wrong: Any) -> None:
    with pytest.raises(Invalid) as caught:
        open_index(wrong)
    assert caught.value.next_step


def test_secrets_are_not_repeated() -> None:
    with pytest.raises(Invalid) as caught:
        open_index("mysql://user:geheim@host/db?password=geheim")
    assert "geheim" not in str(caught.value)
    assert "mysql" in str(caught.value)


def test_memory_without_a_name_is_new_each_time() -> None:
    with open_index("memory://") as one, open_index("memory://") as other:
        one.results.put(b"k", b"v")
        assert other.results.get(b"k") is None


def test_memory_with_a_name_is_open_once_and_gone_afterwards() -> None:
    with open_index("memory://orders") as one:
        one.results.put(b"k", b"v")
        with pytest.raises(Conflict) as caught:
            open_index("memory://orders")
        assert caught.value.code == "index.in-use"
        with open_index("memory://orders2") as other:
            assert other.results.get(b"k") is None
        assert one.results.get(b"k") == b"v"
    with open_index("memory://orders") as again:
        assert again.results.get(b"k") is None


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("rocksdb:///nowhere/index", "rocksdict", "rocksdb"),
        ("redis://localhost/0", "redis", "redis"),
        ("valkey://localhost/0", "redis", "redis"),
        ("postgresql://localhost/x", "psycopg", "postgres"),
        ("postgres://localhost/x", "psycopg", "postgres"),
    ],
)
def test_package_that_is_not_installed(url: str, package: str, extra: str) -> None:
    """In a process that cannot import it, and where nothing else needs it."""
    program = f"import sys; sys.modules[{package!r}] = None; from holdfast import open_index; open_index({url!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"holdfast[{extra}]" in done.stderr
    assert "errors.Invalid" in done.stderr
