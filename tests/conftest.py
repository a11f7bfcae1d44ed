"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("holdfast.testing")

from hypothesis import HealthCheck, settings  # noqa: E402

from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest  # noqa: E402
from maven import left_out, require_jars  # noqa: E402
from places import LocalPlace, MemoryPlace  # noqa: E402
from servers.azure import AzureServer, azurite_server  # noqa: E402
from servers.azure import left_out as left_out_without_node  # noqa: E402
from servers.gcs import GcsServer, gcs_server  # noqa: E402
from servers.hdfs import HdfsServer, hdfs_server  # noqa: E402
from servers.postgres import PostgresServer, postgres_server  # noqa: E402
from servers.s3 import S3Server, seaweedfs_server  # noqa: E402
from servers.valkey import ValkeyServer, valkey_server  # noqa: E402
from sparks import make_session, reach_bucket  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["allowed_skips"]

# What takes long here is the disk or the server, and both have bad moments.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run of the suite; `make soak` draws others from a seed that it prints.
settings.register_profile("holdfast", PATIENT, derandomize=True)
settings.register_profile("soak", PATIENT, derandomize=False, max_examples=500, print_blob=True)
settings.load_profile("holdfast")


def pytest_configure(config: pytest.Config) -> None:
    """What killed processes leave behind, a JVM with RocksDB 15 MB, goes when the run has ended."""
    if hasattr(config, "workerinput"):
        return
    usual = tempfile.gettempdir()
    own = tempfile.mkdtemp(prefix="holdfast-")
    os.chmod(own, 0o1777)  # as the usual one: PostgreSQL does not run as root
    # What pytest keeps of failed tests stays where people look for it.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    os.environ["TMPDIR"] = own
    tempfile.tempdir = None
    config.add_cleanup(lambda: shutil.rmtree(own, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no process is left with it when the others have ended."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """What has been collected stays: the garbage collector need not look at it each time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for line in (*left_out(reasons), *left_out_without_node(reasons)):
        terminalreporter.line(line)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server for all tests of this process; each takes a new bucket."""
    with seaweedfs_server() as server:
        yield server


@pytest.fixture(scope="session")
def google() -> Iterator[GcsServer]:
    """One Google Cloud Storage server for all tests of this process; each takes a new bucket."""
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    """One Azure server for all tests of this process; each takes a new container. Skipped where it cannot be had."""
    with azurite_server() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs() -> Iterator[HdfsServer]:
    """One HDFS for all tests of this process; each takes a new directory. Skipped where the server cannot be had."""
    with hdfs_server() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests of this process."""
    session = make_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def s3a_bucket(spark: SparkSession, s3_server: S3Server) -> str:
    """An empty bucket that Spark reaches through `s3a://`, by settings for this bucket alone."""
    require_jars("s3a")
    bucket = s3_server.new_bucket()
    reach_bucket(spark, bucket, s3_server.endpoint)
    return bucket


@pytest.fixture(scope="session")
def pg_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of this process; each takes a new database."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def index_dsn(pg_server: PostgresServer) -> str:
    """One database for the indexes of all tests of this process; each takes a new index."""
    return pg_server.new_database()


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One Valkey server for all tests of this process, which keeps everything; each takes a new index."""
    with valkey_server() as server:
        yield server


@pytest.fixture
def dsn(pg_server: PostgresServer) -> Iterator[str]:
    """An empty database."""
    made = pg_server.new_database()
    yield made
    pg_server.drop_database(made)


@pytest.fixture
def local(tmp_path: Path) -> LocalPlace:
    return LocalPlace(tmp_path / "store")


@pytest.fixture
def memory() -> MemoryPlace:
    return MemoryPlace()


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest) -> StoreUnderTest:
    """A store on each medium that needs no server."""
    found: StoreUnderTest = request.getfixturevalue(request.param)
    return found
