"""The names that are promised to the outside, used exactly as promised."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import CheckpointBatcher, CheckpointManifest, ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast import errors as tree
from holdfast.index import SourceCheckpoint


def test_everything_in_all_is_there() -> None:
    promised = {
        "CheckpointManifest",
        "ConnectorCheckpoint",
        "OperatorCheckpoint",
        "InFlightRecord",
        "SinkCommitStatus",
        "CheckpointBatcher",
        "open_index",
        "open_store",
    }
    assert promised <= set(holdfast.__all__)
    for module in ("holdfast", "holdfast.checkpoints", "holdfast.storage.objects", "holdfast.index"):
        found = importlib.import_module(module)
        for name in found.__all__:
            assert getattr(found, name) is not None
        assert sorted(found.__all__) == list(found.__all__)


def test_error_tree() -> None:
    kinds = [
        tree.Conflict,
        tree.Fenced,
        tree.OutcomeUnknown,
        tree.Unavailable,
        tree.Corrupt,
        tree.Invalid,
        tree.NotFound,
    ]
    assert all(issubclass(kind, tree.HoldfastError) for kind in kinds)
    assert len({kind.exit_code for kind in kinds}) == len(kinds)
    assert len({kind.default_code for kind in kinds}) == len(kinds)
    error = tree.Fenced("Taken.", about="checkpoint 1", unchanged="the store", next_step="stop")
    assert (error.code, error.about, error.unchanged, error.next_step) == (
        "fenced",
        "checkpoint 1",
        "the store",
        "stop",
    )
    for words in ("Taken.", "checkpoint 1", "the store", "stop"):
        assert words in str(error)


@pytest.mark.parametrize("scheme", ["path", "file", "memory"])
def test_the_store_as_promised(tmp_path: Path, scheme: str) -> None:
    url = {"path": str(tmp_path), "file": f"file://{tmp_path}", "memory": "memory://"}[scheme]
    store = holdfast.open_store(url, max_retained=3, vnode_count=256)
    assert store.vnode_count == 256
    assert store.load_latest() is None
    assert store.load_by_id(1) is None
    assert store.load_state_data(1) is None
    m = CheckpointManifest.new(1, 1)
    m = msgspec.structs.replace(
        m, watermark=5, source_offsets={"k": ConnectorCheckpoint(offsets={"p0": "17"}, epoch=1)}
    )
    store.save(m)
    with_state = msgspec.structs.replace(
        CheckpointManifest.new(2, 2),
        operator_states={
            "a": OperatorCheckpoint.inline(b"x"),
            "b": OperatorCheckpoint.external(0, 10),
            "c": OperatorCheckpoint.from_bytes(b"y", 1, 0),
        },
        sink_commit_statuses={"s": SinkCommitStatus.pending(), "t": SinkCommitStatus.failed("why")},
    )
    store.save_with_state(with_state, [b"chunk", b"chunk"])
    done = {"s": SinkCommitStatus.committed(), "t": SinkCommitStatus.committed()}
    store.update_manifest(msgspec.structs.replace(with_state, sink_commit_statuses=done))
    latest = store.load_latest()
    assert latest is not None
    assert latest.checkpoint_id == 2
    assert store.list() == [(1, 1), (2, 2)]
    assert store.list_ids() == [1, 2]
    assert store.load_state_data(2) == b"chunkchunk"
    store.save_state_data(3, [b"chunk"])
    assert store.load_state_data(3) == b"chunk"
    assert store.prune(3) == 0
    assert store.cleanup_orphans() == 1
    result = store.validate_checkpoint(2)
    assert (result.checkpoint_id, result.valid, result.issues) == (2, True, [])
    missing = store.validate_checkpoint(9)
    assert not missing.valid
    assert [(issue.message != "", issue.is_fatal) for issue in missing.issues] == [(True, True)]
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.skipped, report.examined) == (2, [], 1)
    assert report.elapsed >= 0


def test_the_batcher_as_promised(tmp_path: Path) -> None:
    batcher = CheckpointBatcher(f"file://{tmp_path}", prefix="nodes/a/", flush_threshold=None)
    batcher.add("partition-0/agg", b"state")
    assert not batcher.should_flush()
    assert batcher.buffer_size == len("partition-0/agg") + len(b"state") + 8
    batcher.flush(42)
    assert (tmp_path / "nodes/a/checkpoints/batch-000042.lz4").is_file()
    metrics = batcher.metrics
    assert (metrics.batches_flushed, metrics.entries_flushed, metrics.put_count) == (1, 1, 1)
    assert metrics.bytes_before_compression == 28
    assert metrics.bytes_after_compression > 20
    assert batcher.buffer_size == 0


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_index_as_promised(tmp_path: Path, kind: str) -> None:
    index = holdfast.open_index("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/data/i.db")
    assert index.checkpoints.is_persistent is (kind == "sqlite")
    with index.session():
        index.results.put(b"k1", b"v1")
        index.results.put(b"k2", b"v2")
        index.checkpoints.stage_checkpoint("orders", 17, b"at 17")
        index.checkpoints.stage_checkpoint("prices", 3)
    expected = {"orders": SourceCheckpoint(17, b"at 17"), "prices": SourceCheckpoint(sequence=3, source_position=None)}
    assert index.checkpoints.read_checkpoint("orders") == expected["orders"]
    assert index.checkpoints.read_checkpoint("nobody") is None
    assert index.checkpoints.read_all_checkpoints() == expected
    index.begin()
    index.results.delete(b"k1")
    index.rollback()
    index.begin()
    index.results.delete(b"k2")
    index.commit()
    assert index.results.get(b"k1") == b"v1"
    assert list(index.results.scan(b"k")) == [(b"k1", b"v1")]
    index.checkpoints.write_config_hash(2**64 - 1)
    assert index.checkpoints.read_config_hash() == 2**64 - 1
    index.checkpoints.clear_checkpoints()
    assert index.checkpoints.read_all_checkpoints() == {}
    assert index.checkpoints.read_config_hash() is None
    index.close()


def test_nothing_heavy_is_imported_with_the_package() -> None:
    heavy = ["pytest", "rich", "click", "pyspark", "pandas", "redis", "psycopg", "rocksdict"]
    program = f"import sys, holdfast; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_projections_as_promised(tmp_path: Path) -> None:
    from holdfast.projections import (
        GlobalProjectionCheckpoint,
        NewEvent,
        Projection,
        ProjectionRunner,
        open_projections,
    )

    class Seen(Projection):
        name = "turnover"

        def handle(self, event, view):  # type: ignore[no-untyped-def]
            view.put(event.stream.encode(), b"%d" % event.sequence)

    with open_projections(f"sqlite:///{tmp_path}/p.db") as store:
        assert store.load_projection_checkpoint("turnover").cursors == {}
        previous = GlobalProjectionCheckpoint({"order-1": 7})
        store.save_projection_checkpoint("turnover", previous)
        current = GlobalProjectionCheckpoint({"order-1": 7})
        current.advance("order-2", 3)
        store.advance_projection_cursors("turnover", previous, current)
        found = store.load_projection_checkpoint("turnover")
        assert (found.cursors, found.cursor_for("order-2"), found.cursor_for("order-3")) == (current.cursors, 3, 0)
        store.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({}))
        store.append("order-1", [NewEvent("paid", {"cents": 1})])
        runner = ProjectionRunner(store)
        assert all(callable(getattr(runner, name)) for name in ("run", "catch_up", "catch_up_all_streams"))
        assert runner.catch_up_persistent(Seen()).handled == 1
        assert store.load_projection_checkpoint("turnover").cursors == {"order-1": 1}


def test_names_for_spark() -> None:
    import holdfast.projections
    import holdfast.sinks
    import holdfast.spark

    for module in (holdfast.projections, holdfast.sinks, holdfast.spark):
        assert all(getattr(module, name) is not None for name in module.__all__)
    assert {"Pipeline", "ContinuousQuery", "ProjectionRunner"} <= set(holdfast.spark.__all__)
    assert {"FileSink", "DeltaSink", "PostgresSink", "FunctionSink", "IndexSink"} <= set(holdfast.sinks.__all__)


def test_a_shell_offers_the_public_names_alone() -> None:
    import holdfast.index
    import holdfast.projections
    import holdfast.sinks
    import holdfast.spark

    modules = (holdfast.index, holdfast.projections, holdfast.sinks, holdfast.spark)
    for module in modules:
        assert dir(module) == sorted(module.__all__)
    assert dir(holdfast) == sorted([*holdfast.__all__, "__version__", "errors"])
    for module in (holdfast, *modules):
        assert all(hasattr(module, name) for name in dir(module))


SECRET = "hunter2"


def test_sinks_say_what_they_are_and_keep_secrets(tmp_path: Path) -> None:
    from holdfast.sinks import DeltaSink, FileSink, FunctionSink, IndexSink, PostgresSink

    dsn = f"postgresql://user:{SECRET}@host:5432/shop"
    shown = [
        repr(sink)
        for sink in (
            FileSink("/out", "csv", options={"password": SECRET}),
            DeltaSink("/lake"),
            DeltaSink("/lake", key=["shop"]),
            FunctionSink(print),
            IndexSink(f"redis://user:{SECRET}@host:6379/0?index=turnover", key="shop"),
            PostgresSink(dsn, "sales.orders", key="id"),
        )
    ]
    assert shown == [
        "FileSink('/out', format='csv')",
        "DeltaSink('/lake')",
        "DeltaSink('/lake', key=['shop'])",
        "FunctionSink(builtins.print)",
        shown[4],
        shown[5],
    ]
    assert shown[4].startswith("IndexSink('redis://")
    assert shown[4].endswith(", key=['shop'])")
    assert "sales" in shown[5]
    assert SECRET not in "".join(shown)


def test_what_is_opened_says_where_it_is_and_its_state(tmp_path: Path) -> None:
    from holdfast.projections import open_projections

    index = holdfast.open_index(f"sqlite:///{tmp_path}/i.db")
    assert repr(index) == f"Index('sqlite:///{tmp_path}/i.db')"
    with index.session():
        assert repr(index) == f"Index('sqlite:///{tmp_path}/i.db', session open)"
    index.close()
    assert repr(index) == f"Index('sqlite:///{tmp_path}/i.db', closed)"
    with open_projections(f"sqlite:///{tmp_path}/p.db") as store:
        assert repr(store) == f"ProjectionStore('sqlite:///{tmp_path}/p.db')"
        assert repr(store.view("turnover")) == f"ReadModel('turnover', 'sqlite:///{tmp_path}/p.db')"
    assert repr(store) == f"ProjectionStore('sqlite:///{tmp_path}/p.db', closed)"


def test_a_pipeline_says_its_parts_and_its_state(tmp_path: Path) -> None:
    from holdfast.sinks import FileSink
    from holdfast.spark import ContinuousQuery, Pipeline

    pipeline = Pipeline("orders", checkpoints=tmp_path / "store")
    pipeline.sink("files", FileSink(tmp_path / "out"))
    assert repr(pipeline) == "Pipeline('orders', sources=[], sinks=['files'], not started)"
    query = ContinuousQuery("turnover", index=f"sqlite:///{tmp_path}/i.db", key=["shop"])
    assert repr(query) == f"ContinuousQuery('turnover', 'sqlite:///{tmp_path}/i.db', key=['shop'], not started)"
