"""How our own client gets at what Spark reads and writes: credentials are configured once, for Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.base.addresses import HDFS_SCHEME, is_cloud, scheme_of, spark_address, without_secrets
from holdfast.base.hadoop_settings import needs_connector, store_options
from holdfast.base.jvm import active_session, connector_credentials, hadoop_setting, running_spark
from holdfast.errors import Unavailable, one_line
from holdfast.storage.objects.cloud_errors import NO_KEYS
from holdfast.storage.objects.open import Credentials, open_objects
from holdfast.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Access(msgspec.Struct, frozen=True):
    """The options and the keys for one address. Not to be shown or stored: it holds secrets."""

    address: str
    options: dict[str, str] | None = None
    credentials: Credentials | None = None
    """Keys that are valid for a while only; None if the options hold them, or the environment."""

    def __repr__(self) -> str:
        return f"Access({self.address!r})"

    def open(self) -> ObjectStore:
        """The place as an object store, in the driver."""
        return open_objects(self.address, options=self.options, credentials=self.credentials)

    def options_now(self) -> dict[str, str] | None:
        """Options with which another process opens it, right now: they go with a job and are not kept."""
        if self.credentials is None:
            return self.options
        return {**(self.options or {}), **self.credentials()}


def spark_access(spark: SparkSession, address: str, options: Mapping[str, str] | None = None) -> Access:
    """Access to an address by `options`, or else by what Spark's settings say, or else by the environment."""
    if options is not None or not (is_cloud(address) or scheme_of(address) == HDFS_SCHEME):
        return Access(address, dict(options) if options is not None else None)
    setting = hadoop_setting(spark)
    found = store_options(address, setting) or None
    if not needs_connector(address, setting):
        return Access(address, found)
    return Access(address, found, lambda: _connector_keys(spark, address))


def _connector_keys(spark: SparkSession, address: str) -> dict[str, str]:
    try:
        return connector_credentials(spark, spark_address(address))
    except Exception as error:
        shown = without_secrets(address)
        raise Unavailable(
            f"Spark's connector has no credentials for {shown}: {one_line(error)}",
            code="cloud.credentials",
            about=shown,
            unchanged="the store",
            next_step=NO_KEYS,
        ) from error


class OpenedForSpark:
    """The object store at an address, opened on first use: with the given options, else with Spark's settings, else
    from the environment.

    Opened once for each Spark that runs in this process: another one may have other settings, and keys that have to be
    renewed are asked of the Spark that gave them. When it has ended, the store stays open as it is.
    """

    def __init__(self, address: str, options: Mapping[str, str] | None) -> None:
        self._address = address
        self._access = Access(address, dict(options)) if options is not None else None
        self._has_options = options is not None
        self._opened: ObjectStore | None = None
        self._spark: object | None = None

    def access(self, session: SparkSession | None = None) -> Access:
        """`session` is the one to ask; by default that which is active, if there is one."""
        spark = None if self._has_options else running_spark()
        if self._access is None or (spark is not None and spark is not self._spark):
            session = session or active_session()
            if self._access is None or session is not None:
                self._access = spark_access(session, self._address) if session else Access(self._address)
                self._spark = spark if session else None
                self._opened = None
        return self._access

    def open(self, session: SparkSession | None = None) -> ObjectStore:
        """The store. `session` as for `access`."""
        access = self.access(session)
        if self._opened is None:
            self._opened = access.open()
        return self._opened
