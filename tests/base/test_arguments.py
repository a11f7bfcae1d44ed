from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.base import arguments
from holdfast.base.arguments import (
    MAX_KEY_BYTES,
    MAX_U64,
    check_bytes,
    check_count,
    check_key,
    check_number,
    check_prefix,
    check_seconds,
    check_text,
    check_value,
)
from holdfast.errors import Invalid


class Number(int):
    pass


@pytest.mark.parametrize(
    ("check", "given", "made"),
    [
        (lambda v: check_text("name", v), "é/%", b"\xc3\xa9/%"),
        (lambda v: check_text("name", v), "a\0b", b"a\0b"),
        (lambda v: check_text("name", v, 3), "abc", b"abc"),
        (check_key, b"k", b"k"),
        (check_key, bytearray(b"k"), b"k"),
        (check_key, memoryview(b"k"), b"k"),
        (check_key, b"k" * MAX_KEY_BYTES, b"k" * MAX_KEY_BYTES),
        (check_prefix, b"", b""),
        (check_value, b"", b""),
        (lambda v: check_number("n", v), 0, 0),
        (lambda v: check_number("n", v), MAX_U64, MAX_U64),
        (lambda v: check_number("n", v, -1, 1), Number(1), 1),
        (lambda v: check_count("n", v), 1, 1),
        (lambda v: check_seconds("s", v), 0, 0.0),
        (lambda v: check_seconds("s", v), 1.5, 1.5),
        (lambda v: check_seconds("s", v), float("inf"), float("inf")),
    ],
)
def test_what_fits_is_taken(check: Callable[[Any], Any], given: Any, made: Any) -> None:
    found = check(given)
    assert found == made
    assert type(found) is type(made)


@pytest.mark.parametrize(
    ("check", "given", "why"),
    [
        (lambda v: check_text("name", v), None, "text is needed, not None"),
        (lambda v: check_text("name", v), b"x", "text is needed, not bytes"),
        (lambda v: check_text("name", v), "", "it is empty"),
        (lambda v: check_text("name", v), "\ud800", r"'\\ud800' is not valid Unicode"),
        (lambda v: check_text("name", v, 3), "éé", r"'éé'\.\.\. has 4 bytes, the limit is 3"),
        (lambda v: check_text("name", v, nul=False), "a\0b", "holds a NUL character"),
        (check_key, "k", "bytes are needed, not str"),
        (check_key, b"", "it is empty"),
        (check_key, b"k" * (MAX_KEY_BYTES + 1), "it has 2049 bytes, the limit is 2048"),
        (check_prefix, None, "bytes are needed, not None"),
        (lambda v: check_bytes("x", v, 0, 7), memoryview(array.array("Q", [1])), "it has 8 bytes, the limit is 7"),
        (lambda v: check_number("n", v), True, "from 0 to 18446744073709551615, not True"),
        (lambda v: check_number("n", v), -1, "not -1"),
        (lambda v: check_number("n", v), 1.0, "not 1.0"),
        (lambda v: check_number("n", v), MAX_U64 + 1, "not 18446744073709551616"),
        pytest.param(lambda v: check_number("n", v), 10**5000, "not one of more than 128 bits", id="huge"),
        (lambda v: check_count("n", v, 5), 0, "from 1 to 5, not 0"),
        (lambda v: check_seconds("s", v), -0.1, "0 or more, not -0.1"),
        (lambda v: check_seconds("s", v), float("nan"), "not nan"),
        (lambda v: check_seconds("s", v), True, "not True"),
        (lambda v: check_seconds("s", v), "1", "not '1'"),
    ],
)
def test_what_does_not_fit_is_refused(check: Callable[[Any], Any], given: Any, why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        check(given)
    assert caught.value.code == "argument.refused"
    assert caught.value.unchanged == "everything"


def test_a_refusal_names_the_argument() -> None:
    error = arguments.refused("max_retained", "it is a riddle")
    assert str(error) == "max_retained: it is a riddle. Unchanged: everything."
    assert error.about == "max_retained"
