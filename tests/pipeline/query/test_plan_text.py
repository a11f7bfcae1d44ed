"""A plan's text and its hash: the same in every process, different for every other query."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.query.plan_text import fingerprint, normalised, stable_hash, without_ids, without_literals

PLAN = """Aggregate [name#21], [name#21, count(1) AS count#35L]
  EventTimeWatermark 57c8b1de-0b3f-4d6c-9b0a-8f2f3a0c9d11, ts#20, 10 seconds
    Filter (id#19L > cast(5 as bigint))
      StreamingRelationV2 org.apache.spark.sql.execution.streaming.sources.RateStreamProvider@4f1bfe23, [id#19L]"""


def test_a_plan() -> None:
    assert normalised(PLAN).splitlines() == [
        "Aggregate [name#0], [name#0, count(1) AS count#1L]",
        "  EventTimeWatermark <id>, ts#2, 10 seconds",
        "    Filter (id#3L > cast(5 as bigint))",
        "      StreamingRelationV2 org.apache.spark.sql.execution.streaming.sources.RateStreamProvider@, [id#3L]",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PLAN, re.sub(r"#(\d+)", lambda found: f"#{int(found[1]) + 1000}", PLAN)),
        ("Project [rand(-123) AS r#1]", "Project [rand(456) AS r#9]"),
        ("Project [randn(7) AS r#1]", "Project [randn(-7) AS r#1]"),
        ("Project [uuid(Some(-12)) AS u#1]", "Project [uuid(Some(99)) AS u#1]"),
        ("[shuffle(array(v#0L), Some(6460)) AS a#1]", "[shuffle(array(v#0L), Some(-7281)) AS a#1]"),
        ("[randstr(5, 2462, true) AS a#1]", "[randstr(5, 4999, true) AS a#1]"),
        ("[uniform(1, 10, 6953, true, Some(UTC)) AS a#1]", "[uniform(1, 10, 2382, true, Some(UTC)) AS a#1]"),
        ("~Sample 0.0, 0.5, false, 1745, Bernoulli", "~Sample 0.0, 0.5, false, 4034, Bernoulli"),
        ("x@1a2b3c, y", "x@3c2b1a9, y"),
        ("w 00000000-0000-0000-0000-000000000001", "w ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ],
)
def test_what_differs_from_process_to_process_is_left_out(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Filter (id#1 > 5)", "Filter (id#1 > 6)"),
        ("Project [a#1, b#2], [a#1]", "Project [a#1, b#2], [b#2]"),
        ("Project [a#1, a#1]", "Project [a#1, a#2]"),
        ("sum(a#1L)", "sum(a#1)"),
        ("Project [rand(1)]", "Project [randn(1)]"),
        ("EventTimeWatermark ts#1, 10 seconds", "EventTimeWatermark ts#1, 11 seconds"),
        ("Project [brand(1)]", "Project [brand(2)]"),
        ("~Sample 0.0, 0.5, false, 17, Bernoulli", "~Sample 0.0, 0.6, false, 17, Bernoulli"),
        ("[uniform(1, 10, 6953, true, Some(UTC))]", "[uniform(1, 11, 6953, true, Some(UTC))]"),
        ("[randstr(5, 2462, true)]", "[randstr(6, 2462, true)]"),
        ("[shuffle(array(v#0L), Some(1))]", "[shuffle(array(w#0), Some(1))]"),
        ("Project [operand(x#1, 1)]", "Project [operand(x#1, 2)]"),
    ],
)
def test_what_the_query_says_stays(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


@given(st.text(), st.lists(st.integers(0, 10**12), min_size=1, max_size=6, unique=True))
def test_normalising_again_changes_nothing(text: str, ids: list[int]) -> None:
    plan = text + " ".join(f"c#{number}L" for number in ids)
    assert normalised(normalised(plan)) == normalised(plan)


@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=20))
def test_expression_ids_may_be_any(names: list[int], uses: list[int]) -> None:
    one = ", ".join(f"c#{use}" for use in uses)
    other = ", ".join(f"c#{names[use] + 100}" for use in uses)
    assert normalised(one) == normalised(other)


VALUE = {"plan": "x", "sinks": {"b": {"path": "/y"}, "a": {"n": 1}}, "list": [1, 2.5, None, True, "ü"]}


def test_a_hash_is_of_64_bits_and_never_changes() -> None:
    """A hash in a manifest outlives the release that wrote it."""
    assert stable_hash("") == 0x12AE32CB1EC02D01
    assert stable_hash(VALUE) == stable_hash(dict(reversed(VALUE.items())))
    assert 0 <= stable_hash(VALUE) < 2**64


def test_a_hash_tells_values_apart() -> None:
    values = [1, "1", [1], {"1": 1}, None, True, "", [], {}, ["1", "2"], ["12"], ["2", "1"]]
    assert len({stable_hash(value) for value in values}) == len(values)


def test_a_hash_is_the_same_in_another_process() -> None:
    code = f"from holdfast.pipeline.query.plan_text import stable_hash; print(stable_hash({VALUE!r}))"
    for seed in ("1", "12345"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        printed = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
        assert int(printed.stdout) == stable_hash(VALUE)


def test_a_line_for_people() -> None:
    assert without_ids("~Filter (at#2-T60000ms > cast(id#19L as timestamp))") == "Filter (at > cast(id as timestamp))"


def test_a_fingerprint_is_of_what_the_line_says() -> None:
    assert fingerprint("Filter (a#1 > 5)") == fingerprint("Filter (a#99 > 5)") != fingerprint("Filter (a#1 > 6)")
    assert len(fingerprint("")) == 16


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("concat(a, 'it''s \\' secret')", "concat(a, '***')"),
        ("(a + 5)", "(a + 5)"),
        ("aes_decrypt(a, 'k') = 'x'", "aes_decrypt(a, '***') = '***'"),
    ],
)
def test_texts_in_an_expression_are_masked(sql: str, shown: str) -> None:
    assert without_literals(sql) == shown
