"""Spark's Hadoop settings as options of our own client: pure, by tables."""

from __future__ import annotations

import pytest

from holdfast.base.hadoop_settings import needs_connector, store_options

S3 = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}
KEYS = {"access_key_id": "key", "secret_access_key": "secret"}
AWS = "software.amazon.awssdk.auth.credentials"
S3A = "org.apache.hadoop.fs.s3a"
NAMESERVICE = {
    "dfs.ha.namenodes.ns": "nn1, nn2",
    "dfs.namenode.rpc-address.ns.nn1": "one:8020",
    "dfs.namenode.rpc-address.ns.nn2": "two:8020",
}
ADLS = "abfss://box@acme.dfs.core.windows.net/x"


@pytest.mark.parametrize(
    ("address", "settings", "options"),
    [
        ("hdfs://h:8020/x", {}, {}),
        ("hdfs://h:8020/x", {"hadoop.security.authentication": "simple"}, {}),
        (
            "hdfs://h:8020/x",
            {"hadoop.security.authentication": "kerberos", "dfs.client.use.datanode.hostname": "true"},
            {"hadoop.security.authentication": "kerberos", "dfs.client.use.datanode.hostname": "true"},
        ),
        ("hdfs://ns/x", NAMESERVICE | {"dfs.ha.namenodes.other": "nn3"}, NAMESERVICE),
        ("s3a://b/x", {}, {}),
        ("s3a://b/x", S3, KEYS),
        ("s3://b/x", S3, KEYS),
        ("S3A://b/x", S3, KEYS),
        ("s3a://b", S3 | {"fs.s3a.session.token": "short"}, KEYS | {"token": "short"}),
        ("s3a://b", {"fs.s3a.endpoint.region": "eu-west-1"}, {"region": "eu-west-1"}),
        ("s3a://b", {"fs.s3a.endpoint": "http://h:1"}, {"endpoint": "http://h:1"}),
        ("s3a://b", {"fs.s3a.endpoint": "h:1"}, {"endpoint": "https://h:1"}),
        (
            "s3a://b",
            {"fs.s3a.endpoint": "h:1", "fs.s3a.connection.ssl.enabled": "false"},
            {"endpoint": "http://h:1"},
        ),
        ("s3a://b", S3 | {"fs.s3a.bucket.b.access.key": "own"}, KEYS | {"access_key_id": "own"}),
        ("s3a://c", S3 | {"fs.s3a.bucket.b.access.key": "own"}, KEYS),
        (
            "s3a://b",
            {"fs.s3a.aws.credentials.provider": f"{S3A}.AnonymousAWSCredentialsProvider"},
            {"skip_signature": "true"},
        ),
        (
            "s3a://b",
            {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "arn:k"},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:k"},
        ),
        (ADLS, {}, {"account_name": "acme"}),
        (
            ADLS,
            {"fs.azure.account.key.acme.dfs.core.windows.net": "k"},
            {"account_name": "acme", "account_key": "k"},
        ),
        (
            ADLS,
            {"fs.azure.sas.fixed.token.acme.dfs.core.windows.net": "t"},
            {"account_name": "acme", "sas_key": "t"},
        ),
        (
            ADLS,
            {
                "fs.azure.account.oauth2.client.id": "i",
                "fs.azure.account.oauth2.client.secret": "s",
                "fs.azure.account.oauth2.client.endpoint": "https://login.example/tenant-1/oauth2/token",
            },
            {"account_name": "acme", "client_id": "i", "client_secret": "s", "tenant_id": "tenant-1"},
        ),
        ("az://box/x", {"fs.azure.account.key": "k"}, {}),
        ("gs://b/x", {"fs.gs.auth.service.account.json.keyfile": "/k.json"}, {"service_account": "/k.json"}),
        ("hdfs://h/x", S3, {}),
        ("/local", S3, {}),
    ],
)
def test_settings_become_options(address: str, settings: dict[str, str], options: dict[str, str]) -> None:
    assert store_options(address, settings.get) == options


@pytest.mark.parametrize(
    ("provider", "needed"),
    [
        (None, False),
        (f"{S3A}.SimpleAWSCredentialsProvider", False),
        (f"{S3A}.TemporaryAWSCredentialsProvider, {S3A}.SimpleAWSCredentialsProvider", False),
        (f"{S3A}.AnonymousAWSCredentialsProvider", False),
        (f"{S3A}.auth.AssumedRoleCredentialProvider", True),
        (f"{S3A}.SimpleAWSCredentialsProvider,{AWS}.ProfileCredentialsProvider", True),
        (
            # Hadoop's default, with the white space that it has there
            f"\n    {S3A}.TemporaryAWSCredentialsProvider,\n    {S3A}.SimpleAWSCredentialsProvider,\n    "
            f"{AWS}.EnvironmentVariableCredentialsProvider,\n    {S3A}.auth.IAMInstanceCredentialsProvider\n  ",
            False,
        ),
        (f"{AWS}.EnvironmentVariableCredentialsProvider", False),
    ],
)
def test_only_the_connector_knows_the_keys_of_a_role(provider: str | None, needed: bool) -> None:
    settings = {} if provider is None else {"fs.s3a.aws.credentials.provider": provider}
    assert needs_connector("s3a://b/x", settings.get) is needed


def test_keys_that_the_connector_passes_over_are_not_ours_to_use() -> None:
    settings = S3 | {"fs.s3a.aws.credentials.provider": f"{AWS}.EnvironmentVariableCredentialsProvider"}
    assert needs_connector("s3a://b/x", settings.get)


def test_a_bucket_may_have_a_provider_of_its_own() -> None:
    settings = {"fs.s3a.bucket.b.aws.credentials.provider": f"{S3A}.auth.AssumedRoleCredentialProvider"}
    assert needs_connector("s3a://b/x", settings.get)
    assert not needs_connector("s3a://c/x", settings.get)
