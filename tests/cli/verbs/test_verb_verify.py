from __future__ import annotations

import os
import time

import pytest
from cli_running import in_child

import holdfast
from checkpoint_stores import fill, flip, manifest, manifest_path, sidecar_path
from holdfast.errors import Unavailable
from holdfast.storage.objects import LocalObjects


def test_a_sound_store(run, store_dir, memory_url):
    for address in (store_dir, memory_url):
        for flags in ([], ["--deep"]):
            ran = run("verify", address, *flags)
            assert ran.code == 0
            assert ran.out.splitlines()[:3] == ["3  ok", "2  ok", "1  ok"]
            assert ran.out.splitlines()[-1].endswith(": 3 ok")
            assert ran.err == ""


@pytest.mark.parametrize("flags", [[], ["--deep"]])
@pytest.mark.parametrize("damage", ["flip manifest", "cut manifest", "cut sidecar", "remove sidecar"])
def test_damage_that_a_shallow_look_finds(run, store_dir, damage, flags):
    what, _, where = damage.partition(" ")
    path = {"manifest": manifest_path, "sidecar": sidecar_path}[where](store_dir, 2)
    if what == "flip":
        flip(path)
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    ran = run("verify", store_dir, *flags)
    assert ran.code == 6
    assert [line.split()[1] for line in ran.out.splitlines()[:3]] == ["ok", "DAMAGED", "ok"]
    assert ran.out.splitlines()[-1].endswith("2 ok, 1 damaged")
    assert "recover" in ran.err


def test_only_a_deep_look_finds_a_flipped_bit_in_state(run, store_dir):
    flip(sidecar_path(store_dir, 2))
    assert run("verify", store_dir).code == 0
    ran = run("verify", store_dir, "--deep")
    assert ran.code == 6
    assert "2  DAMAGED" in ran.out


def test_named_ones_only(run, store_dir):
    flip(manifest_path(store_dir, 2))
    assert run("verify", store_dir, 1, "latest").code == 0
    assert run("verify", store_dir, 1, 2).code == 6
    missing = run("verify", store_dir, 1, 77)
    assert missing.code == 3
    assert "77  MISSING" in missing.out
    assert run("verify", store_dir, 77, 2).code == 6  # damage is the graver finding


def test_what_could_not_be_read_is_not_called_damaged(run, store_dir, monkeypatch):
    real = LocalObjects.read

    def read(self, key, *, limit):
        if "000002/manifest" in key:
            raise Unavailable("timed out")
        return real(self, key, limit=limit)

    monkeypatch.setattr(LocalObjects, "read", read)
    ran = run("verify", store_dir)
    assert ran.code == 8
    assert "2  UNREADABLE  timed out" in ran.out
    flip(sidecar_path(store_dir, 1))
    assert run("verify", store_dir, "--deep").code == 6


def test_quiet_says_nothing_when_all_is_well_so_that_cron_sends_no_mail(store_dir):
    (store_dir / "checkpoints/latest.txt").unlink()  # a note at most
    ran = in_child("verify", store_dir, "--deep", "--quiet", "--vnode-count", 8)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    flip(sidecar_path(store_dir, 2))
    ran = in_child("verify", store_dir, "--deep", "--quiet")
    assert ran.code == 6
    assert [line.split()[0] for line in ran.out.splitlines()] == ["2", "3"]
    assert "latest is missing" in ran.err


def test_an_empty_store(run, tmp_path):
    ran = run("verify", tmp_path)
    assert (ran.code, ran.out) == (0, "")
    assert "nothing to verify" in ran.err


def test_pointer_and_orphans_are_notes(run, store_dir):
    (store_dir / "checkpoints/latest.txt").write_text("?")
    orphan = store_dir / "checkpoints/checkpoint_000050/state.bin"
    orphan.parent.mkdir()
    orphan.write_bytes(b"x" * 2048)
    old = time.time() - 7200
    os.utime(orphan, (old, old))
    ran = run("verify", store_dir)
    assert ran.code == 0
    assert "latest is damaged" in ran.err
    assert "no checkpoint owns 1 object (2.0 KiB)" in ran.err
    data = run("verify", store_dir, "--json").data
    assert data["orphans"] == {"count": 1, "bytes": 2048}
    assert data["latest"]["state"] == "garbage"


def test_warnings_are_said_once_with_the_ids(run, store_dir):
    ran = run("verify", store_dir, "--state-partitions", 8)
    assert ran.code == 0
    assert ran.err.count("vnode_count is 256") == 1
    assert "3, 2, 1" in ran.err
    assert run("verify", store_dir).err == ""  # without a count to compare with there is nothing to warn of


def test_a_child_of_a_damaged_parent_is_damaged(run, tmp_path):
    store = holdfast.open_store(tmp_path, max_retained=None)
    store.save_states(manifest(1), {"a": b"1", "b": b"2"})
    store.save_states(manifest(2), {"a": b"1", "b": b"3"})
    flip(manifest_path(tmp_path, 1))
    ran = run("verify", tmp_path, 2)
    assert ran.code == 6
    assert "parent checkpoint 1" in ran.out


def test_json_counts_and_names_damaged_checkpoints(run, store_dir):
    flip(sidecar_path(store_dir, 2))
    ran = run("verify", store_dir, "--deep", "--json")
    assert ran.code == 6
    assert ran.err == ""
    assert ran.data["counts"] == {"ok": 2, "damaged": 1, "unreadable": 0, "missing": 0}
    assert ran.data["checkpoints"][1]["checkpoint_id"] == 2
    assert "checksum mismatch" in ran.data["checkpoints"][1]["reason"]


def test_all_of_many_checkpoints_are_verified(run, tmp_path):
    fill(str(tmp_path), 40)
    assert run("verify", tmp_path).out.splitlines()[-1].startswith("40 checkpoints")
