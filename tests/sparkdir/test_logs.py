"""Spark's logs as text: every version that is known, everything else refused, and damage never guessed at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.sparkdir.logs import (
    CommittedBatch,
    PlannedBatch,
    parse_commit,
    parse_offsets,
    parse_query_id,
)

CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stateStore.compression.codec": "lz4"}
HEAD = json.dumps({"batchWatermarkMs": 1700, "batchTimestampMs": 1900, "conf": CONF})
KAFKA = '{"orders":{"1":40,"0":39},"returns":{"0":-2}}'
DEEP = 100_000


def offsets(*lines: str, version: str = "v1", head: str = HEAD) -> PlannedBatch:
    return parse_offsets("\n".join([version, head, *lines]), "offsets/7")


# The offset log


def test_offsets_by_position() -> None:
    planned = offsets('{"logOffset":3}', KAFKA, "-", "17")
    assert planned == PlannedBatch(1, 1700, 1900, CONF, ('{"logOffset":3}', KAFKA, None, "17"))


def test_offsets_by_name() -> None:
    planned = offsets(f"orders:{KAFKA}", "clicks:-", 'files:{"logOffset":0}', version="v2")
    assert planned == PlannedBatch(2, 1700, 1900, CONF, (KAFKA, None, '{"logOffset":0}'))


def test_what_old_releases_left_out() -> None:
    assert parse_offsets("v1\n{}\n0", "offsets/0") == PlannedBatch(1, 0, 0, {}, ("0",))
    assert offsets("0", head='{"batchWatermarkMs":5,"conf":null}') == PlannedBatch(1, 5, 0, {}, ("0",))


def test_settings_are_text() -> None:
    assert offsets("0", head='{"conf":{"a":1,"b":true,"c":"x"}}').settings == {"a": "1", "b": "True", "c": "x"}


def test_a_newline_at_the_end() -> None:
    assert parse_offsets(f"v1\n{HEAD}\n0\n", "offsets/0").ends == ("0",)


# The commit log

COMMITS = [
    ("v1", '{"nextBatchWatermarkMs":12}', CommittedBatch(1, 12)),
    ("v1", "{}", CommittedBatch(1, 0)),
    (
        "v2",
        '{"nextBatchWatermarkMs":-1,"stateUniqueIds":{"0":[["a"],["b"]]}}',
        CommittedBatch(2, -1, {"0": (("a",), ("b",))}),
    ),
    ("v3", '{"nextBatchWatermarkMs":5,"sinkMetadata":{"s":{}}}', CommittedBatch(3, 5)),
]


@pytest.mark.parametrize(("version", "line", "expected"), COMMITS)
def test_commit_logs_of_every_version_are_parsed(version: str, line: str, expected: CommittedBatch) -> None:
    assert parse_commit(f"{version}\n{line}", "commits/7") == expected


# Versions of a Spark to come


@pytest.mark.parametrize("version", ["v3", "v4", "v17", "v0"])
def test_an_unknown_offset_version_is_not_guessed_at(version: str) -> None:
    with pytest.raises(Invalid) as refused:
        offsets("0", version=version)
    assert refused.value.code == "workdir.log-format"
    assert refused.value.about == "offsets/7"
    assert f"log format {version}" in refused.value.message
    assert "v1, v2" in refused.value.message
    assert "release of Holdfast" in (refused.value.next_step or "")


@pytest.mark.parametrize("version", ["v4", "v17", "v0"])
def test_an_unknown_commit_version_is_not_guessed_at(version: str) -> None:
    with pytest.raises(Invalid, match="v1, v2, v3"):
        parse_commit(f"{version}\n{{}}", "commits/7")


# Damage

BROKEN_OFFSETS = {
    "empty": "",
    "a newline": "\n",
    "zeros": "\0" * 64,
    "only a version": "v1",
    "no metadata": "v1\n",
    "no offsets": f"v1\n{HEAD}",
    "no offsets, ended": f"v1\n{HEAD}\n",
    "metadata torn": f"v1\n{HEAD[:-5]}",
    "metadata torn, offset there": f"v1\n{HEAD[:-5]}\n0",
    "metadata is a list": "v1\n[]\n0",
    "metadata is a number": "v1\n7\n0",
    "metadata is null": "v1\nnull\n0",
    "an offset where metadata belong": f"v1\n{KAFKA[:-1]}",
    "version torn": "v",
    "version with a space": f"v1 \n{HEAD}\n0",
    "no version": f"{HEAD}\n0",
    "a word": "vx\n{}\n0",
    "watermark is text": 'v1\n{"batchWatermarkMs":"5"}\n0',
    "watermark is a float": 'v1\n{"batchWatermarkMs":5.5}\n0',
    "watermark is true": 'v1\n{"batchWatermarkMs":true}\n0',
    "watermark is null": 'v1\n{"batchWatermarkMs":null}\n0',
    "time is text": 'v1\n{"batchTimestampMs":"5"}\n0',
    "settings are a number": 'v1\n{"conf":5}\n0',
    "settings are text": 'v1\n{"conf":"abc"}\n0',
    "settings are a list": 'v1\n{"conf":[1,2]}\n0',
    "settings are pairs": 'v1\n{"conf":[["a","b"]]}\n0',
    "by name, without a name": f"v2\n{HEAD}\n5",
    "by name, without an offset": f"v2\n{HEAD}\norders:",
    "an offset torn": f"v1\n{HEAD}\n{KAFKA[:-1]}",
    "the second offset torn": f"v1\n{HEAD}\n0\n{KAFKA[:-1]}",
    "an offset by name torn": f"v2\n{HEAD}\norders:{KAFKA[:-1]}",
    "nested without end": 'v1\n{"conf":' + "[" * DEEP + "\n0",
}


@pytest.mark.parametrize("text", BROKEN_OFFSETS.values(), ids=BROKEN_OFFSETS.keys())
def test_broken_offsets(text: str) -> None:
    with pytest.raises(Corrupt) as found:
        parse_offsets(text, "offsets/7")
    assert (found.value.code, found.value.about) == ("workdir.log", "offsets/7")


@pytest.mark.parametrize("offset", ['{"at": NaN}', '{"at": -Infinity}', '{"at": "\\ud800"}', "{a=1}", "[1;2]", "x{"])
def test_offsets_that_are_not_json(offset: str) -> None:
    """A source prints what it likes."""
    assert parse_offsets(f"v1\n{HEAD}\n{offset}", "offsets/7").ends == (offset,)


BROKEN_COMMITS = {
    "empty": "",
    "only a version": "v1",
    "no content": "v1\n\n",
    "torn": 'v2\n{"nextBatchWatermarkMs":1',
    "a list": "v1\n[]",
    "watermark is text": 'v1\n{"nextBatchWatermarkMs":"1"}',
    "zeros": "\0" * 32,
    "nested without end": 'v3\n{"a":' + "[" * DEEP,
}


@pytest.mark.parametrize("text", BROKEN_COMMITS.values(), ids=BROKEN_COMMITS.keys())
def test_broken_commits(text: str) -> None:
    with pytest.raises(Corrupt) as found:
        parse_commit(text, "commits/7")
    assert (found.value.code, found.value.about) == ("workdir.log", "commits/7")


def test_query_id() -> None:
    assert parse_query_id('{"id":"6d3a"}\n', "metadata") == "6d3a"


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"id":""}', '{"id":5}', '{"id":null}', "[]", '{"id":"6d', "\0" * 9, '{"id":' + '{"a":' * DEEP],
    ids=lambda text: text[:12],
)
def test_broken_query_id(text: str) -> None:
    with pytest.raises(Corrupt) as found:
        parse_query_id(text, "metadata")
    assert found.value.about == "metadata"


ALMOST = st.sampled_from(
    [
        "v1",
        "v2",
        "v3",
        "v9",
        "\n",
        "-",
        ":",
        "{",
        "}",
        "[",
        "]",
        '"conf"',
        '"id"',
        '"batchWatermarkMs"',
        ",",
        "0",
        "null",
    ]
)


@given(st.text() | st.lists(ALMOST | st.text(max_size=3), max_size=20).map("".join))
def test_no_text_raises_anything_else(text: str) -> None:
    for parse in (parse_offsets, parse_commit, parse_query_id):
        try:
            parse(text, "some file")
        except HoldfastError as error:
            assert error.about == "some file"  # noqa: PT017 - not raising is fine as well


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["conf", "batchWatermarkMs", "batchTimestampMs", "nextBatchWatermarkMs"]), JSON))
def test_no_json_raises_anything_else(head: dict[str, Any]) -> None:
    for parse in (parse_offsets, parse_commit):
        try:
            parse(f"v1\n{json.dumps(head)}\n0", "some file")
        except Corrupt as error:
            assert error.about == "some file"  # noqa: PT017


@given(st.data(), st.integers(0, 2**62), st.lists(st.sampled_from([KAFKA, "-", "0", '{"logOffset":3}']), min_size=1))
def test_a_torn_file_is_never_read_as_another_one(data: st.DataObject, watermark: int, ends: list[str]) -> None:
    """Every proper beginning of a file is Corrupt, or at least has no other metadata than the whole."""
    head = json.dumps({"batchWatermarkMs": watermark, "conf": CONF})
    text = "\n".join(["v1", head, *ends])
    torn = text[: data.draw(st.integers(0, len(text) - 1))]
    try:
        found = parse_offsets(torn, "offsets/7")
    except Corrupt:
        return
    assert found.watermark_ms == watermark
    assert len(found.ends) <= len(ends)
