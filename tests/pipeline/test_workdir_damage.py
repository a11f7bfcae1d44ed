"""A workdir is lost, or damaged in every way that is known to stop Spark: the pipeline goes on, exactly.

Every test begins with the same pipeline, some epochs old, whose state and watermark matter to what comes next.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from orders import check_nothing_is_left_over
from workshop import Workshop, remove

from holdfast.errors import Corrupt, Invalid
from products import in_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDERS = ["hdfs", "rocksdb-changelog"]
Damage = Callable[[Path], None]
VERSIONED = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(?:delta|snapshot|changelog|zip)")


@pytest.fixture(scope="module")
def workshops(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Workshop]:
    """A pipeline that has run twice, for each provider that is asked for."""

    @cache
    def worked(provider: str) -> Workshop:
        # One sink: what is damaged here is what they share. The soak has two.
        shop = Workshop(spark, tmp_path_factory.mktemp(provider) / "shop", provider, has_table=False)
        shop.arrive(3)
        shop.run()
        shop.arrive(2)
        shop.run()
        shop.check()
        shop.save()
        return shop

    return worked


@pytest.fixture
def shop(request: pytest.FixtureRequest, workshops: Callable[[str], Workshop]) -> Workshop:
    """The pipeline, as it was after those runs."""
    worked = workshops(getattr(request, "param", PROVIDERS[0]))
    worked.put_back()
    return worked


def goes_on(shop: Workshop) -> None:
    """More orders arrive, everything is delivered as if nothing had happened, and everything is in order.

    The runs before this one have ended, but their Spark has not: it may be tidying up the state of those.
    """
    runs_on(shop)
    check_nothing_is_left_over(shop.root, was_taken_over=True)


def runs_on(shop: Workshop) -> None:
    """More orders arrive, and everything is delivered as if nothing had happened."""
    shop.arrive()
    shop.run()
    shop.check()


def logs(workdir: Path, name: str) -> list[Path]:
    """The files of one of Spark's logs, the newest last."""
    return sorted((workdir / name).glob("[0-9]*"), key=lambda path: int(path.name))


def state_files(workdir: Path) -> list[Path]:
    """Files of the state's newest version, the largest last."""
    found = {path: VERSIONED.fullmatch(path.name) for path in (workdir / "state").rglob("*")}
    newest = max(int(match[1]) for match in found.values() if match)
    return sorted(
        (path for path, match in found.items() if match and int(match[1]) == newest),
        key=lambda path: path.stat().st_size,
    )


def flip(path: Path) -> None:
    """One bit is another: in a log of Spark's, a digit is another then."""
    body = bytearray(path.read_bytes())
    body[len(body) * 3 // 4] ^= 1
    path.write_bytes(body)


def delete_log(workdir: Path, name: str) -> None:
    for path in logs(workdir, name):
        path.unlink()


def empty_everything(workdir: Path) -> None:
    for path in workdir.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)


def empty_folder(workdir: Path) -> None:
    remove(workdir)
    workdir.mkdir()


def rewind(workdir: Path) -> None:
    """What people do by hand to repeat some batches."""
    for path in (*logs(workdir, "commits")[-2:], *logs(workdir, "offsets")[-2:]):
        path.unlink()


def halve_everything(workdir: Path) -> None:
    for path in workdir.rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)


def edit_offsets(workdir: Path) -> None:
    """With an editor, which knows nothing of the checksum beside it: Spark would jump there without a word."""
    newest = logs(workdir, "offsets")[-1]
    body = newest.read_text()
    end = re.search(r'"logOffset":(\d+)', body)
    assert end
    newest.write_text(body.replace(end[0], f'"logOffset":{int(end[1]) - 1}'))
    newest.with_name(f".{newest.name}.crc").unlink()


def repeat_state(workdir: Path) -> None:
    """The changes of an epoch are those of the one before, checksum and all: Spark would not notice."""
    newest = state_files(workdir)[-1]
    version = int(newest.name.partition(".")[0])
    for name in (f"{{}}{newest.suffix}", f".{{}}{newest.suffix}.crc"):
        shutil.copyfile(newest.with_name(name.format(version - 2)), newest.with_name(name.format(version - 1)))


def without_checksums(workdir: Path) -> None:
    for path in workdir.rglob(".*.crc"):
        path.unlink()


