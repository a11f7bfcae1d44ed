"""A projection as an aggregation: in however many batches, the read model is that of all events at once."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ledgers import fill, kept, opened

from holdfast.errors import Invalid
from holdfast.projections import ProjectionRunner as InProcess
from holdfast.projections import ProjectionStore
from holdfast.spark import FrameProjection, ProjectionRunner, read_events
from holdfast.testing.conformance.projections.subject import CountedStore, paid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def totals(events: DataFrame) -> DataFrame:
    cents = "cast(get_json_object(cast(payload as string), '$.cents') as bigint)"
    return (
        events.selectExpr("stream account", f"{cents} cents", "position", "timestamp_millis(position) at")
        .groupBy("account")
        .agg(
            {"cents": "sum", "position": "count", "at": "max"},
        )
        .withColumnsRenamed({"sum(cents)": "cents", "count(position)": "payments", "max(at)": "at"})
        .selectExpr("account", "cents", "cast(cents as decimal(20, 2)) money", "payments", "at", "at first")
    )


def by_account(**changed: Any) -> FrameProjection:
    combine = {"cents": "sum", "money": "sum", "payments": "sum", "at": "max", "first": "last"}
    options: dict[str, Any] = {"key": "account", "aggregate": totals, "combine": combine}
    return FrameProjection("totals", **(options | changed))


def documents(store: ProjectionStore) -> dict[str, Any]:
    return {json.loads(key)["account"]: value for key, value in store.view("totals").scan()}


def at_once(spark: SparkSession, store: ProjectionStore) -> dict[str, Any]:
    """The aggregation of all events, as an aggregation in one batch would keep it."""
    from holdfast.index.rows import encoded

    rows = encoded(totals(read_events(spark, store.address)), ["account"], None).collect()
    return {json.loads(bytes(key))["account"]: bytes(value) for key, value in rows}


def test_batches_make_what_all_events_make_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path / "p.db") as store:
        counts = store.kv
        assert isinstance(counts, CountedStore)
        fill(store, 50)
        runner = ProjectionRunner(store, spark, batch=20)
        counts.forget()
        done = runner.catch_up_persistent(by_account())
        assert (done.position, done.handled, len(counts.commits)) == (50, 50, 3)
        assert documents(store) == at_once(spark, store)
        assert store.load_projection_checkpoint("totals").cursors == {
            stream: store.stream_version(stream) for stream in store.list_streams()
        }
        store.append("account-3", [paid(7)])
        counts.forget()
        assert runner.catch_up_persistent(by_account()).cursors == 1
        assert len(counts.written("views")) == len(counts.written("cursors")) == 1
        assert documents(store) == at_once(spark, store)
        found = store.view("totals").get(by_account().key_of(account="account-3"))
        assert found is not None
        assert json.loads(found)["payments"] == store.stream_version("account-3")


def test_events_before_the_cursor_are_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path / "p.db") as store:
        fill(store, 30)
        runner = ProjectionRunner(store, spark)
        runner.catch_up_persistent(by_account())
        before, rows = kept(store), documents(store)
        checkpoint = store.load_projection_checkpoint("totals")
        checkpoint.cursors["account-1"] -= 1
        store.save_projection_checkpoint("totals", checkpoint)
        done = runner.catch_up_persistent(by_account())
        assert (done.handled, done.cursors) == (1, 1)
        assert kept(store)["cursors"] == before["cursors"]
        again = documents(store)
        assert json.loads(again.pop("account-1"))["payments"] == store.stream_version("account-1") + 1
        del rows["account-1"]
        assert again == rows


def test_rows_that_cannot_be_kept_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path / "p.db") as store:
        fill(store, 10)
        runner = ProjectionRunner(store, spark)
        before = kept(store)

        def select(*columns: str) -> FrameProjection:
            return by_account(aggregate=lambda events: events.selectExpr(*columns), combine={"cents": "sum"})

        for projection, why in (
            (by_account(key="shop"), "no key column 'shop'"),
            (by_account(combine={"cents": "sum"}), "no combination for the column 'money'"),
            (select("stream account", "1 cents", "2 other"), "no combination for the column 'other'"),
            (select("stream account"), "no column 'cents' to combine"),
            (select("stream account", "1.5d cents"), "not exact"),
            (select("none account", "1 cents"), "does not work on events"),
            (select("stream account", "1 cents"), "several rows with the same account"),
            (select("cast(null as string) account", "1 cents"), "is null"),
        ):
            with pytest.raises(Invalid, match=why) as refused:
                runner.catch_up_persistent(projection)
            assert refused.value.code == "projection.frame"
        with pytest.raises(Invalid, match="not handled one by one"):
            InProcess(store).catch_up_persistent(by_account())
        assert kept(store) == before


@pytest.mark.parametrize(("how", "expected"), [("sum", b"5"), ("min", b"-2"), ("max", b"7"), ("last", b"-2")])
def test_how_columns_are_combined(how: Any, expected: bytes) -> None:
    from pyspark.sql.types import StructType

    projection = by_account(combine={"x": how})
    schema = StructType.fromDDL("account string, x bigint")
    document = b'{"account":"a","x":%s}'
    assert projection.combined(document % b"7", document % b"-2", schema) == document % expected
    assert projection.combined(document % b"null", document % b"-2", schema) == document % b"-2"
    left = b"null" if how == "last" else b"7"
    assert projection.combined(document % b"7", document % b"null", schema) == document % left


def test_sums_are_exact_or_refused() -> None:
    from pyspark.sql.types import StructType

    projection = by_account(combine={"x": "sum"})
    large = Decimal("12345678901234567890123456789012345.67")
    found = projection.combined(b'{"x":%s}' % str(large).encode(), b'{"x":0.01}', StructType.fromDDL("x decimal(38,2)"))
    assert found == b'{"x":12345678901234567890123456789012345.68}'
    with pytest.raises(Invalid, match="does not fit"):
        projection.combined(b'{"x":%d}' % (2**63 - 1), b'{"x":1}', StructType.fromDDL("x bigint"))
    for key, combine in (("a", {"a": "sum"}), ("a", {"b": "average"}), ([], {"b": "sum"})):
        with pytest.raises(Invalid):
            by_account(key=key, combine=combine)
