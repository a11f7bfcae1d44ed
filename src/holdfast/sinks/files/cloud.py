"""`CloudFiles`: epochs on object storage, which has no rename.

    <path>/_holdfast.json                     whose path it is
    <path>/_spark_metadata/N                  the log: what Spark's readers see
    <path>/epoch=000017/_epoch                which staged output the epoch is
    <path>/epoch=000017/part-*                its files
    <path beside>/_<name>.holdfast-staging/   what is staged

A commit creates `_epoch` if absent, copies the staged files beside it, and appends the epoch to the log. Each of the
three may be repeated by any driver, with the effect of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.base.addresses import remote_parts, scheme_of
from holdfast.base.parallel import in_parallel
from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, NotFound, Unavailable
from holdfast.sinks.files.address import sink_path
from holdfast.sinks.files.cloud_staging import CloudStaging, EpochRecord, encode_record, read_record
from holdfast.sinks.files.layout import EPOCH_FILE, CommittedFile, FileLayout
from holdfast.sinks.files.spark_metadata_format import LoggedEpoch
from holdfast.sinks.files.spark_metadata_log import FIRST, SparkMetadataLog
from holdfast.sinks.files.trial_write import try_out
from holdfast.sinks.owner_file import OWNER_FILE, DirectoryOwner, OwnerFile
from holdfast.sinks.sink import Delivery, Descriptor, SinkProgress, check_same_delivery
from holdfast.sinks.spark_write import write_rows
from holdfast.sinks.staged_name import gone, name_in, parse
from holdfast.storage.objects.cloud import CloudObjects
from holdfast.storage.objects.spark_access import OpenedForSpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COPIES_AT_ONCE = 16
TRIED = "_tried"
MOST_ATTEMPTS = 10
T = TypeVar("T")


class CloudFiles:
    """The path of a file sink, on object storage."""

    def __init__(self, address: str, layout: FileLayout, storage_options: Mapping[str, str] | None) -> None:
        self.path = sink_path(address)
        _, bucket, path = remote_parts(self.path)
        self._given = f"{scheme_of(address)}://{bucket}/{path}"
        self._layout = layout
        parent, _, self._name = self.path.rpartition("/")
        self._access = OpenedForSpark(parent, storage_options)
        self._opened: _Opened | None = None

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """Claim the path, begin its log, and have Spark write a file without rows beside it."""
        opened = self._open()
        opened.owner.claim(self._layout.owner(delivery))
        opened.log.begin()
        with opened.staging.new(delivery) as name:
            opened.objects.check_conditions(opened.staging.key(name, "_conditions"))
            self._try_copy(opened, name)
            try_out(schema, opened.staging.path(name), self._layout, about=self.path)
            opened.staging.remove(name)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        opened = self._open(frame.sparkSession)
        opened.owner.require(self._layout.owner(delivery))
        published = self._record(opened, delivery)
        # Compared before the epoch is decided: afterwards it would be owed, and could never be committed.
        self._compare(delivery, mine=delivery.mark, found=published.mark if published else None)
        with opened.staging.new(delivery) as name:
            write_rows(frame, opened.staging.path(name), self._layout.format, options=self._layout.options)
            sealed = opened.staging.seal(name, delivery)
            # Before the epoch is decided: one that the log has no room for could never be committed.
            opened.log.check_room(LoggedEpoch(delivery.lineage, delivery.epoch, delivery.mark, sealed.files))
        return {"staged": name, "mark": delivery.mark}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        opened = self._open()
        name = name_in(descriptor, delivery, area=opened.staging.address)
        if not opened.is_owned:
            opened.owner.require(self._layout.owner(delivery))
            opened.is_owned = True
        epoch = (delivery.lineage, delivery.epoch)
        with step("sink.publish", epoch=delivery.epoch):
            if not opened.log.is_committed(epoch):
                self._publish(opened, name, delivery, mark=descriptor.get("mark"))
        self._compare(delivery, mine=descriptor.get("mark"), found=opened.log.committed().get(epoch))
        opened.staging.remove_leftovers(delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        opened = self._open()
        name = name_in(descriptor, delivery, area=opened.staging.address)
        published = self._record(opened, delivery)
        if published is None or published.staged != name:  # else a commit has begun
            opened.staging.remove(name)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        opened = self._open()
        if not opened.owner.is_owned(self._layout.owner(delivery)):
            return SinkProgress()
        committed = opened.log.committed(fresh=True)  # the newest of a lineage, too, if it has left the log
        with step("sink.discard", generation=delivery.generation):
            for name in opened.staging.over(delivery, keep):
                found = parse(name)
                assert found is not None
                of = msgspec.structs.replace(delivery, lineage=found.lineage, epoch=found.epoch)
                published = None if opened.log.is_committed((of.lineage, of.epoch)) else self._record(opened, of)
                if published is None or published.staged != name:
                    opened.staging.remove(name)
        lineages = [lineage for lineage, _ in committed]
        epochs = [epoch for lineage, epoch in committed if lineage == delivery.lineage]
        return SinkProgress(max(epochs, default=None), max(lineages, default=None))

    def owner(self) -> DirectoryOwner | None:
        return self._open().owner.read()

    def files(self) -> list[CommittedFile]:
        opened = self._open()
        if opened.owner.read() is None:
            raise opened.owner.unready()
        found = []
        for logged in opened.log.epochs():
            at = f"{self._given}/{self._layout.directory(Delivery('', '', logged.lineage, logged.epoch))}"
            found += [
                CommittedFile(f"{at}/{file.name}", file.size, logged.lineage, logged.epoch) for file in logged.files
            ]
        return found

    def _try_copy(self, opened: _Opened, name: str) -> None:
        """Copy an object to the path and remove it there: a commit will need the right to do so."""
        source, target = opened.staging.key(name, TRIED), f"{self._name}/{TRIED}"
        opened.objects.create(source, [b"tried"])
        opened.objects.copy(source, target)
        opened.objects.delete([target])

    def _publish(self, opened: _Opened, name: str, delivery: Delivery, *, mark: str | None) -> None:
        """Show the epoch, as it was staged by this driver or by another. `StagedOutputGone` if nothing is left of it,
        `Corrupt` if another driver has begun to publish it from other data."""
        epoch = (delivery.lineage, delivery.epoch)
        given_up: list[EpochRecord] = []
        for _ in range(MOST_ATTEMPTS):
            mine = opened.staging.record(name)
            chosen = self._choose(opened, mine, delivery)
            if chosen is not None:
                self._compare(delivery, mine=mark, found=chosen.mark)
                if self._copy(opened, chosen):
                    self._check_copies(opened, chosen)
                    opened.log.append(LoggedEpoch(delivery.lineage, delivery.epoch, chosen.mark, chosen.files))
                    self._withdraw(opened, delivery, [*given_up, chosen])
                    return
            # Published by another driver, which has removed what was staged; or removed without being published.
            if opened.log.is_committed(epoch, fresh=True):
                return
            if mine is None or chosen is None or chosen.staged == name:
                raise gone(delivery, where=opened.staging.path(name))
            given_up.append(chosen)
            self._replace(opened, chosen, mine)
        raise Conflict(
            f"Other drivers kept publishing {delivery} while this one did.",
            code="object.contended",
            about=self._shown(delivery),
            unchanged="everything that readers see",
            next_step="find the other drivers",
        )

    def _choose(self, opened: _Opened, mine: EpochRecord | None, delivery: Delivery) -> EpochRecord | None:
        """The record of the epoch, which is `mine` unless another driver was first; None if there is neither."""
        if mine is not None:
            with step("files.choose", epoch=delivery.epoch):
                try:
                    opened.objects.create(self._key(delivery, EPOCH_FILE), [encode_record(mine)])
                    return mine
                except Conflict:
                    pass
        return self._record(opened, delivery)

    def _copy(self, opened: _Opened, chosen: EpochRecord) -> bool:
        """Copy the staged files to where they belong; False if one is gone. Fine if they have been copied before."""

        def copy(file: str) -> bool:
            try:
                opened.objects.copy(opened.staging.key(chosen.staged, file), self._key(chosen, file))
            except NotFound as error:
                if error.code != "object.not-found":
                    raise
                return False
            return True

        with step("files.copy", files=len(chosen.files)):
            return all(in_parallel(copy, [file.name for file in chosen.files], at_once=COPIES_AT_ONCE, name="copy"))

    def _check_copies(self, opened: _Opened, chosen: EpochRecord) -> None:
        """`Unavailable` if a copy is not there as a whole. What was staged is removed once the epoch is in the log.

        A service may say that it has taken a copy on (Azure: 202) instead of having made it.
        """
        found = {info.key: info.size for info in opened.objects.list(self._key(chosen, ""))}
        for file in chosen.files:
            size = found.get(self._key(chosen, file.name), 0)
            if size != file.size:
                raise Unavailable(
                    f"The copy of {file.name} has {size} of {file.size} bytes, though the service has taken it.",
                    code="sink.files-copy",
                    about=self._shown(chosen),
                    unchanged=f"what was staged; {chosen} is still to be committed",
                    next_step="start the pipeline again: it copies the files again",
                )

    def _withdraw(self, opened: _Opened, delivery: Delivery, copied: Sequence[EpochRecord]) -> None:
        """Remove copies of staged outputs that the epoch, which is in the log, did not become.

        Not before: a driver that had copied one of them may still append it to the log.
        """
        if len(copied) < 2:
            return
        epoch = (delivery.lineage, delivery.epoch)
        listed = {
            file.name
            for logged in opened.log.epochs()
            if (logged.lineage, logged.epoch) == epoch
            for file in logged.files
        }
        with step("files.withdraw", epoch=delivery.epoch):
            left = [self._key(record, file.name) for record in copied for file in record.files]
            opened.objects.delete([key for key in left if key.rpartition("/")[2] not in listed])

    def _replace(self, opened: _Opened, old: EpochRecord, new: EpochRecord) -> None:
        """Choose another staged output, because that of the old choice is gone and was never published."""
        with step("files.choose", epoch=new.epoch):
            opened.objects.update(
                self._key(new, EPOCH_FILE),
                lambda body: encode_record(new) if body in (None, encode_record(old)) else None,
            )

    def _record(self, opened: _Opened, delivery: Delivery) -> EpochRecord | None:
        key = self._key(delivery, EPOCH_FILE)
        try:
            return read_record(opened.objects, key)
        except msgspec.DecodeError as error:
            raise Corrupt(
                f"{self._shown(delivery)}/{EPOCH_FILE} makes no sense: {error}",
                code="sink.files-epoch",
                about=self._shown(delivery),
                unchanged="everything",
                next_step="restore that object from a backup or an older version of it",
            ) from error

    def _compare(self, delivery: Delivery, *, mine: str | None, found: str | None) -> None:
        check_same_delivery(delivery, mine=mine, found=found, where=self._shown(delivery))

    def _key(self, delivery: Delivery, file: str) -> str:
        return f"{self._name}/{self._layout.directory(delivery)}/{file}"

    def _shown(self, delivery: Delivery) -> str:
        return f"{self.path}/{self._layout.directory(delivery)}"

    def _open(self, session: SparkSession | None = None) -> _Opened:
        """The parts of the path, through our own client."""
        objects = self._access.open(session)
        if self._opened is None or self._opened.objects is not objects:
            assert isinstance(objects, CloudObjects)
            self._opened = _Opened(objects, self.path, self._layout)
        return self._opened


class _Opened:
    """The parts of an opened path."""

    def __init__(self, objects: CloudObjects, address: str, layout: FileLayout) -> None:
        parent, _, name = address.rpartition("/")
        beside = f"_{name}.holdfast-staging"
        self.objects = objects
        self.log = SparkMetadataLog(objects, name, address=address, layout=layout)
        self.staging = CloudStaging(objects, beside, address=f"{parent}/{beside}")
        self.is_owned = False
        self.owner = OwnerFile(
            objects,
            f"{name}/{OWNER_FILE}",
            directory=address,
            names=lambda: {
                info.key.removeprefix(f"{name}/").partition("/")[0]
                for info in objects.some(f"{name}/", FIRST)
                if info.key != name  # the mark of an empty folder
            },
            unready="it was removed, or never prepared",
        )
