"""`open_objects`: from an address to its object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from obstore.store import MemoryStore, from_url

from holdfast.base.addresses import (
    CLOUD_SCHEMES,
    HDFS_SCHEME,
    is_local,
    local_path,
    remote_parts,
    scheme_of,
    without_secrets,
)
from holdfast.errors import HoldfastError, Invalid, one_line
from holdfast.storage.objects.cloud import CloudObjects
from holdfast.storage.objects.local import LocalObjects
from holdfast.storage.objects.retry import check_release
from holdfast.storage.objects.store import ObjectStore

CLIENT_SETTINGS = ("connect_timeout", "read_timeout", "timeout", "proxy_url", "user_agent")
ENDPOINT_SETTINGS = ("endpoint", "endpoint_url", "base_url", "google_base_url")
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL")
_shared_memory: dict[str, MemoryStore] = {}

RETRIES_OF_READS: Any = {
    "max_retries": 3,  # obstore asks for a role as often, a second or two each: what a start without credentials takes
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 2},
    "retry_timeout": timedelta(seconds=60),
}
Credentials = Callable[[], Mapping[str, str]]
"""Returns the keys for S3 that hold now: `access_key_id`, `secret_access_key` and, for short-lived ones, `token`."""

RENEWED_AFTER = timedelta(minutes=5)
"""How long keys of `Credentials` are used before they are asked for again."""

ASKED_BEFORE_THE_END = timedelta(minutes=5)
"""obstore asks again this long before keys expire."""

NO_RETRIES: Any = {"max_retries": 0}  # conditional writes are repeated by us, see `retry`


def open_objects(
    url: str | os.PathLike[str],
    *,
    options: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> ObjectStore:
    """Open the object store at an address; nothing is read or written yet.

    A path or `file://` is a local directory. `memory://` is new each time, `memory://name` is shared within
    this process. `s3://`, `gs://` and `az://` take their settings from `options`, named as in obstore
    (`endpoint`, `access_key_id`, `region`, ...), or from the environment as their own tools do. `credentials` are
    asked for keys again and again: those of a role are valid for an hour. `hdfs://host:port` and `hdfs://nameservice`
    take their settings from the files in HADOOP_CONF_DIR, and from `options`, named as in Hadoop.
    """
    url = os.fspath(url)
    if "\x00" in url or not url:
        raise Invalid(f"{url!r} is not an address.", code="address.refused", about=repr(url))
    if is_local(url):
        return LocalObjects(local_path(url))
    scheme, rest = scheme_of(url), url.partition("://")[2]
    if "://" not in url:
        raise Invalid(
            f"{url!r} looks like the address of a {url.partition(':')[0]} store, and lacks a slash.",
            code="address.refused",
            about=url,
            unchanged="everything: no directory of that name was made",
            next_step="write it with two slashes after the colon, as text rather than as a Path",
        )
    if scheme == "memory":
        name = rest.strip("/")
        store = _shared_memory.setdefault(name, MemoryStore()) if name else MemoryStore()
        return CloudObjects(store, f"memory://{name}")
    if scheme == HDFS_SCHEME:
        return _open_hdfs(url, options)
    if scheme not in CLOUD_SCHEMES:
        raise Invalid(
            f"{scheme}:// is not a kind of store that Holdfast knows.",
            code="address.scheme",
            about=without_secrets(url),
            next_step="use a path, file://, memory://, s3://, gs://, az:// or hdfs://",
        )
    return _open_cloud(f"{scheme}://{rest}", options, credentials)


def _open_cloud(url: str, options: Mapping[str, str] | None, credentials: Credentials | None) -> CloudObjects:
    shown = without_secrets(url)
    if not remote_parts(url).host:
        raise Invalid(f"{url} names no bucket.", code="address.bucket", about=url, next_step="write s3://bucket/path")
    check_release("obstore")
    config, client, endpoint = _split_options(options or {})
    given: Any = {"config": config, "client_options": client}
    credentials = credentials or keys_without_token(options or {})
    if credentials is not None:
        given["credential_provider"] = _provider(credentials)
    try:
        reads = from_url(url, **given, retry_config=RETRIES_OF_READS)
        writes = from_url(url, **given, retry_config=NO_RETRIES)
    except Exception as error:
        raise Invalid(
            f"{shown} could not be opened: {one_line(error)}",
            code="address.refused",
            about=shown,
            next_step="give the missing setting in the environment, in options, or with --option",
        ) from error
    return CloudObjects(reads, shown, writes=writes, service=f"{shown} at {without_secrets(endpoint)}")


def keys_without_token(options: Mapping[str, str]) -> Credentials | None:
    """The keys in the options, where obstore would put a session token from the environment beside them; else None."""
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    keys: dict[str, str] = {name: given[name] for name in ("access_key_id", "secret_access_key") if name in given}
    has_token = "token" in given or "session_token" in given
    return (lambda: keys) if len(keys) == 2 and not has_token and os.environ.get("AWS_SESSION_TOKEN") else None


def _provider(credentials: Credentials) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        try:
            keys = credentials()
        except HoldfastError as error:
            raise RuntimeError(error.message) from error  # obstore keeps no more of it than its text
        return {"token": None, **keys, "expires_at": datetime.now(UTC) + RENEWED_AFTER + ASKED_BEFORE_THE_END}

    return provide


def _open_hdfs(url: str, options: Mapping[str, str] | None) -> ObjectStore:
    _, host, path = remote_parts(url)
    parts = [part for part in path.split("/") if part]
    if not host or ":" in path:
        raise Invalid(
            f"{url} is not the address of a directory on HDFS.",
            code="address.refused",
            about=url,
            unchanged="everything",
            next_step="write hdfs://host:port/path, or hdfs://nameservice/path with HADOOP_CONF_DIR set; without a "
            "colon in the path",
        )
    try:
        from holdfast.storage.objects.hdfs import HdfsObjects
        from holdfast.storage.objects.hdfs_client import HdfsClient
    except ModuleNotFoundError as error:
        raise Invalid(
            f"A store on hdfs:// needs the package {error.name}.",
            code="hdfs.package",
            about=str(error.name),
            unchanged="everything",
            next_step="pip install 'holdfast[hdfs]'",
        ) from error
    check_release("hdfs-native")
    try:
        client = HdfsClient(f"hdfs://{host}", options)
    except Exception as error:
        raise Invalid(
            f"{url} could not be opened: {one_line(error)}",
            code="address.refused",
            about=url,
            unchanged="everything",
            next_step="add the port, or set HADOOP_CONF_DIR to the directory whose hdfs-site.xml has this nameservice",
        ) from error
    return HdfsObjects(client, "".join(f"/{part}" for part in parts), f"hdfs://{'/'.join([host, *parts])}")


def _split_options(options: Mapping[str, str]) -> tuple[Any, Any, str]:
    """Settings of the service and of its HTTP client, which obstore takes separately, and the endpoint, if given."""
    config = {key.lower(): value for key, value in options.items()}
    client: dict[str, Any] = {"connect_timeout": "5 seconds", "read_timeout": "30 seconds", "timeout": "30 minutes"}
    for key in list(config):
        bare = key.removeprefix("aws_")
        if bare == "allow_http":
            client[bare] = config.pop(key).lower() == "true"
        elif bare in CLIENT_SETTINGS:
            client[bare] = config.pop(key)
    # An http:// endpoint needs allow_http; the address is explicit enough, so we set it for the user.
    named = next((value for key, value in config.items() if key.removeprefix("aws_") in ENDPOINT_SETTINGS), None)
    endpoint = named or next((os.environ[name] for name in ENDPOINT_VARIABLES if os.environ.get(name)), "")
    if endpoint.startswith("http://"):
        client["allow_http"] = True
    return config or None, client, endpoint
