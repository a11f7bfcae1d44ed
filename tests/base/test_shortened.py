"""Texts that are cut."""

from __future__ import annotations

from holdfast.base.shortened import shortened


def test_a_text_that_is_cut_has_as_many_characters_as_it_may_and_says_so() -> None:
    assert [shortened(text, 3) for text in ("abc", "abcd", "")] == ["abc", "ab…", ""]
