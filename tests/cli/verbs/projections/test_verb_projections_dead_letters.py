"""`projections dead-letters`: listed, and handled again."""

from __future__ import annotations

from cli_running import at_terminal
from shop_store import LIVE, contents, damage, table, url_of, view

from holdfast.projections import GlobalProjectionCheckpoint, ProjectionRunner, keys, open_projections


def test_lists_dead_letters(run, path):
    ran = run("projections", "dead-letters", path, "turnover")
    assert (ran.code, ran.err) == (0, "")
    assert table(ran.out) == [
        ["POSITION", "STREAM", "SEQUENCE", "TYPE", "ATTEMPTS", "AGE", "ERROR"],
        ["2", "order-1", "2", "poison", "1", "5 min ago", "ValueError: cannot be read"],
        ["4", "order-3", "1", "poison", "1", "5 min ago", "ValueError: cannot be read"],
    ]
    data = run("projections", "dead-letters", path, "turnover", "--json").data
    assert (data["address"], data["projection"], data["problems"]) == (url_of(path), "turnover", [])
    first, _ = data["dead_letters"]
    assert 0 <= data["now_ms"] - first.pop("when_ms") - 300_000 < 60_000
    assert first == {
        "position": 2,
        "stream": "order-1",
        "sequence": 2,
        "type": "poison",
        "error": "ValueError: cannot be read",
        "attempts": 1,
    }


def test_no_dead_letters(run, path, shop):
    with open_projections(url_of(path)) as store:
        store.save_projection_checkpoint("by hand", GlobalProjectionCheckpoint({"order-1": 1}))
        ProjectionRunner(store).reset("turnover")
    for name in ("turnover", "by hand"):
        ran = run("projections", "dead-letters", path, name)
        assert (ran.code, ran.out) == (0, "no dead letters\n")


def test_handles_them_again(run, path, shop):
    words = ["projections", "dead-letters", path, "turnover", "--retry", "--projection"]
    before = contents(path)
    for flags, code in ((["--dry-run"], 0), ([], 2)):
        ran = run(*words, f"{shop}:Corrected", *flags)
        assert ran.code == code
        assert ran.out.splitlines()[-1] == "to handle again: 2 events, with version 1"
    assert run(*words, f"{shop}:Corrected", "--json").data["applied"] is False
    assert contents(path) == before

    ran = run(*words, f"{shop}:CorrectedInPart", "--yes")
    assert ran.code == 2
    assert ran.out.splitlines()[-2:] == ["handled 1 event", "still failing: 1 event, at position 2"]
    assert view(path) == LIVE | {b"corrected-4": b"1"}

    ran = run(*words, f"{shop}:Corrected", "--yes", "--json")
    assert (ran.code, ran.data["applied"], ran.data["result"]) == (0, True, {"handled": 1, "left": []})
    assert view(path) == LIVE | {b"corrected-2": b"1", b"corrected-4": b"1"}
    none = run(*words, f"{shop}:Corrected")
    assert (none.code, none.out) == (0, "no dead letters\n")


def test_handling_again_asks_at_a_terminal(path, shop):
    words = ["projections", "dead-letters", path, "turnover", "--retry", "--projection", f"{shop}:Corrected"]
    assert at_terminal(*words, keys="n\n", after="[y/N]").code == 130
    assert view(path) == LIVE
    assert at_terminal(*words, keys="y\n", after="[y/N]").code == 0
    assert len(view(path)) == 5


def test_another_version_does_not_touch_the_read_model(run, path, shop):
    words = ["projections", "dead-letters", path, "turnover", "--retry", "--projection", f"{shop}:Doubled"]
    ran = run(*words, "--yes", "--json")
    assert (ran.code, ran.error["code"]) == (2, "projection.version")
    assert view(path) == LIVE


def test_a_damaged_letter_does_not_hide_the_others(run, path, shop):
    damage(path, "letters", keys.of_build(b"turnover", 1) + keys.NUMBER.pack(2))
    ran = run("projections", "dead-letters", path, "turnover")
    assert ran.code == 6
    assert "DAMAGED: a dead letter is damaged" in ran.out
    assert "order-3" in ran.out
    for flag in ("--yes", "--dry-run"):
        retry = ["--retry", "--projection", f"{shop}:Corrected", flag, "--json"]
        ran = run("projections", "dead-letters", path, "turnover", *retry)
        assert (ran.code, ran.out, ran.error["code"]) == (6, "", "store.record")
    assert view(path) == LIVE
