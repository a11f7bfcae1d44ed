from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from holdfast.base.addresses import (
    as_file_name,
    is_local,
    kv_absolute,
    kv_address,
    kv_path,
    local_path,
    remote_parts,
    scheme_of,
    spark_address,
    state_home,
    without_secrets,
)
from holdfast.errors import Invalid

LOCAL = [
    ("/data/x", "/data/x"),
    ("/data/../x/", "/x"),
    ("/data/a:b", "/data/a:b"),
    ("/data/a#b?c%20d", "/data/a#b?c%20d"),
    ("/data/a@b", "/data/a@b"),
    (Path("/data/x"), "/data/x"),
    ("x", "/here/x"),
    ("./x", "/here/x"),
    ("C:/x", "/here/C:/x"),
    ("a:b", "/here/a:b"),
    ("~", "/home/me"),
    ("~/x", "/home/me/x"),
    (Path("~/x"), "/home/me/x"),
    ("/data/~", "/data/~"),
    ("file:///data/x", "/data/x"),
    ("FILE:///data/x", "/data/x"),
    ("File:/data/x", "/data/x"),
    ("file:/data/x", "/data/x"),
    ("file:////data/x", "/data/x"),
    ("file://localhost/data/x", "/data/x"),
    ("file:///data/with%20space", "/data/with space"),
    ("file:///data/%C3%A9", "/data/é"),
    ("file:///data/%23%3F", "/data/#?"),
    ("file:///data/%FF", "/data/\udcff"),
    ("file:///~/x", "/~/x"),
    ("file:///", "/"),
]
ELSEWHERE = [
    "s3://bucket/x",
    "S3A://bucket/x",
    "s3:/bucket/x",
    "gs://bucket",
    "abfss://c@a.dfs.core.windows.net/x",
    "hdfs://host/x",
    "hdfs:/x",
    "dbfs:/x",
    "memory://",
    "memory://name",
    "sqlite:///x",
    "rocksdb:///x",
    "postgresql://host/db",
]
NEITHER = [
    "",
    "a\0b",
    "file:x",
    "FILE:x",
    "file://",
    "file://x",
    "file:///a?b",
    "file:///a#b",
    "file:///a%00b",
]


