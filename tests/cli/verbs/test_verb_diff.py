from __future__ import annotations

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
