"""Bad days of S3, for pipelines with checkpoints, workdir, files or a Delta table there, or with all of them.

Each ends in a clear error within seconds, or is waited for. Nothing is lost, nothing is doubled.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.base.steps import Phase
from holdfast.errors import HoldfastError, Invalid
from holdfast.storage.objects import open_objects
from holdfast.testing.faults.proxy import Fault, FaultyProxy, LostReply, Request, Script, Status, Strip
from maven import require_jars
from pipeline.remote_shop import PARTS, RemoteShop, when
from servers.s3 import READ_ONLY_KEY, S3Server, environment_for, seaweedfs_server
from sparks import reach_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.s3, pytest.mark.timeout(600)]

SECONDS = 60
"""In which a start is refused, on a machine that does many other things as well."""


def reply(status: int, code: str) -> Status:
    return Status(status, f"<Error><Code>{code}</Code><Message>It says why.</Message></Error>".encode())


EXPIRED = reply(400, "ExpiredToken")
SLOW_DOWN = reply(503, "SlowDown")


def unconditional(request: Request) -> Fault | None:
    """A gateway that does not know conditions. Requests without a signature are let in."""
    is_ours = request.method == "PUT" and "object_store" in request.headers.get("user-agent", "")
    return Strip(("authorization", "if-none-match", "if-match")) if is_ours else None


class BadStart:
    def __init__(
        self,
        code: str,
        *,
        script: Script = lambda _: None,
        settings: dict[str, str] | None = None,
        is_there: bool = True,
        parts: tuple[str, ...] = PARTS,
    ) -> None:
        self.code, self.script, self.settings = code, script, settings or {}
        self.is_there, self.parts = is_there, parts


STARTS = {
    "wrong keys": BadStart("cloud.denied", settings={"secret_key": "wrong"}),
    "no keys": BadStart("cloud.credentials", settings={"access_key": "", "secret_key": ""}),
    "read-only keys": BadStart("cloud.denied", settings={"access_key": READ_ONLY_KEY}),
    "expired keys": BadStart("cloud.expired", script=lambda _: EXPIRED),
    "wrong clock": BadStart("cloud.clock", script=lambda _: reply(403, "RequestTimeTooSkewed")),
    "another region": BadStart("cloud.region", script=lambda _: reply(301, "PermanentRedirect")),
    "no bucket": BadStart("bucket.not-found", is_there=False),
    # A workdir needs no condition: a place belongs to one generation.
    "no conditions": BadStart("cloud.unconditional", script=unconditional, parts=("checkpoints", "files", "delta")),
}


class World:
    """Pipelines behind a proxy, each with a bucket of its own."""

    def __init__(self, spark: SparkSession, server: S3Server, proxy: FaultyProxy, folder: Path) -> None:
        self.spark, self.server, self.proxy, self.folder = spark, server, proxy, folder

    def shop(self, *parts: str, is_there: bool = True, **settings: str) -> RemoteShop:
        bucket = self.server.new_bucket() if is_there else f"no-such-bucket-{len(list(self.folder.iterdir()))}"
        reach_bucket(self.spark, bucket, self.proxy.endpoint, **settings)
        folder = self.folder / f"{len(list(self.folder.iterdir()))}"
        sinks = tuple(name for name in ("files", "delta") if name in parts) or ("files",)
        return RemoteShop(self.spark, folder, f"s3a://{bucket}/place", *parts, sinks=sinks)

    def keys(self, shop: RemoteShop) -> list[str]:
        objects = open_objects(shop.place.replace("s3a:", "s3:"), options=self.server.options)
        return [info.key for info in objects.list("")]

    def check(self, shop: RemoteShop) -> None:
        self.proxy.script = lambda _: None
        shop.check(environment_for(self.server.endpoint))

    def fail(self, shop: RemoteShop, script: Script, step: str, phase: Phase) -> HoldfastError:
        """The error of a run in whose second epoch the service begins to fail."""

        def begin() -> None:
            self.proxy.script = script

        with when(step, phase, begin, time=2) as seen, pytest.raises(HoldfastError) as caught:
            shop.run()
        assert seen[0] >= 2
        self.proxy.script = lambda _: None
        return caught.value


@pytest.fixture
def world(spark: SparkSession, s3_server: S3Server, tmp_path: Path) -> Iterator[World]:
    require_jars("s3a")
    with FaultyProxy(s3_server.endpoint) as proxy:
        yield World(spark, s3_server, proxy, tmp_path)


@pytest.mark.parametrize("name", STARTS)
def test_a_start_is_refused_at_once_wherever_it_is_met(world: World, name: str) -> None:
    """By the default number of restarts, of which none is made."""
    bad = STARTS[name]
    for part in bad.parts:
        shop = world.shop(part, is_there=bad.is_there, **bad.settings)
        shop.sell()
        world.proxy.script = bad.script
        began = time.monotonic()
        with pytest.raises(HoldfastError) as caught:
            shop.run(restarts=3)
        error = caught.value
        assert time.monotonic() - began < SECONDS
        assert error.code == bad.code, (part, str(error))
        assert shop.place.partition("://")[2].partition("/")[0] in str(error), part
        assert error.next_step, part
        assert shop.restarts == []
        assert not list((shop.folder / "files").glob("epoch=*"))
        world.proxy.script = lambda _: None
        if bad.is_there:
            assert not [key for key in world.keys(shop) if "part-" in key or "manifest" in key], part


def test_a_bad_day(world: World) -> None:
    """Prefixes that hold other things as well; keys that expire when an epoch is decided and nobody has it yet; then a
    service that loses replies, which costs no restart."""
    shop = world.shop(*PARTS)
    others = [f"{part}/readme.txt" for part in ("checkpoints", "workdir")] + ["workdir/metadata", "workdir/offsets/0"]
    _put(world, shop, others)
    shop.sell(2)
    error = world.fail(shop, lambda _: EXPIRED, "manifest.create", "end")
    assert error.code == "cloud.expired"
    assert error.unchanged
    count = itertools.count(1)
    world.proxy.script = lambda _: LostReply(reset=True) if next(count) % 7 == 0 else None
    shop.run()
    assert next(count) > 70
    world.check(shop)
    assert set(others) <= set(world.keys(shop))


@pytest.mark.soak
@pytest.mark.parametrize("part", ["files", "delta"])
def test_a_sink_takes_no_prefix_that_holds_something_else(world: World, part: str) -> None:
    taken = world.shop(part)
    taken.sell()
    _put(world, taken, [f"{part}/data/part-0.parquet"])
    with pytest.raises(Invalid, match="data"):
        taken.run()
    assert [key for key in world.keys(taken) if "_holdfast" not in key] == [f"{part}/data/part-0.parquet"]


def _put(world: World, shop: RemoteShop, keys: list[str]) -> None:
    objects = open_objects(shop.place.replace("s3a:", "s3:"), options=world.server.options)
    for key in keys:
        objects.create(key, [b"hello"])


MOMENTS: list[tuple[str, Phase]] = [
    ("manifest.create", "end"),
    ("epoch.capture", "begin"),
    ("manifest.create", "begin"),
    ("sink.commit", "begin"),
    ("epoch.settle", "end"),
]
REFUSALS = {
    "expired": (EXPIRED, {"cloud.expired", "spark.bad-request"}),
    "denied": (reply(403, "AccessDenied"), {"cloud.denied", "spark.denied"}),
}


@pytest.mark.soak
@pytest.mark.parametrize(("step", "phase"), MOMENTS)
@pytest.mark.parametrize("why", REFUSALS)
def test_keys_that_end_in_mid_run(world: World, why: str, step: str, phase: Phase) -> None:
    fault, codes = REFUSALS[why]
    shop = world.shop(*PARTS)
    shop.sell(3)
    error = world.fail(shop, lambda _: fault, step, phase)
    assert error.code in codes, str(error)
    assert error.unchanged
    assert error.next_step
    shop.run()
    world.check(shop)


@pytest.mark.soak
@pytest.mark.parametrize("every", [3, 5])
def test_many_replies_are_lost(world: World, every: int) -> None:
    """Spark's client and both of ours ask again, and find out what has happened."""
    shop = world.shop(*PARTS)
    shop.sell(4)
    count = itertools.count(1)
    world.proxy.script = lambda _: LostReply(reset=True) if next(count) % every == 0 else None
    _run_until_done(shop)
    world.check(shop)


