"""A source's end offset, as a manifest keeps it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.epoch_manifest import connector_checkpoint

KAFKA = '{"orders":{"1":40,"0":39},"returns":{"0":-2}}'
DEEP = 100_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)

OFFSETS: list[tuple[str, str | None, dict[str, str]]] = [
    ("kafka", KAFKA, {"orders-1": "40", "orders-0": "39", "returns-0": "-2"}),
    ("kafkaV2[Subscribe[orders]]", '{"a-b":{"3":7}}', {"a-b-3": "7"}),
    ("FileStreamSource[file:/in]", '{"logOffset":12}', {"logOffset": "12"}),
    ("rate", "1234", {"offset": "1234"}),
    ("rate-micro-batch", '{"offset":10,"timestamp":99}', {"offset": "10", "timestamp": "99"}),
    (
        "delta",
        '{"reservoirVersion":4,"isStartingVersion":true}',
        {"reservoirVersion": "4", "isStartingVersion": "true"},
    ),
    (
        "mine",
        '{"shards":{"a":{"seq":"0049"},"b":{}},"n":null}',
        {"shards.a.seq": "0049", "shards.b": "{}", "n": "null"},
    ),
    ("mine", '{"parts":[1,2],"x":1.5}', {"parts": "[1,2]", "x": "1.5"}),
    ("mine", "[5,6]", {"offset": "[5,6]"}),
    ("mine", "{}", {"offset": "{}"}),
    ("mine", '"text"', {"offset": "text"}),
    ("mine", "page 7 of 9", {"offset": "page 7 of 9"}),
    ("mine", '{"big":123456789012345678901234567890}', {"big": "123456789012345678901234567890"}),
    ("rate", None, {}),
]


@pytest.mark.parametrize(("connector", "end", "expected"), OFFSETS)
def test_offsets_of_a_source(connector: str, end: str | None, expected: dict[str, str]) -> None:
    found = connector_checkpoint(end, connector=connector, epoch=8)
    assert (found.offsets, found.epoch) == (expected, 8)
    kept = {} if end is None else {"spark_offset": end}
    assert found.metadata == {"connector": connector, **kept}


@given(st.text() | JSON.map(json.dumps), st.sampled_from(["kafka", "KafkaV2[x]", "rate"]))
def test_any_offset_is_kept_as_spark_wrote_it(end: str, connector: str) -> None:
    found = connector_checkpoint(end, connector=connector, epoch=1)
    assert found.metadata["spark_offset"] == end
    assert found.offsets
    assert all(type(key) is type(value) is str for key, value in found.offsets.items())


@pytest.mark.parametrize("end", ["[" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP], ids=["open", "closed"])
def test_a_deep_offset_is_kept_as_text(end: str) -> None:
    assert connector_checkpoint(end, connector="mine", epoch=1).metadata["spark_offset"] == end