TABLE: dict[str, Damage] = {
    "gone": remove,
    "emptied": empty_folder,
    "every file empty": empty_everything,
    "every file halved": halve_everything,
    "newest commit empty": lambda workdir: os.truncate(logs(workdir, "commits")[-1], 0),
    "newest commit halved": lambda workdir: os.truncate(logs(workdir, "commits")[-1], 10),
    "newest commit gone": lambda workdir: logs(workdir, "commits")[-1].unlink(),
    "newest offsets empty": lambda workdir: os.truncate(logs(workdir, "offsets")[-1], 0),
    "newest offsets gone": lambda workdir: logs(workdir, "offsets")[-1].unlink(),
    "commits gone": lambda workdir: delete_log(workdir, "commits"),
    "offsets gone": lambda workdir: delete_log(workdir, "offsets"),
    "a gap in the offsets": lambda workdir: logs(workdir, "offsets")[-2].unlink(),
    "a gap in the commits": lambda workdir: logs(workdir, "commits")[-2].unlink(),
    "metadata gone": lambda workdir: (workdir / "metadata").unlink(),
    "metadata empty": lambda workdir: os.truncate(workdir / "metadata", 0),
    "newest state gone": lambda workdir: state_files(workdir)[-1].unlink(),
    "newest state empty": lambda workdir: os.truncate(state_files(workdir)[-1], 0),
    "newest state flipped": lambda workdir: flip(state_files(workdir)[-1]),
    "state repeated": repeat_state,
    "newest offsets edited": edit_offsets,
    "state gone": lambda workdir: remove(workdir / "state"),
    "logs gone, state kept": lambda workdir: [delete_log(workdir, name) for name in ("offsets", "commits")] and None,
    "sources gone": lambda workdir: remove(workdir / "sources"),
    "newest offsets and commits gone": rewind,
    "checksums gone": without_checksums,
    "a mark that says nothing": lambda workdir: os.truncate(workdir / ".holdfast.json", 0),
}


@pytest.mark.parametrize(("damage", "shop"), in_turn(TABLE, PROVIDERS), indirect=["shop"])
def test_damage_that_stops_spark(damage: str, shop: Workshop) -> None:
    TABLE[damage](shop.workdir)
    goes_on(shop)


KINDS: dict[str, Damage] = {"deleted": Path.unlink, "emptied": lambda path: os.truncate(path, 0), "flipped": flip}


def files_of(workdir: Path) -> list[Path]:
    """All its files by their names in it, hidden ones included."""
    return sorted(path.relative_to(workdir) for path in workdir.rglob("*") if path.is_file())


def damaged_one_by_one(shop: Workshop, files: Iterable[Path]) -> None:
    """Each file in its turn, the first one deleted, the second one emptied, the third one flipped, and so on."""
    problems = []
    for path, kind in zip(files, itertools.cycle(KINDS)):
        shop.put_back()
        KINDS[kind](shop.workdir / path)
        try:
            goes_on(shop)
        except Exception as problem:
            problems.append(f"{path} {kind}: {type(problem).__name__}: {str(problem)[:500]}")
    assert problems == []


def test_some_files_damaged(shop: Workshop) -> None:
    """The oldest of each kind, which the table has not: by its name without the numbers."""
    visible = [path for path in files_of(shop.workdir) if not path.name.startswith(".")]
    kinds = {re.sub(r"\d+", "", str(path)): path for path in reversed(visible)}
    assert len(kinds) > 5
    damaged_one_by_one(shop, kinds.values())


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shop", PROVIDERS, indirect=True)
def test_each_file_damaged(shop: Workshop) -> None:
    damaged_one_by_one(shop, files_of(shop.workdir))


def test_a_checksum_that_keeps_spark_from_starting(shop: Workshop) -> None:
    """No checkpoint holds it, and the query is refused before it has begun: the next start rebuilds the workdir."""
    flip(shop.workdir / ".metadata.crc")
    goes_on(shop)
    assert "Spark could not go on from it" in shop.said


def test_one_bit_in_the_newest_commit(shop: Workshop) -> None:
    """It holds the next watermark, and no checkpoint holds it yet: raised, everything to come would be late."""
    newest = logs(shop.workdir, "commits")[-1]
    body = newest.read_bytes()
    at = body.index(b"176") + 2
    newest.write_bytes(body[:at] + b"7" + body[at + 1 :])
    goes_on(shop)
    assert "is not what Spark wrote" in shop.said  # found before Spark had a chance to stumble


def test_somebody_elses_workdir(shop: Workshop) -> None:
    """Of another store and another query: nothing is touched."""
    for name, old, new in ((".holdfast.json", b"/store", b"/stone"), ("metadata", b'"id":"', b'"id":"0')):
        path = shop.workdir / name
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new))
    shop.arrive()
    before = contents(shop.root)
    with pytest.raises(Invalid, match="belongs to") as found:
        shop.run()
    assert found.value.code == "workdir.other-pipeline"
    assert changed(before, contents(shop.root)) == set()


def test_somebody_elses_files_in_the_workdir(shop: Workshop) -> None:
    """One file more does no harm, and is not taken for one of ours."""
    (shop.workdir / "state" / "0" / "0" / "999.delta").write_bytes(b"nonsense")
    (shop.workdir / "offsets" / "notes.txt").write_bytes(b"do not delete")
    goes_on(shop)


def test_a_planned_batch_that_was_never_decided_and_is_damaged(shop: Workshop) -> None:
    """A driver died after Spark had planned a batch. The plan is all that says which rows belong to it."""
    newest = logs(shop.workdir, "offsets")[-1]
    planned = newest.with_name(str(int(newest.name) + 1))
    planned.write_bytes(newest.read_bytes()[:-3])
    goes_on(shop)


# The workdir elsewhere, or of another time


