"""What the token in an index says, as a table."""

from __future__ import annotations

import pytest

from holdfast.errors import Corrupt, Fenced
from holdfast.storage.kv.store import end_of
from holdfast.storage.kv.token import TokenCheck, check_token, new_token, refusal

BEFORE, AFTER, OTHER = b"before", b"after", b"other"
OURS = {BEFORE: False, AFTER: True}


@pytest.mark.parametrize(
    ("found", "earlier", "check"),
    [
        (BEFORE, [], TokenCheck("ours", False)),
        (AFTER, [BEFORE], TokenCheck("ours", True)),
        (OTHER, [AFTER, BEFORE], TokenCheck("fenced", True)),
        (OTHER, [OTHER, BEFORE], TokenCheck("fenced", False)),
        (OTHER, [OTHER], TokenCheck("set-back", None)),
        (OTHER, [], TokenCheck("set-back", None)),
        (None, [], TokenCheck("gone", False)),
    ],
)
def test_every_check(found: bytes | None, earlier: list[bytes], check: TokenCheck) -> None:
    assert check_token(found, earlier, OURS) == check


def test_refusals_say_what_to_do() -> None:
    assert isinstance(refusal(TokenCheck("fenced", False), "index", "here"), Fenced)
    for owner in ("gone", "set-back"):
        assert isinstance(refusal(TokenCheck(owner, None), "index", "here"), Corrupt)  # type: ignore[arg-type]


def test_no_token_comes_twice() -> None:
    assert len({new_token() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff", None), (b"", None), (b"\x00", b"\x01")]
)
def test_end_of_a_prefix(prefix: bytes, end: bytes | None) -> None:
    assert end_of(prefix) == end
