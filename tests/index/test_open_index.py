"""Addresses, and names that are taken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import Conflict, Invalid
from holdfast.index import open_index
from holdfast.projections import open_projections


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
    "wrong", ["", ".", "mongodb://x", "sqlite:/x", "sqlite:x", "Redis:x", None, 3, b"memory://", "memory://\0", "a\0b"]
)
def test_addresses_that_are_refused(wrong: Any) -> None:
    with pytest.raises(Invalid) as caught:
        open_index(wrong)
    assert caught.value.next_step


@pytest.mark.parametrize("wrong", ["mysql://user:geheim@host/db?password=geheim", "redis:/me:geheim@host"])
def test_secrets_are_not_repeated(wrong: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_index(wrong)
    assert "geheim" not in str(caught.value)
    assert wrong.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a/x.db", "a/x.db"),
        ("sqlite:///./a/x%20y", "a/x y"),
        ("a/x.db", "a/x.db"),
        (Path("a", "x%20y"), "a/x%20y"),
        ("rocksdb:///a/rocks", "a/rocks"),
    ],
)
def test_a_relative_path_begins_where_the_process_runs(
    url: str | Path, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_index(url) as index, index.session():
        index.results.put(b"k", b"v")
    assert (tmp_path / path).exists()
    monkeypatch.chdir("/")
    with open_index(index.address, read_only=True) as again:
        assert again.results.get(b"k") == b"v"


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
@pytest.mark.parametrize("opening", [open_index, open_projections])
def test_three_slashes_never_begin_anew_where_they_led_to_a_store_before(
    scheme: str, opening: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    opening(f"{scheme}:///{tmp_path}/x").close()
    with pytest.raises(Invalid) as caught:
        opening(f"{scheme}://{tmp_path}/x")
    assert caught.value.code == "address.relative"
    assert f"{scheme}:///{tmp_path}/x" in str(caught.value.next_step)
    assert list((tmp_path / "here").iterdir()) == []
    new = f"{scheme}:///{tmp_path}/here{tmp_path}/x"
    assert new in str(caught.value.next_step)
    opening(new).close()
    opening(f"{scheme}://{tmp_path}/x").close()


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
