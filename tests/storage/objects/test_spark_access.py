"""Credentials are configured once, for Spark: our own client gets at the same places with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.base import jvm
from holdfast.errors import HoldfastError
from holdfast.storage.objects import open_objects
from holdfast.storage.objects.open import keys_without_token
from holdfast.storage.objects.spark_access import OpenedForSpark, spark_access
from servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from sparks import reach_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROFILES = "software.amazon.awssdk.auth.credentials.SystemPropertyCredentialsProvider"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_what_spark_writes_is_read_with_sparks_settings(spark: SparkSession, s3a_bucket: str, scheme: str) -> None:
    spark.range(3).coalesce(1).write.parquet(f"s3a://{s3a_bucket}/rows")
    objects = spark_access(spark, f"{scheme}://{s3a_bucket}/rows").open()
    assert [info.key.partition("-")[0] for info in objects.list("")] == ["_SUCCESS", "part"]


def test_options_come_before_sparks_settings(spark: SparkSession, s3a_bucket: str, s3_server: S3Server) -> None:
    reach_bucket(spark, s3a_bucket, "http://127.0.0.1:9")
    access = spark_access(spark, f"s3a://{s3a_bucket}", s3_server.options)
    access.open().create("key", [b"body"])
    assert access.open().read("key", limit=10) == b"body"


def test_keys_that_only_the_connector_knows(spark: SparkSession, s3a_bucket: str, s3_server: S3Server) -> None:
    """A role's keys are in no setting: the connector gets and renews them."""
    reach_bucket(spark, s3a_bucket, s3_server.endpoint, access_key="", secret_key="", aws_credentials_provider=PROFILES)
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    system.setProperty("aws.accessKeyId", ACCESS_KEY)
    system.setProperty("aws.secretAccessKey", SECRET_KEY)
    try:
        access = spark_access(spark, f"s3a://{s3a_bucket}")
        access.open().create("key", [b"body"])
        elsewhere = open_objects(f"s3://{s3a_bucket}", options=access.options_now())
        assert elsewhere.read("key", limit=10) == b"body"
        assert ACCESS_KEY in (access.options_now() or {}).values()
    finally:
        system.clearProperty("aws.accessKeyId")
        system.clearProperty("aws.secretAccessKey")


def test_keys_that_hold_for_a_while_are_not_asked_for_with_every_request(s3_server: S3Server) -> None:
    asked = []

    def keys() -> dict[str, str]:
        asked.append(1)
        return {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}

    place = {name: value for name, value in s3_server.options.items() if "key" not in name}
    objects = open_objects(f"s3://{s3_server.new_bucket()}", options=place, credentials=keys)
    for number in range(6):
        objects.create(str(number), [b"body"])
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({"access_key_id": "k", "secret_access_key": "s"}, {"access_key_id": "k", "secret_access_key": "s"}),
        ({"AWS_ACCESS_KEY_ID": "k", "aws_secret_access_key": "s"}, {"access_key_id": "k", "secret_access_key": "s"}),
        ({"access_key_id": "k", "secret_access_key": "s", "token": "t"}, None),
        ({"access_key_id": "k", "secret_access_key": "s", "aws_session_token": "t"}, None),
        ({"region": "r"}, None),
    ],
)
def test_a_session_token_of_the_environment_does_not_go_with_other_keys(
    options: dict[str, str], own: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys_without_token(options) is None
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    found = keys_without_token(options)
    assert (found() if found else None) == own


def test_wrong_keys_are_refused(spark: SparkSession, s3a_bucket: str, s3_server: S3Server) -> None:
    reach_bucket(spark, s3a_bucket, s3_server.endpoint, secret_key="wrong")
    with pytest.raises(HoldfastError) as refused:
        spark_access(spark, f"s3a://{s3a_bucket}").open().create("key", [b"body"])
    assert "wrong" not in str(refused.value)
    assert refused.value.code == "cloud.denied"


def test_a_store_is_opened_once_for_each_spark(
    spark: SparkSession, s3a_bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenedForSpark(f"s3a://{s3a_bucket}", None)
    with monkeypatch.context() as before:
        before.setattr("holdfast.storage.objects.spark_access.running_spark", lambda: None)
        before.setattr("holdfast.storage.objects.spark_access.active_session", lambda: None)
        without = opened.open()
        assert opened.open() is without
    reach_bucket(spark, s3a_bucket, "http://127.0.0.1:9")
    first = opened.open()
    assert first is not without
    reach_bucket(spark, s3a_bucket, s3_server.endpoint)
    assert opened.open(spark.newSession()) is first
    monkeypatch.setattr("holdfast.storage.objects.spark_access.running_spark", lambda: "another one")
    second = opened.open()
    second.create("key", [b"body"])
    assert opened.open() is second
    monkeypatch.setattr("holdfast.storage.objects.spark_access.running_spark", lambda: None)
    assert opened.open() is second


def test_given_options_are_for_every_spark(spark: SparkSession, s3a_bucket: str, s3_server: S3Server) -> None:
    reach_bucket(spark, s3a_bucket, "http://127.0.0.1:9")
    opened = OpenedForSpark(f"s3a://{s3a_bucket}", s3_server.options)
    opened.open(spark).create("key", [b"body"])
    assert opened.open() is opened.open(spark)


def test_settings_are_copied_once(spark: SparkSession, s3a_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[object] = []

    def counted(session: SparkSession) -> object:
        copies.append(session)
        return settings(session)

    settings = jvm._hadoop_settings
    monkeypatch.setattr(jvm, "_hadoop_settings", counted)
    assert (spark_access(spark, f"s3a://{s3a_bucket}").options or {})["secret_access_key"] == SECRET_KEY
    assert len(copies) == 1


def test_secrets_are_not_shown(spark: SparkSession, s3a_bucket: str) -> None:
    assert SECRET_KEY not in repr(spark_access(spark, f"s3a://{s3a_bucket}"))