@pytest.mark.parametrize(("how", "shop"), in_turn(["moved", "copied", "left behind"], PROVIDERS), indirect=["shop"])
def test_another_path(how: str, shop: Workshop) -> None:
    elsewhere = shop.root / "elsewhere" / "workdir"
    elsewhere.parent.mkdir()
    if how == "moved":
        shop.workdir.rename(elsewhere)
    elif how == "copied":
        shutil.copytree(shop.workdir, elsewhere)
        empty_everything(shop.workdir)
    before, shop.workdir = shop.workdir, elsewhere
    try:
        goes_on(shop)
    finally:
        shop.workdir = before


def test_an_old_workdir_put_back(shop: Workshop) -> None:
    shutil.copytree(shop.workdir, shop.root / "old")
    shop.arrive(2)
    shop.run()
    remove(shop.workdir)
    (shop.root / "old").rename(shop.workdir)
    goes_on(shop)


def set_back_the_store(shop: Workshop, *, batches_retained: int) -> None:
    """The store is two epochs behind; Spark has kept the files of so many batches."""
    old = shop.root / "old"
    shutil.copytree(shop.root / "store", old, ignore=shutil.ignore_patterns("workdir", ".workdir.*"))
    shop.arrive(2)
    shop.run(settings={"spark.sql.streaming.minBatchesToRetain": str(batches_retained)})
    shop.workdir.rename(old / "workdir")
    remove(shop.root / "store")
    old.rename(shop.root / "store")


def test_an_old_store_put_back(shop: Workshop) -> None:
    """Spark and the sinks are further than every checkpoint: they agree with each other, so it goes on from there."""
    set_back_the_store(shop, batches_retained=10)
    runs_on(shop)


def test_an_old_store_put_back_after_spark_has_tidied_up(shop: Workshop) -> None:
    """What the old checkpoint holds cannot be found in the workdir any more: whether it is whole, nobody can tell."""
    set_back_the_store(shop, batches_retained=1)
    stops_unchanged(shop, "sink.ahead")


def test_an_old_store_and_an_old_workdir_put_back(shop: Workshop) -> None:
    """The sinks have epochs that nobody else knows of: to run them again may give them other rows."""
    shutil.copytree(shop.root / "store", shop.root / "old")
    shop.arrive(2)
    shop.run()
    remove(shop.root / "store")
    (shop.root / "old").rename(shop.root / "store")
    stops_unchanged(shop, "sink.ahead")


# Damage in the store


def newest_manifest(shop: Workshop) -> Path:
    return max((shop.root / "store" / "checkpoints").glob("checkpoint_*/manifest.json"))


def newest_batch(shop: Workshop) -> Path:
    return max((shop.root / "store" / "checkpoints").rglob("batch-*.lz4"))


DAMAGED_STORE: dict[str, Callable[[Workshop], None]] = {
    "manifest flipped": lambda shop: flip(newest_manifest(shop)),
    "manifest emptied": lambda shop: os.truncate(newest_manifest(shop), 0),
    "manifest deleted": lambda shop: newest_manifest(shop).unlink(),
    "batch object flipped": lambda shop: flip(newest_batch(shop)),
    "batch object deleted": lambda shop: newest_batch(shop).unlink(),
    "pointer deleted": lambda shop: (shop.root / "store" / "checkpoints" / "latest.txt").unlink(),
}


MANIFESTS, BATCHES = ({name for name in DAMAGED_STORE if name.startswith(kind)} for kind in ("manifest", "batch"))


@pytest.mark.parametrize(("damage", "shop"), in_turn(DAMAGED_STORE, PROVIDERS, but=BATCHES), indirect=["shop"])
def test_the_newest_checkpoint_damaged(damage: str, shop: Workshop) -> None:
    """Spark and the sinks are an epoch further than the checkpoint before, and agree; the next one covers it all."""
    DAMAGED_STORE[damage](shop)
    runs_on(shop)
    remove(shop.workdir)
    runs_on(shop)


@pytest.mark.parametrize(("damage", "shop"), in_turn(DAMAGED_STORE, PROVIDERS, but=MANIFESTS), indirect=["shop"])
def test_the_newest_checkpoint_damaged_and_the_workdir_lost(damage: str, shop: Workshop) -> None:
    """The sinks have an epoch that no checkpoint can vouch for: it is neither repeated nor passed over."""
    healthy = shop.root / "healthy"
    shutil.copytree(shop.root / "store", healthy)
    DAMAGED_STORE[damage](shop)
    remove(shop.workdir)
    if damage == "pointer deleted":
        runs_on(shop)
        return
    stops_unchanged(shop, "sink.ahead")
    remove(shop.root / "store")  # as the error says: restore the store from a copy
    healthy.rename(shop.root / "store")
    shop.run()
    shop.check()


def stops_unchanged(shop: Workshop, code: str) -> None:
    before = contents(shop.root / "files")
    shop.arrive()
    with pytest.raises(Corrupt) as found:
        shop.run()
    assert found.value.code == code
    assert changed(before, contents(shop.root / "files")) == set()


def contents(*roots: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for root in roots for path in sorted(root.rglob("*")) if path.is_file()}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
