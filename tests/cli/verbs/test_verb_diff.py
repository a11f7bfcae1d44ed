from __future__ import annotations

import msgspec

import holdfast
from checkpoint_stores import manifest


def test_for_people_and_programs(run, store_dir, memory_url):
    ran = run("diff", store_dir, 1, "latest")
    assert ran.code == 0
    assert "checkpoint 1 → 3   epoch 10 → 30   2 min later" in ran.out
    assert "~ orders [0]: 1000 → 3000  (+2,000)" in ran.out
    data = run("diff", memory_url, 3, 1, "--json").data
    assert (data["from"]["checkpoint_id"], data["to"]["checkpoint_id"]) == (3, 1)
    assert [c["delta"] for c in data["changes"] if c["name"] == "orders [0]"] == [-2000]


def test_no_difference_and_no_such_checkpoint(run, tmp_path):
    store = holdfast.open_store(tmp_path, max_retained=None)
    store.save(manifest(1))
    assert "They say the same" in run("diff", tmp_path, 1, 1).out
    assert run("diff", tmp_path, 1, 2).code == 3
    assert run("diff", tmp_path, 1).code == 2


def test_watermarks_are_times_for_people_and_milliseconds_for_programs(run, tmp_path):
    store = holdfast.open_store(tmp_path, max_retained=None)
    marks = (1_767_225_679_000, 1_767_225_799_000, None, 17, 5)
    for number, mark in enumerate(marks, 1):
        store.save(msgspec.structs.replace(manifest(number), watermark=mark, source_watermarks={}))
    assert "~ pipeline: 2026-01-01T00:01:19Z → 2026-01-01T00:03:19Z  (+2 min)\n" in run("diff", tmp_path, 1, 2).out
    assert "~ pipeline: 2026-01-01T00:03:19Z → 2026-01-01T00:01:19Z  (-2 min)\n" in run("diff", tmp_path, 2, 1).out
    assert "- pipeline: was 2026-01-01T00:03:19Z\n" in run("diff", tmp_path, 2, 3).out
    assert "~ pipeline: 17 → 5  (-12)\n" in run("diff", tmp_path, 4, 5).out
    assert "~ pipeline: 2026-01-01T00:01:19Z → 17  (-1,767,225,678,983)\n" in run("diff", tmp_path, 1, 4).out
    (change,) = [c for c in run("diff", tmp_path, 1, 2, "--json").data["changes"] if c["section"] == "watermarks"]
    assert (change["before"], change["after"], change["delta"]) == ("1767225679000", "1767225799000", 120_000)
