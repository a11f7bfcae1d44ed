"""A workdir on S3 whose files were removed, emptied, cut short or changed, after a clean end and after another.

As on a disk (test_workdir_damage.py), the next start goes on exactly. After a clean end it goes on in the same place
unless something differs there; after any other end nothing is read there any more.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from buckets import Bucket
from orders import check_store
from workshop import Workshop

import holdfast
from holdfast.base import steps
from holdfast.errors import Invalid, Unavailable
from holdfast.pipeline.workdir.owner import OWNER_FILE
from holdfast.pipeline.workdir.workdir import STAMPS
from maven import require_jars
from servers.s3 import S3Server
from sparks import reach_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.s3

PROVIDERS = ["hdfs", "rocksdb-changelog"]
LIMIT = 1 << 24
GOES_ON = "Go on with the workdir as it is"


def flipped(body: bytes) -> bytes:
    at = len(body) * 3 // 4
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


KINDS: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda _: None,
    "emptied": lambda _: b"",
    "truncated": lambda body: body[: len(body) // 2],
    "flipped": flipped,
}


class BucketShop(Workshop):
    """A workshop whose workdir is in a bucket."""

    def __init__(self, spark: SparkSession, root: Path, provider: str, server: S3Server) -> None:
        super().__init__(spark, root, provider, has_table=False)
        self.server = server
        self.bucket = Bucket(server.new_bucket(), server.endpoint)
        self.workdir: Any = f"s3a://{self.bucket.name}/workdir"
        reach_bucket(spark, self.bucket.name, self.bucket.endpoint)
        self.files: dict[str, bytes] = {}

    def save(self) -> None:
        """The one place of the workdir, too: without the empty objects that stand for folders."""
        super().save()
        listed = self.bucket.objects.list("workdir/")
        self.files = {info.key: self.bucket.objects.read(info.key, limit=LIMIT) for info in listed if info.size}
        assert len(self.bucket.places()) == 1

    def put_back(self) -> None:
        super().put_back()
        self.server.forget(self.bucket.name, "workdir")
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda key: self.bucket.objects.create(key, [self.files[key]]), self.files))

    def replace(self, key: str, body: bytes | None) -> None:
        self.bucket.objects.delete([key])
        if body is not None:
            self.bucket.objects.create(key, [body])

    def newest(self, folder: str) -> str:
        """The file with the highest number in a folder of the place."""
        numbered = {key: re.fullmatch(rf"workdir/[^/]+/{folder}/(\d+)[^/]*", key) for key in self.files}
        return max((int(match[1]), key) for key, match in numbered.items() if match)[1]

    def die_before_it_delivers(self) -> None:
        """The epoch is decided, and no stamps say what the place was."""

        def fail(name: str, phase: str, _: float) -> None:
            if (name, phase) == ("sink.commit", "begin"):
                raise Unavailable("The driver dies.")

        stop = steps.observe(fail)
        try:
            with pytest.raises(Unavailable):
                self.run(restarts=0)
        finally:
            stop()


@pytest.fixture(scope="module")
def shops(
    spark: SparkSession, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], BucketShop]:
    """A pipeline that has run twice and ended so, for each provider and end that is asked for."""
    require_jars("s3a")

    @cache
    def worked(provider: str, end: str) -> BucketShop:
        shop = BucketShop(spark, tmp_path_factory.mktemp(provider) / "shop", provider, s3_server)
        shop.arrive(3)
        shop.run()
        shop.arrive(2)
        if end == "clean":
            shop.run()
            shop.check()
        else:
            shop.die_before_it_delivers()
        shop.save()
        assert (end == "clean") == any(key.endswith(STAMPS) for key in shop.files)
        return shop

    return worked


def goes_on(shop: BucketShop) -> None:
    """More orders arrive, everything is delivered as if nothing had happened, and everything is in order."""
    shop.arrive()
    shop.run()
    shop.check()
    check_store(holdfast.open_store(shop.root / "store"))


def damaged_one_by_one(shop: BucketShop, damages: Iterable[tuple[str, str]]) -> None:
    """Of an owner's mark that says something else the next start says that the workdir may be another pipeline's."""
    problems = []
    for key, kind in damages:
        shop.put_back()
        shop.replace(key, KINDS[kind](shop.files[key]))
        try:
            goes_on(shop)
        except Exception as problem:
            if not (key.endswith(OWNER_FILE) and isinstance(problem, Invalid)):
                problems.append(f"{key} {kind}: {type(problem).__name__}: {str(problem)[:500]}")
    assert problems == []


def test_one_digit_in_the_newest_commit(shops: Callable[[str, str], BucketShop]) -> None:
    """It holds the next watermark, and no checkpoint holds it yet: raised, everything to come would be late."""
    shop = shops("hdfs", "clean")
    shop.put_back()
    newest = shop.newest("commits")
    body = shop.files[newest]
    at = body.index(b"176") + 2
    shop.replace(newest, body[:at] + b"7" + body[at + 1 :])
    goes_on(shop)
    assert "has changed since the last query ended" in shop.said


def test_without_damage_a_place_is_gone_on_with(shops: Callable[[str, str], BucketShop]) -> None:
    shop = shops("hdfs", "clean")
    shop.put_back()
    goes_on(shop)
    assert GOES_ON in shop.said


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("end", ["clean", "unclean"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_file_damaged_in_each_way(provider: str, end: str, shops: Callable[[str, str], BucketShop]) -> None:
    shop = shops(provider, end)
    damaged_one_by_one(shop, itertools.product(sorted(shop.files), KINDS))
