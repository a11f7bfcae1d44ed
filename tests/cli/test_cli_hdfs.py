from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cli_running import in_child

import holdfast
from checkpoint_stores import fill
from servers.hdfs import HdfsServer


@pytest.fixture
def address(hdfs: HdfsServer) -> str:
    return hdfs.new_folder()


def test_every_verb_on_hdfs(address: str) -> None:
    fill(address)
    holdfast.open_store(address).claim("a driver")
    assert [item["checkpoint_id"] for item in in_child("ls", address, "--json").data["checkpoints"]] == [3, 2, 1]
    assert "checkpoint  3" in in_child("show", address).out
    assert "1000 → 2000" in in_child("diff", address, 1, 2).out
    assert in_child("verify", address, "--deep").code == 0
    assert "a driver" in in_child("status", address).out
    assert in_child("recover", address).code == 0
    assert in_child("gc", address, "--yes").code == 0
    assert in_child("prune", address, "--keep", 1).code == 2
    assert in_child("prune", address, "--keep", 1, "--yes").code == 0
    assert holdfast.open_store(address).list_ids() == [3]


def test_damage_and_a_pointer(run, address: str) -> None:
    fill(address)
    store = holdfast.open_store(address)
    store.objects.delete(["checkpoints/state-000003.bin"])
    assert run("verify", address).code == 6
    assert run("recover", address, "--yes").code == 0
    assert store.latest_pointer() == 2


def test_safe_mode_and_options(run, hdfs: HdfsServer, address: str) -> None:
    fill(address)
    with hdfs.safe_mode():
        assert run("ls", address).code == 0
        assert run("verify", address).code == 0
        refused = run("prune", address, "--keep", 1, "--yes")
        assert refused.code == 8
        assert "hdfs dfsadmin -safemode get" in refused.err
    nothing = run("verify", f"{address}/nothing")
    assert (nothing.code, nothing.out) == (0, "")
    deaf = run("ls", "hdfs://127.0.0.1:9/x", "--option", "dfs.client.failover.max.attempts=0")
    assert deaf.code == 8
    assert "check host and port" in deaf.err


def test_without_the_package() -> None:
    code = "import sys; sys.modules['hdfs_native'] = None; from holdfast.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", code, "ls", "hdfs://127.0.0.1:9/x"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
        check=False,
    )
    assert ran.returncode == 2
    assert "pip install 'holdfast[hdfs]'" in ran.stderr
