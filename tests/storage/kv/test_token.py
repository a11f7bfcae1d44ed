"""What the token in an index says, as a table."""

from __future__ import annotations

import pytest

from holdfast.errors import Corrupt, Fenced
from holdfast.storage.kv.prefixes import end_of
from holdfast.storage.kv.token import Finding, judge, new_token, refusal

BEFORE, AFTER, OTHER = b"before", b"after", b"other"
OURS = {BEFORE: False, AFTER: True}


@pytest.mark.parametrize(
    ("found", "earlier", "finding"),
    [
        (BEFORE, [], Finding("ours", False)),
        (AFTER, [BEFORE], Finding("ours", True)),
        (OTHER, [AFTER, BEFORE], Finding("fenced", True)),
        (OTHER, [OTHER, BEFORE], Finding("fenced", False)),
        (OTHER, [OTHER], Finding("set-back", None)),
        (OTHER, [], Finding("set-back", None)),
        (None, [], Finding("gone", False)),
    ],
)
def test_every_finding(found: bytes | None, earlier: list[bytes], finding: Finding) -> None:
    assert judge(found, earlier, OURS) == finding


def test_refusals_say_what_to_do() -> None:
    assert isinstance(refusal(Finding("fenced", False), "here"), Fenced)
    for standing in ("gone", "set-back"):
        assert isinstance(refusal(Finding(standing, None), "here"), Corrupt)  # type: ignore[arg-type]


def test_no_token_comes_twice() -> None:
    assert len({new_token() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff", None), (b"", None), (b"\x00", b"\x01")]
)
def test_end_of_a_prefix(prefix: bytes, end: bytes | None) -> None:
    assert end_of(prefix) == end
