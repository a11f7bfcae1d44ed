"""Committing what was staged, and recovering what was not committed. No Spark."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_hands import ROWS, SIMPLE, ask, at, commits, opened, rows, stage, staging_tables

from holdfast.errors import Invalid, Unavailable
from holdfast.sinks.postgres import commit as postgres_commit
from holdfast.sinks.postgres import stage as postgres_loading
from holdfast.sinks.postgres import staging_table as postgres_staging
from holdfast.sinks.postgres.copy_task import CopyTask
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.postgres.sql import copy_into
from holdfast.sinks.postgres.table import TableName
from holdfast.sinks.sink import RowsRefused, SinkProgress, StagedOutputGone

pytestmark = pytest.mark.usefixtures("by_hand")


def test_the_commit_row_says_what_was_done(dsn: str) -> None:
    sink = opened(dsn)
    sink.commit(stage(sink, ROWS, at(1)), at(1))
    assert commits(dsn) == [("orders", "out", 0, 1, 1, '"public"."out"', 3)]


def test_commit_rows_do_not_grow_for_ever(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_commit, "COMMITS_KEPT", 3)
    sink = opened(dsn)
    for epoch in range(1, 7):
        sink.commit(stage(sink, [(epoch, "row")], at(epoch)), at(epoch))
    assert [row[3] for row in commits(dsn)] == [4, 5, 6]
    assert sink.recover(at(6, generation=2), None) == SinkProgress(committed=6, lineage=0)


def test_an_epoch_whose_commit_row_is_too_old_counts_as_committed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that was frozen for a thousand epochs has its rows staged, and its epoch was delivered by another."""
    monkeypatch.setattr(postgres_commit, "COMMITS_KEPT", 3)
    frozen, successor = opened(dsn), opened(dsn)
    late = stage(frozen, [(1, "frozen")], at(1))
    for epoch in range(1, 7):
        descriptor = stage(successor, [(epoch, "row")], at(epoch, generation=2))
        successor.commit(descriptor, at(epoch, generation=2))
    frozen.commit(late, at(1))
    assert rows(dsn) == [(epoch, "row") for epoch in range(1, 7)]


def test_a_losing_attempt_never_counts(dsn: str) -> None:
    """One that failed, and one that is still at it when the epoch is staged."""
    sink = opened(dsn, key="id")
    descriptor = stage(sink, ROWS, at(1))
    assert len(descriptor["winners"]) == 1
    names = ["id", "name"]
    loser = CopyTask(dsn, copy_into(TableName("public", descriptor["staged"]), names).as_string(None), names)
    late = pa.RecordBatch.from_arrays([pa.array([1, 9]), pa.array(["lost", "lost"])], names=["id", "name"])
    assert loser.copy([late], 99)[0] == 2
    assert ask(dsn, f"SELECT count(*) FROM {descriptor['staged']}") == [5]
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


def test_a_losing_attempt_is_no_duplicate(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are in the staging table when the keys are checked."""
    first = postgres_loading._run

    def with_a_loser(frame: Any, task: CopyTask, place: Any) -> list[Any]:
        task.copy([frame.batch], 99)
        return first(frame, task, place)

    monkeypatch.setattr(postgres_loading, "_run", with_a_loser)
    sink = opened(dsn, key="id")
    sink.commit(stage(sink, ROWS, at(1)), at(1))
    assert rows(dsn) == ROWS


def test_staged_rows_that_somebody_removed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = postgres_loading._run

    def with_a_loss(frame: Any, task: CopyTask, place: Any) -> list[Any]:
        outcomes = first(frame, task, place)
        (table,) = staging_tables(dsn)
        ask(dsn, f"DELETE FROM {table} WHERE id = 2")
        return outcomes

    monkeypatch.setattr(postgres_loading, "_run", with_a_loss)
    with pytest.raises(Unavailable, match="2 rows of the 3"):
        stage(opened(dsn), ROWS, at(1))
    assert staging_tables(dsn) == []


def test_two_pipelines_that_write_the_same_keys_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In opposite orders, and no deadlock."""
    monkeypatch.setattr(postgres_loading, "_run", _one_task)
    ids = list(range(1, 200))
    sinks = {name: opened(dsn, key="id") for name in ("a", "b")}
    for name, sink in sinks.items():
        sink.prepare(SIMPLE, at(0, pipeline=name))
    for epoch in range(1, 4):
        staged = {}
        for name, sink in sinks.items():
            to = at(epoch, pipeline=name)
            given = [(n, name) for n in (ids if name == "a" else reversed(ids))]
            staged[name] = (to, stage(sink, given, to))
        together = threading.Barrier(2)

        def commit(name: str, staged: dict[str, Any] = staged, together: threading.Barrier = together) -> None:
            to, descriptor = staged[name]
            together.wait()
            sinks[name].commit(descriptor, to)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(commit, sinks))
    assert len(rows(dsn)) == len(ids)
    assert len(ask(dsn, "SELECT DISTINCT name FROM out")) == 1


