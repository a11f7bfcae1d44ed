"""Text fit for a terminal."""

from __future__ import annotations

import pytest

from holdfast.cli.format import cut, printable, width


def test_printable_escapes_what_acts_and_keeps_what_shows():
    assert printable("Grüße 東京 [b] \\ ok") == "Grüße 東京 [b] \\ ok"
    assert printable("\x1b\x00\x7f\x9b\u202e\u200b\ud800\U000e0001") == (
        "\\x1b\\x00\\x7f\\x9b\\u202e\\u200b\\ud800\\U000e0001"
    )


def test_width_counts_cells():
    assert [width(text) for text in ("abc", "東京", "e\u0301")] == [3, 4, 1]


@pytest.mark.parametrize(
    "text", ["x" * 9, "\x1b" * 9, "漢" * 9, "e\u0301" * 9, "\u0301" * 9999, "", "漢\x1b\n", "\u202e" * 3]
)
@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 10, 40])
def test_what_is_cut_fits_and_says_so(text, most):
    shown = cut(text, most)
    assert shown.isprintable()
    assert width(shown) <= max(most, 2)
    assert len(shown) <= 10 * max(most, 2)
    whole = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}" for c in text)
    assert shown == whole or (shown.endswith("…") and whole.startswith(shown[:-1]))