@pytest.mark.soak
@pytest.mark.parametrize("part", [0.5, 1.0], ids=["half", "all"])
def test_a_minute_of_throttling_is_waited_for(world: World, part: float) -> None:
    shop = world.shop(*PARTS)
    shop.sell(4)
    count = itertools.count(1)
    until = [0.0]

    def busy(_: Request) -> Fault | None:
        return SLOW_DOWN if time.monotonic() < until[0] and next(count) % 2 < 2 * part else None

    def begin() -> None:
        until[0] = time.monotonic() + 60
        world.proxy.script = busy

    with when("epoch.capture", "begin", begin, time=2):
        shop.run()
    world.check(shop)
    assert shop.restarts == []


@pytest.mark.soak
@pytest.mark.parametrize(("step", "phase"), MOMENTS)
@pytest.mark.parametrize("seconds", [5, 60])
def test_a_server_is_killed_in_mid_epoch_and_comes_back(
    spark: SparkSession, tmp_path: Path, step: str, phase: Phase, seconds: int
) -> None:
    """Through a proxy, which stays: an address that other servers may take is none to come back to."""
    with seaweedfs_server() as server, FaultyProxy(server.endpoint) as proxy:
        world = World(spark, server, proxy, tmp_path)
        shop = world.shop(*PARTS)
        shop.sell(3)
        back = threading.Timer(seconds, server.start)

        def kill() -> None:
            server.kill()
            back.start()

        try:
            with when(step, phase, kill, time=2):
                _run_until_done(shop)
        finally:
            back.join()
        world.check(shop)


def _run_until_done(shop: RemoteShop) -> None:
    """As whatever starts a driver again when it has ended."""
    for _ in range(20):
        try:
            shop.run(restarts=3)
            return
        except HoldfastError as failed:
            error = failed
        assert error.next_step, str(error)
        time.sleep(2)
    raise AssertionError("it never came to its end")