def _one_task(frame: Any, task: CopyTask, place: Any) -> list[Any]:
    count, refusal = task.copy([frame.batch], 1)
    assert refusal is None
    return [SimpleNamespace(attempt=1, row_count=count, refused=None)]


def test_synchronous_commit_is_on(dsn: str) -> None:
    """Whatever the database is set to: a trigger on the target tells."""
    ask(dsn, "CREATE TABLE out (id bigint, name text); CREATE TABLE seen (setting text)")
    ask(
        dsn,
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$; "
        "CREATE TRIGGER t AFTER INSERT ON out FOR EACH STATEMENT EXECUTE FUNCTION tell()",
    )
    name = ask(dsn, "SELECT current_database()")[0]
    sink = opened(dsn)
    for setting, expected in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        ask(dsn, f"ALTER DATABASE {name} SET synchronous_commit = {setting}; TRUNCATE seen")
        epoch = len(commits(dsn)) + 1
        sink.commit(stage(sink, [(1, "x")], at(epoch)), at(epoch))
        assert ask(dsn, "SELECT setting FROM seen") == [expected]


def test_a_strict_default_isolation_does_not_matter(dsn: str) -> None:
    sink = opened(dsn)
    name = ask(dsn, "SELECT current_database()")[0]
    ask(dsn, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    descriptor = stage(sink, ROWS, at(1))
    together = threading.Barrier(4)

    def commit(generation: int) -> None:
        mine = PostgresSink(dsn, "out")
        together.wait()
        mine.commit(descriptor, at(1, generation=generation))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(commit, range(4)))
    assert rows(dsn) == ROWS


def test_what_the_target_does_not_take_any_more(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    ask(dsn, "ALTER TABLE out ADD CHECK (id < 3)")
    with pytest.raises(RowsRefused) as caught:
        sink.commit(descriptor, at(1))
    assert descriptor["staged"] in (caught.value.next_step or "")
    assert rows(dsn) == []
    ask(dsn, "ALTER TABLE out DROP CONSTRAINT out_id_check")
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


def test_a_target_that_is_gone(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    ask(dsn, "ALTER TABLE out RENAME TO away")
    for attempt in (lambda: sink.commit(descriptor, at(1)), lambda: stage(sink, ROWS, at(1))):
        with pytest.raises(Invalid) as caught:
            attempt()
        assert caught.value.next_step
    ask(dsn, "ALTER TABLE away RENAME TO out")
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


def test_descriptors_that_name_something_else(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    ask(dsn, "CREATE TABLE precious (id bigint)")
    for change in ({"staged": "precious"}, {"kind": "files"}, {"winners": "all"}, {"table": "precious"}):
        for act in (sink.commit, sink.rollback):
            with pytest.raises(Invalid):
                act(descriptor | change, at(1))
    assert ask(dsn, "SELECT count(*) FROM precious") == [0]


def test_a_task_that_still_copies_does_not_hold_up_a_commit(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_staging, "LOCK_TIMEOUT", "50ms")
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    with psycopg.connect(dsn) as straggler:
        straggler.execute(f"INSERT INTO {descriptor['staged']} (id, holdfast_attempt) VALUES (9, 9)".encode())
        sink.commit(descriptor, at(1))
        assert "left for the next driver" in caplog.text
        sink.recover(at(1, generation=2), None)
        assert staging_tables(dsn) == [descriptor["staged"]]
    assert rows(dsn) == ROWS
    sink.recover(at(1, generation=2), None)
    assert staging_tables(dsn) == []
    assert rows(dsn) == ROWS


def test_recover_leaves_alone_what_is_not_ours(dsn: str) -> None:
    sink = opened(dsn)
    theirs = "holdfast_staged_" + "0" * 32
    ask(dsn, f"CREATE TABLE {theirs} (id bigint); CREATE TABLE holdfast_staged_odd (id bigint)")
    ask(
        dsn, f"CREATE TABLE holdfast_staged_{'1' * 32} (id bigint); COMMENT ON TABLE holdfast_staged_{'1' * 32} IS '[]'"
    )
    stage(sink, ROWS, at(1))
    stage(sink, ROWS, at(1, pipeline="another"))
    mine, newer = stage(sink, ROWS, at(1, generation=2)), stage(sink, ROWS, at(1, generation=3))
    sink.recover(at(1, generation=2), None)
    assert {mine["staged"], newer["staged"]} <= set(staging_tables(dsn))
    assert len(staging_tables(dsn)) == 6
    PostgresSink(dsn, "out").recover(at(1, generation=2, pipeline="another"), None)
    assert len(staging_tables(dsn)) == 5


def test_before_anything_was_prepared(dsn: str) -> None:
    assert PostgresSink(dsn, "out").recover(at(0), None) == SinkProgress()
    assert PostgresSink(dsn, "nowhere.out").recover(at(0), None) == SinkProgress()


def test_gone_and_not_committed(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    sink.recover(at(1, generation=2), None)
    with pytest.raises(StagedOutputGone) as caught:
        sink.commit(descriptor, at(1))
    assert "stage" in (caught.value.next_step or "")
    assert commits(dsn) == []
