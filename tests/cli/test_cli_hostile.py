"""Text and numbers in a store may be anything; the terminal and the tool survive them."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from cli_running import at_terminal, in_child

import holdfast
from checkpoint_stores import manifest, manifest_path
from holdfast import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast.checkpoints import manifest_json
from holdfast.checkpoints.manifest import BatchObject, CheckpointManifest

NASTY = "a\x1b[31mred\x1b]0;owned\x07\x9b2J\x7f [bold red]m[/] \u202eevil\u2066\u2028\n\ttail"
VERBS = [
    ["status"],
    ["ls"],
    ["show", "1"],
    ["diff", "1", "2"],
    ["verify", "--deep"],
    ["recover", "--dry-run"],
    ["prune", "--keep", "1", "--dry-run"],
    ["gc", "--dry-run"],
]


@pytest.fixture
def nasty(tmp_path):
    """Every name is hostile, and the directory's own name too."""
    root = tmp_path / "di\x1b[31mr [red]"
    store = holdfast.open_store(str(root), max_retained=None)
    store.save(manifest(2))
    store.save(
        manifest(
            1,
            source_offsets={NASTY: ConnectorCheckpoint({NASTY: NASTY}, 1, {"connector": NASTY})},
            source_names=[NASTY],
            sink_names=[NASTY],
            sink_epochs={},
            sink_commit_statuses={NASTY: SinkCommitStatus.failed(NASTY)},
            operator_states={NASTY: OperatorCheckpoint.inline(b"x")},
            table_store_checkpoint_path=NASTY,
            source_watermarks={NASTY: 1},
            table_offsets={NASTY: ConnectorCheckpoint({NASTY: NASTY})},
        )
    )
    path = manifest_path(root, 3)
    path.parent.mkdir()
    path.write_text(json.dumps({"version": 1, "checkpoint_id": 3, "epoch": 3, "timestamp_ms": NASTY}))
    return root


def without_our_own(text: str) -> str:
    """The output less the colours and bars that the tool itself makes."""
    return re.sub(r"\x1b\[(?:[0-9;]*m|2K|1A|\?25[hl])", "", text)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_nothing_in_a_store_can_act_on_a_terminal(nasty, verb, flags):
    piped = in_child(verb[0], nasty, *verb[1:], *flags)
    seen = at_terminal(verb[0], nasty, *verb[1:], *flags, columns=200)
    assert piped.code in (0, 6)
    assert seen.code == piped.code
    for text in (piped.out, piped.err, without_our_own(seen.out)):
        bad = {c for c in text if not c.isprintable() and c != "\n"}
        assert not bad, (bad, text)
    assert "\x1b[31mred" not in seen.out
    if verb[0] == "show" and not flags:
        assert "a\\x1b[31mred\\x1b]0;owned\\x07\\x9b2J\\x7f [bold red]m[/] \\u202eevil" in piped.out


def test_json_keeps_them_exactly(run, nasty):
    assert NASTY in run("show", nasty, 1, "--json").data["manifest"]["source_offsets"]


def test_numbers_that_are_no_dates_and_no_sizes(run, tmp_path):
    huge = 10**300
    store = holdfast.open_store(tmp_path, max_retained=None)
    store.save(manifest(1, timestamp_ms=2**64 - 1, watermark=-(2**63), source_watermarks={"orders": huge}))
    for number, changes in ((2, {"size_bytes": huge, "wal_position": huge, "pipeline_hash": huge}), (3, {})):
        path = manifest_path(tmp_path, number)
        path.parent.mkdir()
        plain = {"version": 1, "checkpoint_id": number, "epoch": number, "timestamp_ms": 0}
        path.write_text(json.dumps(plain | changes))
    for verb in (
        ["status"],
        ["ls"],
        ["show", "1"],
        ["show", "2"],
        ["show", "3"],
        ["diff", "1", "2"],
        ["verify"],
        ["recover"],
    ):
        for flags in ([], ["--json"]):
            ran = run(verb[0], tmp_path, *verb[1:], *flags)
            assert ran.code in (0, 2, 6), ran.err
            assert "bug" not in ran.err
    assert run("ls", tmp_path, "--json").data["checkpoints"][1]["size_bytes"] == huge


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"\xff\xfe", b"[" * 200_000, b'{"version": 1}', b'{"version": "1"}', b"\x00" * 100],
    ids=["empty", "cut", "null", "not utf-8", "deep", "short", "wrong type", "zeros"],
)
def test_a_manifest_that_is_none(run, store_dir, body):
    manifest_path(store_dir, 3).write_bytes(body)
    assert run("ls", store_dir).code == 0
    assert run("show", store_dir).code == 6
    assert run("diff", store_dir, 1, 3).code == 6
    assert run("verify", store_dir).code == 6
    recovered = run("recover", store_dir, "--dry-run")
    assert recovered.code == 0
    assert "resume from checkpoint 2" in recovered.out


def test_a_manifest_that_names_objects_outside_the_store(run, tmp_path):
    (tmp_path / "secret").write_text("x")
    store = holdfast.open_store(tmp_path / "store", max_retained=None)
    store.save(manifest(1))
    body = msgspec.json.decode(manifest_path(tmp_path / "store", 1).read_bytes())
    forged = msgspec.convert(body, CheckpointManifest).with_batches(
        [BatchObject("../checkpoints/batch-000001.lz4", 1, "00", 1), BatchObject("../secret", 1, "00", 1)]
    )
    manifest_path(tmp_path / "store", 1).write_bytes(manifest_json.encode(forged))
    assert run("verify", tmp_path / "store").code == 6
    for verb in VERBS:
        assert run(verb[0], tmp_path / "store", *verb[1:]).code in (0, 3, 6)
    assert (tmp_path / "secret").read_text() == "x"


def test_secrets_in_an_address_are_never_shown(run):
    address = "s3://AKIAXXXX:SECRETPW@bucket/x?token=TOKEN#FRAGMENT"
    options = ["--option", "endpoint=http://127.0.0.1:9", "--option", "aws_secret_access_key=HIDDEN"]
    calls = [["ls", address, *options], [address, "ls"], ["ls", address, "--option", "HIDDEN"], ["ls", address, "x"]]
    calls += [["ls", "ftp://u:SECRETPW@h/x?token=TOKEN"]]
    for call in calls:
        for flags in ([], ["--json"]):
            ran = run(*call, *flags)
            assert ran.code in (2, 8)
            for secret in ("AKIAXXXX", "SECRETPW", "TOKEN", "HIDDEN", "FRAGMENT"):
                assert secret not in ran.out + ran.err
