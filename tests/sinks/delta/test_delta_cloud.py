"""What a Delta table on object storage needs to know, without any storage."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import Invalid
from holdfast.sinks.delta.address import table_address
from holdfast.sinks.delta.cloud_errors import service_error
from holdfast.sinks.delta.cloud_options import delta_options
from holdfast.sinks.delta.object_file import ObjectFile
from holdfast.sinks.delta.partition_paths import partition_values
from holdfast.storage.objects.open import open_objects

ALWAYS = {"AWS_CONDITIONAL_PUT": "etag"}


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("s3a://bucket/lake/", "s3://bucket/lake"),
        ("S3://bucket/lake", "s3://bucket/lake"),
        ("gs://bucket/a/b", "gs://bucket/a/b"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss://c@account.dfs.core.windows.net/x"),
        ("/data/x", "/data/x"),
        ("file:///data/x", "/data/x"),
    ],
)
def test_addresses(given: str, means: str) -> None:
    assert table_address(given) == means


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("hdfs://namenode/lake", r"HDFS.*s3a://"),
        ("az://container/lake", "abfss://container@account"),
        ("ftp://host/lake", "not a place for a Delta table"),
        ("s3://", "not the address of a prefix"),
        ("s3://bucket/a?b=c", "leave out"),
        ("s3://bucket/a/../b", "without them"),
        ("s3://bucket//a", "not the address of a prefix"),
        ("s3://me:hunter2@bucket/x", "leave them out"),
        ("abfss://c:hunter2@account.dfs.core.windows.net/x", "leave them out"),
    ],
)
def test_addresses_that_are_refused(given: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        table_address(given)
    assert caught.value.code == "sink.address"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "environment", "found"),
    [
        (
            {"endpoint": "http://h:1", "access_key_id": "k", "secret_access_key": "s", "region": "r"},
            {},
            {
                "AWS_ENDPOINT_URL": "http://h:1",
                "AWS_ACCESS_KEY_ID": "k",
                "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_REGION": "r",
                "AWS_ALLOW_HTTP": "true",
            },
        ),
        (
            {"aws_secret_access_key": "s", "token": "t"},
            {"AWS_SESSION_TOKEN": "other"},
            {"AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"},
        ),
        (
            {"AWS_SECRET_ACCESS_KEY": "s"},
            {"AWS_SESSION_TOKEN": "other"},
            {"AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": ""},
        ),
        ({}, {"AWS_SESSION_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s"}, {}),
        (
            {},
            {"AWS_ENDPOINT_URL": "http://h:1"},
            {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ALLOW_HTTP": "true"},
        ),
    ],
)
def test_options(options: dict[str, str], environment: dict[str, str], found: dict[str, str]) -> None:
    assert delta_options("s3://bucket/x", options, environment) == ALWAYS | found


def test_options_of_other_services_have_the_same_names() -> None:
    assert delta_options("gs://bucket/x", {"service_account": "/key"}, {}) == {"service_account": "/key"}


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (
            "Generic S3 error \x1b[31m↳\x1b[0m 404 <Error><Code>NoSuchBucket</Code></Error>",
            "bucket.not-found",
            "bucket",
        ),
        (
            "lacked the necessary privileges\n403 Forbidden\n<Error><Code>AccessDenied</Code><Message>No.</Message>",
            "cloud.denied",
            "AccessDenied: No.",
        ),
        (
            "Generic S3 error\n  \x1b[31m↳\x1b[0m connection reset",
            "cloud.unavailable",
            "Generic S3 error connection reset",
        ),
        ("Error performing PUT http://169.254.169.254/latest/api/token", "cloud.credentials", "storage_options"),
        ("GET http://169.254.169.254/latest/meta-data - status code: 503 Service Unavailable", "cloud.unavailable", ""),
        (
            "an error occurred while loading credentials\n \x1b[31m↳\x1b[0m failed to load IMDS session token\n"
            " \x1b[31m↳\x1b[0m service error\n \x1b[31m↳\x1b[0m request forbidden",
            "cloud.credentials",
            "",
        ),
    ],
)
def test_failed_requests_in_words(text: str, code: str, says: str) -> None:
    error = service_error(OSError(text), "s3://bucket/x", "the table")
    assert error.code == code
    assert says in str(error)
    assert "\\x1b" not in str(error)


def test_partition_values_in_paths() -> None:
    path = "p0=2026-01-02/p1=a~2Fb~20~2520/p2=__HIVE_DEFAULT_PARTITION__/part-0.parquet"
    assert partition_values(path, ["day", "b", "c"]) == {"day": "2026-01-02", "b": "a/b %20", "c": None}
    assert partition_values("part-0.parquet", ["day"]) is None
    assert partition_values("part-0.parquet", []) == {}


def test_object_as_a_file() -> None:
    written = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(1000))}), written, row_group_size=100)
    objects = open_objects("memory://")
    objects.create("a/b", [written.getvalue()])
    file = ObjectFile(objects, "a/b", len(written.getvalue()))
    assert file.read(4) == b"PAR1"
    assert file.seek(-4, io.SEEK_END) == len(written.getvalue()) - 4
    assert file.read(100) == b"PAR1"
    assert file.read(1) == b""
    assert pq.ParquetFile(ObjectFile(objects, "a/b", len(written.getvalue()))).read()["n"].to_pylist() == list(
        range(1000)
    )
