"""A Delta table on S3, written through s3a: what every sink does, and what is different there."""

from __future__ import annotations

import logging

import pytest
from delta_s3_place import AppendPlace, MergePlace, S3Place
from sink_places import committing

from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.sink import SinkProgress, StagedOutputGone
from holdfast.testing.conformance.sinks import A, B, ExactlyOnceConformance, delivery
from products import only
from servers.s3 import READ_ONLY_KEY, SECRET_KEY, options_for
from sparks import reach_bucket

pytestmark = pytest.mark.s3


@only(
    "test_rollback_does_not_undo_a_commit",
    "test_what_two_drivers_staged_is_committed_once",
    "test_commit_by_two_drivers_at_once",
    "test_stage_that_fails_leaves_nothing",
    "test_recover_sweeps_earlier_generations_only",
)
class TestAppend(AppendPlace, ExactlyOnceConformance):
    pass


@only(
    "test_commit_of_two_staged_outputs_at_once",
    "test_rolled_back_rows_never_show",
    "test_what_may_still_be_decided_goes_when_the_successor_commits_the_epoch",
)
class TestMerge(MergePlace, ExactlyOnceConformance):
    pass


class TestFiles(S3Place):
    def test_commit_copies_nothing(self) -> None:
        descriptor = self.stage(A, delivery(1))
        written = self.table.data()
        assert len(written) == 2
        self.sink.commit(descriptor, delivery(1))
        assert self.table.data() == written
        assert self.rows() == A

    def test_rolled_back_files_are_removed(self) -> None:
        self.sink.rollback(self.stage(A, delivery(1)), delivery(1))
        assert self.table.data() == []

    def test_files_of_a_driver_that_died_while_it_staged(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.table.objects.delete([f"_holdfast_staging/{descriptor['staged']}/files.json"])
        with pytest.raises(StagedOutputGone):
            self.sink.commit(descriptor, delivery(1))
        self.open().recover(delivery(1, generation=2), None)
        assert self.table.data() == []

    def test_files_that_vacuum_took_are_noticed(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.table.objects.delete(self.table.data()[:1])
        with pytest.raises(StagedOutputGone):
            self.sink.commit(descriptor, delivery(1))
        self.deliver(A, delivery(1))
        assert self.rows() == A

    def test_committed_files_stay_though_the_driver_died_before_it_cleared_away(self) -> None:
        """Also if the log entry is not found any more: then they are left to vacuum."""
        descriptor = self.stage(A, delivery(1))
        marker = f"_holdfast_staging/{descriptor['staged']}/files.json"
        body = self.table.objects.read(marker, limit=1 << 20)
        self.sink.commit(descriptor, delivery(1))
        for forgets in (False, True):
            self.table.objects.create(marker, [body])
            if forgets:
                self.table.bystander()
                self.table.open().create_checkpoint()
                self.table.objects.delete([f"_delta_log/{version:020}.json" for version in (0, 1)])
            assert self.open().recover(delivery(2, generation=2), None) == SinkProgress(committed=1, lineage=0)
            assert self.leftovers() == []
            assert self.rows() == A
        self.table.objects.create(marker, [body])
        self.sink.commit(descriptor, committing(1))
        self.sink.rollback(descriptor, delivery(1))
        assert self.rows() == A

    def test_other_writers_are_warned_of_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "holdfast.sinks"):
            for _ in range(2):
                self.open().prepare(self.frame([]).schema, delivery(0))
        assert len([one for one in caplog.records if "conditional puts" in one.message]) == 1


class TestTrouble(S3Place):
    def prepare(self, address: str, **options: str) -> None:
        given = options_for(self.endpoint) | options if options else None
        DeltaSink(address, storage_options=given).prepare(self.frame([]).schema, delivery(0))

    def test_bucket_that_is_not_there(self) -> None:
        given = options_for(self.endpoint)
        with pytest.raises(NotFound, match="bucket of s3://no-such-bucket/lake does not exist") as caught:
            self.prepare("s3a://no-such-bucket/lake", **given)
        assert caught.value.code == "bucket.not-found"

    def test_keys_that_may_not_write(self) -> None:
        with pytest.raises(Unavailable, match=r"AccessDenied") as caught:
            self.prepare(f"s3a://{self.bucket}/other", aws_access_key_id=READ_ONLY_KEY)
        assert caught.value.code == "cloud.denied"
        assert SECRET_KEY not in str(caught.value)

    def test_keys_that_are_wrong(self) -> None:
        assert self.sink
        with pytest.raises(Unavailable, match=r"SignatureDoesNotMatch") as caught:
            self.prepare(self.table.address, aws_secret_access_key="not-it")
        assert caught.value.code == "cloud.denied"
        assert "not-it" not in str(caught.value)

    def test_keys_of_spark_that_may_not_write(self) -> None:
        reach_bucket(self.spark, self.bucket, self.endpoint, access_key=READ_ONLY_KEY)
        sink = DeltaSink(self.table.address, storage_options=options_for(self.endpoint))
        sink.prepare(self.frame([]).schema, delivery(0))
        with pytest.raises(Unavailable, match="Spark could not write to object storage") as caught:
            sink.stage(self.frame(A), delivery(1))
        assert caught.value.code == "cloud.denied"
        assert self.leftovers() == []

    def test_storage_that_spark_has_no_connector_for(self) -> None:
        with pytest.raises(Invalid, match="give Spark the connector") as caught:
            self.prepare("gs://bucket/lake")
        assert caught.value.code == "sink.connector"

    def test_objects_and_no_table(self) -> None:
        self.table.objects.create("part-0.parquet", [b"PAR1"])
        with pytest.raises(Invalid, match=r"'part-0.parquet', but no Delta table.*convert_to_deltalake"):
            self.prepare(self.table.address)

    def test_table_at_another_address(self) -> None:
        descriptor = self.stage(A, delivery(1))
        other = DeltaSink(f"s3://{self.bucket}/elsewhere")
        assert other.recover(delivery(1), None) == SinkProgress()
        with pytest.raises(Unavailable, match="elsewhere holds no Delta table"):
            other.commit(descriptor, delivery(1))
        with pytest.raises(Unavailable, match="elsewhere holds no Delta table"):
            other.stage(self.frame(B), delivery(1))

    def test_secrets_are_not_shown(self) -> None:
        sink = DeltaSink(self.table.address, storage_options=options_for(self.endpoint))
        sink.prepare(self.frame([]).schema, delivery(0))
        descriptor = sink.stage(self.frame(A), delivery(1))
        shown = f"{sink!r} {sink.describe()} {descriptor}"
        assert SECRET_KEY not in shown
        assert sink.describe()["path"] == self.table.address
        sink.commit(descriptor, delivery(1))
        assert self.rows() == A