@pytest.mark.parametrize(("address", "path"), LOCAL, ids=repr)
def test_a_local_address_means_one_path(
    address: str | Path, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert is_local(address)
    assert local_path(address) == path.replace("/here", str(tmp_path))


@pytest.mark.parametrize("address", ELSEWHERE)
def test_an_address_with_another_scheme_is_not_local(address: str) -> None:
    assert not is_local(address)
    with pytest.raises(Invalid, match="not a local path") as caught:
        local_path(address)
    assert caught.value.code == "address.refused"


@pytest.mark.parametrize("address", NEITHER, ids=repr)
def test_an_address_that_means_no_path_is_refused(address: str) -> None:
    with pytest.raises(Invalid):
        local_path(address)


def test_the_code_of_a_refused_address_is_the_callers() -> None:
    with pytest.raises(Invalid, match="three slashes") as caught:
        local_path("file://host/x")
    assert caught.value.code == "address.host"
    assert "file:///host/x" in str(caught.value)
    for address in ("file://host/x", "s3://bucket", "", "file:x"):
        with pytest.raises(Invalid) as caught:
            local_path(address, code="sink.address")
        assert caught.value.code == "sink.address"


def test_a_refused_address_is_shown_without_secrets() -> None:
    with pytest.raises(Invalid) as caught:
        local_path("s3://key:secret@bucket/x?token=1")
    assert "secret" not in str(caught.value)
    assert "token" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("sqlite:///data/x.db", "/here/data/x.db"),
        ("SQLITE:///data/x.db", "/here/data/x.db"),
        ("sqlite:////data/x.db", "/data/x.db"),
        ("sqlite://///data/x.db", "/data/x.db"),
        ("rocksdb:///data/x", "/here/data/x"),
        ("rocksdb:////data/x", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("sqlite:///data/a%20b%3F%23", "/here/data/a b?#"),
        ("sqlite:////data/a%20b%3F%23", "/data/a b?#"),
        ("sqlite:///./data/../x", "/here/x"),
        ("sqlite:////data/../x", "/data/../x"),
    ],
)
def test_the_path_of_a_key_value_store(
    address: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = path.replace("/here", str(tmp_path))
    assert kv_path(address) == found
    assert kv_path(kv_absolute(address)) == found


@pytest.mark.parametrize(
    ("address", "absolute"),
    [
        ("x.db", "sqlite:////here/x.db"),
        ("./a:b %20", "sqlite:////here/a%3Ab%20%2520"),
        ("/data/x", "sqlite:////data/x"),
        (Path("/data/x"), "sqlite:////data/x"),
        ("~/x", "sqlite:////home/me/x"),
        ("sqlite:///x", "sqlite:////here/x"),
        ("file:///data/x", "file:///data/x"),
        ("redis://me:secret@host/0", "redis://me:secret@host/0"),
        ("memory://x", "memory://x"),
    ],
)
def test_the_address_of_a_key_value_store_in_every_process(
    address: str | Path, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert kv_absolute(address) == absolute.replace("/here", str(tmp_path))


def test_an_address_that_names_a_host_says_how_to_write_both_paths() -> None:
    for scheme in ("sqlite", "rocksdb"):
        with pytest.raises(Invalid) as caught:
            kv_path(f"{scheme}://data/x")
        assert f"{scheme}:///data/x " in str(caught.value.next_step)
        assert f"{scheme}:////data/x " in str(caught.value.next_step)


@pytest.mark.parametrize(
    "address",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite://relative.db",
        "sqlite:///x?mode=ro",
        "sqlite:///x#y",
        "sqlite:///x%00",
        "rocksdb://host/x?a",
    ],
)
def test_an_address_of_a_key_value_store_without_an_absolute_path_is_refused(address: str) -> None:
    with pytest.raises(Invalid) as caught:
        kv_path(address)
    assert caught.value.code == "address.refused"


def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A file at an absolute path, and one at the relative path of the same spelling."""
    absolute = tmp_path / "x.db"
    here = tmp_path / "here"
    relative = here / str(absolute)[1:]
    relative.parent.mkdir(parents=True)
    for path in (absolute, relative):
        path.touch()
    monkeypatch.chdir(here)
    return absolute, relative


def test_an_address_that_meant_another_file_which_exists_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    absolute, relative = both(tmp_path, monkeypatch)
    for _ in range(2):
        assert kv_path(f"sqlite://{absolute}") == str(relative)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("holdfast.sources", logging.WARNING)
    assert record.getMessage() == (
        f"sqlite://{absolute} means {relative}; {absolute} exists, too, which it meant in earlier releases. "
        f"Next: write sqlite:///{absolute} for that one, or sqlite:///{relative} for this one without the warning"
    )


def test_an_absolute_address_never_meant_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    absolute, relative = both(tmp_path, monkeypatch)
    assert kv_path(f"sqlite:///{absolute}") == str(absolute)
    absolute.unlink()
    assert kv_path(f"sqlite://{absolute}") == str(relative)
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/data/x.db", "/data/a b?#%20", os.fsdecode(b"/data/\xff")])
def test_every_path_has_an_address(path: str) -> None:
    assert kv_path(kv_address("sqlite", path)) == path


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://key:secret@bucket/x?token=1#f", "s3://bucket/x"),
        ("redis://:p@ss@host:1/0", "redis://host:1/0"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("postgresql://me:secret@[::1", "postgresql://[::1"),
        ("/data/a#b?c@d", "/data/a#b?c@d"),
        ("S3://bucket", "S3://bucket"),
        ("memory://", "memory://"),
    ],
)
def test_secrets_are_not_shown(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


@pytest.mark.parametrize(
    ("address", "parts", "as_spark_writes_it"),
    [
        ("S3://bucket/a b/c//", ("s3", "bucket", "a b/c"), "s3a://bucket/a b/c"),
        ("gs://bucket", ("gs", "bucket", ""), "gs://bucket"),
        ("gs://bucket/", ("gs", "bucket", ""), "gs://bucket"),
        ("s3a://bucket/a@b:c", ("s3a", "bucket", "a@b:c"), "s3a://bucket/a@b:c"),
        ("abfss://c@a.net/x", ("abfss", "c@a.net", "x"), "abfss://c@a.net/x"),
        ("abfss://c@127.0.0.1:10000/x", ("abfss", "c@127.0.0.1:10000", "x"), "abfss://c@127.0.0.1:10000/x"),
        ("hdfs://host:8020/x", ("hdfs", "host:8020", "x"), "hdfs://host:8020/x"),
        ("hdfs:///x", ("hdfs", "", "x"), "hdfs:///x"),
        ("s3:/bucket/x", ("s3", "", ""), "s3a://"),
    ],
)
def test_parts_of_a_remote_address(address: str, parts: tuple[str, str, str], as_spark_writes_it: str) -> None:
    assert remote_parts(address) == parts
    assert spark_address(address) == as_spark_writes_it


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3://me:hunter2@bucket/x", "a password"),
        ("s3://me@bucket/x", "a password"),
        ("s3://me:hunter2/hunter2@bucket/x", "a password"),
        ("s3a://bucket:9000/x", "a port"),
        ("abfss://c:hunter2@a.net/x", "a password"),
        ("abfss://c@hunter2@a.net/x", "a password"),
        ("hdfs://me@host:8020/x", "a password"),
        ("s3://bucket/x?token=hunter2", "?"),
        ("s3://bucket/x#hunter2", "#"),
        ("s3://bucket?x", "?"),
        ("s3://bucket/a/../b", ".."),
        ("hdfs://host/./b", ".."),
    ],
)
def test_a_remote_address_that_clients_read_differently_is_refused(address: str, says: str) -> None:
    for use in (remote_parts, spark_address):
        with pytest.raises(Invalid) as caught:
            use(address)
        assert says in caught.value.message
        assert caught.value.code == "address.refused"
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "scheme"), [("/x", "file"), ("File:///x", "file"), ("S3://b", "s3"), ("C:/x", "file"), ("x:y", "file")]
)
def test_schemes_in_any_case(address: str, scheme: str) -> None:
    assert scheme_of(address) == scheme


def test_state_is_kept_below_the_state_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_home("workdirs", "a b/c") == Path("/home/me/.local/state/holdfast/workdirs/a-b-c")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_home("workdirs", "x" * 300) == Path("/state/holdfast/workdirs") / ("x" * 200)


def test_a_workdir_for_a_store_elsewhere_keeps_its_name() -> None:
    name = f"shop orders-{as_file_name('s3://key:secret@bucket/a b/?x')}"
    assert state_home("workdirs", name).name == "shop-orders-bucket-a-b"
