from __future__ import annotations

import json

import pytest
from cli_running import in_child


@pytest.fixture
def sink(tmp_path):
    """Two committed epochs and a staged one, as a FileSink leaves them."""
    root = tmp_path / "out"
    owner = {"pipeline": "orders", "sink": "lake", "format": "csv", "epoch_column": "batch"}
    for name, text in {
        "_holdfast.json": json.dumps(owner),
        "batch=000002/part-0.csv": "1,one\n",
        "batch=000002/_epoch": "{}",
        "batch=000002/.part-0.csv.crc": "x",
        "batch=1-000001/part-1.csv": "2,two\n",
        "batch=1-000001/part-0.csv": "",
        "_staging/x-0-3-1-0123456789ab/part-0.csv": "3,three\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


PATHS = ["batch=000002/part-0.csv", "batch=1-000001/part-0.csv", "batch=1-000001/part-1.csv"]


def test_one_address_per_line(run, sink):
    for address in (str(sink), sink.as_uri()):
        ran = run("files", address)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.splitlines() == [f"{sink}/{path}" for path in PATHS]


def test_json(run, sink):
    ran = run("files", sink, "--json")
    assert ran.json["store"] == str(sink)
    assert {name: ran.data[name] for name in ("pipeline", "sink", "format", "epoch_column")} == {
        "pipeline": "orders",
        "sink": "lake",
        "format": "csv",
        "epoch_column": "batch",
    }
    assert [tuple(file.values()) for file in ran.data["files"]] == [
        (f"{sink}/{PATHS[0]}", 6, 0, 2),
        (f"{sink}/{PATHS[1]}", 0, 1, 1),
        (f"{sink}/{PATHS[2]}", 6, 1, 1),
    ]


def test_nothing_committed_yet(run, tmp_path):
    owner = '{"pipeline":"orders","sink":"lake","format":"csv","epoch_column":"batch"}'
    (tmp_path / "_holdfast.json").write_text(owner)
    ran = run("files", tmp_path)
    assert (ran.code, ran.out) == (0, "")
    assert "0 files" in ran.err


def test_what_is_no_file_sink(run, store_dir, tmp_path):
    for path in (store_dir, tmp_path / "gone"):
        ran = run("files", path, "--json")
        assert (ran.code, ran.error["code"]) == (3, "sink.not-found")
    assert not (tmp_path / "gone").exists()
    assert run("files", "hdfs:///x", "--json").error["code"] == "sink.address"
    (tmp_path / "_holdfast.json").write_text("{")
    assert run("files", tmp_path, "--json").error["code"] == "sink.owner-unknown"


def test_without_spark(sink):
    ran = in_child("files", sink, PYTHONPROFILEIMPORTTIME="1")
    assert ran.code == 0
    assert "holdfast.sinks.files" in ran.err
    assert "pyspark" not in ran.err
