"""What Spark's Hadoop settings say about object storage and HDFS, as options of our own clients. Pure.

Spark reads `s3a://`, `abfss://`, `gs://` and `hdfs://` through Hadoop, and Holdfast the same places through obstore and
hdfs-native.
Users configure the first; this translates it for the second. What a connector finds out by itself (an instance's role,
an assumed role) is not in its settings: see `needs_connector`.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable

from holdfast.base.addresses import AZURE_SCHEMES, HDFS_SCHEME, S3_SCHEMES, remote_parts, scheme_of

Setting = Callable[[str], str | None]
"""The value of a Hadoop setting; None if it is not set."""

_STATIC_KEYS = {
    "access.key": "access_key_id",
    "secret.key": "secret_access_key",
    "session.token": "token",
    "endpoint.region": "region",
}
_PLAIN_PROVIDERS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_PROVIDERS_LIKE_OURS = ("EnvironmentVariableCredentialsProvider", "IAMInstanceCredentialsProvider")
"""What they find, our own client finds by itself: keys in the environment, and the role of this machine."""
_ANONYMOUS = "AnonymousAWSCredentialsProvider"
_AUTHENTICATION = "hadoop.security.authentication"
_HDFS_NAMES = (_AUTHENTICATION, "dfs.data.transfer.protection", "dfs.client.use.datanode.hostname")
_ENCRYPTIONS = {"SSE-S3": "AES256", "AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}


def store_options(address: str, setting: Setting) -> dict[str, str]:
    """Options with which our client reaches what Spark reaches at `address`; empty if its settings say nothing."""
    scheme = scheme_of(address)
    if scheme in S3_SCHEMES:
        return _s3_options(_bucket(address), setting)
    if scheme in AZURE_SCHEMES:
        return _azure_options(address, setting)
    if scheme == "gs":
        return _google_options(setting)
    return _hdfs_options(_bucket(address), setting) if scheme == HDFS_SCHEME else {}


def needs_connector(address: str, setting: Setting) -> bool:
    """Whether only Spark's connector can tell the credentials: the settings name another way to get them than keys, or
    than the environment and the machine's role.

    Hadoop's default is keys in the settings, or else those two, which needs no connector, nor its jar.
    """
    if scheme_of(address) not in S3_SCHEMES:
        return False
    own = _of_bucket(_bucket(address), setting)
    providers = (own("aws.credentials.provider") or "").split(",")
    named = {name.strip().rpartition(".")[2] for name in providers if name.strip()}
    takes_keys = not named or not named.isdisjoint(_PLAIN_PROVIDERS)
    has_unused_keys = own("access.key") is not None and not takes_keys and _ANONYMOUS not in named
    return has_unused_keys or not named <= {*_PLAIN_PROVIDERS, *_PROVIDERS_LIKE_OURS, _ANONYMOUS}


def _s3_options(bucket: str, setting: Setting) -> dict[str, str]:
    own = _of_bucket(bucket, setting)
    found = {option: value for name, option in _STATIC_KEYS.items() if (value := own(name))}
    if endpoint := own("endpoint"):
        has_tls = (own("connection.ssl.enabled") or "true").lower() != "false"
        found["endpoint"] = endpoint if "://" in endpoint else f"http{'s' if has_tls else ''}://{endpoint}"
    if _ANONYMOUS in (own("aws.credentials.provider") or ""):
        found["skip_signature"] = "true"
    if encryption := _ENCRYPTIONS.get(own("encryption.algorithm") or ""):
        found["server_side_encryption"] = encryption
        if key := own("encryption.key"):
            found["sse_kms_key_id"] = key
    return found


def _of_bucket(bucket: str, setting: Setting) -> Setting:
    """A setting of the connector: the one for this bucket comes before the one for all."""
    return lambda name: setting(f"fs.s3a.bucket.{bucket}.{name}") or setting(f"fs.s3a.{name}")


def _azure_options(address: str, setting: Setting) -> dict[str, str]:
    host = urllib.parse.urlsplit(address).hostname or ""
    account = host.partition(".")[0] if "." in host else ""
    if not account:
        return {}

    def own(name: str) -> str | None:
        return setting(f"{name}.{host}") or setting(name)

    found = {"account_name": account}
    if key := own("fs.azure.account.key"):
        found["account_key"] = key
    if token := own("fs.azure.sas.fixed.token"):
        found["sas_key"] = token
    if (client := own("fs.azure.account.oauth2.client.id")) and (
        secret := own("fs.azure.account.oauth2.client.secret")
    ):
        tenant = re.search(r"://[^/]+/([^/]+)/", own("fs.azure.account.oauth2.client.endpoint") or "")
        found |= {"client_id": client, "client_secret": secret} | ({"tenant_id": tenant[1]} if tenant else {})
    return found


def _google_options(setting: Setting) -> dict[str, str]:
    names = ("fs.gs.auth.service.account.json.keyfile", "google.cloud.auth.service.account.json.keyfile")
    keyfile = next((value for name in names if (value := setting(name))), None)
    return {"service_account": keyfile} if keyfile else {}


def _hdfs_options(service: str, setting: Setting) -> dict[str, str]:
    """Where the NameNodes of a nameservice are, and what hdfs-native cannot find out by itself."""
    found = {name: value for name in _HDFS_NAMES if (value := setting(name))}
    members = f"dfs.ha.namenodes.{service}"
    if named := setting(members):
        found[members] = named
        addresses = [f"dfs.namenode.rpc-address.{service}.{node.strip()}" for node in named.split(",")]
        found |= {name: value for name in addresses if (value := setting(name))}
    if found.get(_AUTHENTICATION) == "simple":  # Hadoop's default; the user may not have set it
        del found[_AUTHENTICATION]
    return found


def _bucket(address: str) -> str:
    return remote_parts(address).host
