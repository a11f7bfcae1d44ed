"""Values in words."""

from __future__ import annotations

import pytest

from holdfast.status import format
from pipeline_stores import NOW


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (102_399, "99.9 KiB"),
        (102_400, "100 KiB"),
        (1 << 20, "1.0 MiB"),
        ((1 << 20) - 1, "1,023 KiB"),
        (5 << 50, "5.0 PiB"),
        (5000 << 50, "5,000 PiB"),
    ],
)
def test_sizes_in_binary_units(count, said):
    assert format.size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "just now"),
        (0.9, "just now"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (7200, "2 h ago"),
        (86400, "1 day ago"),
        (86400 * 400, "400 days ago"),
        (-90, "in 1 min"),
    ],
)
def test_ages_in_the_largest_unit(seconds, said):
    now = 1_700_000_000_000
    assert format.age(now - int(seconds * 1000), now) == said


def test_times_are_exact_and_survive_nonsense():
    assert format.moment(1_700_000_000_999) == "2023-11-14T22:13:20Z"
    assert format.moment(2**64) == "18,446,744,073,709,551,616 ms"
    assert format.watermark(1_700_000_000_999) == "2023-11-14T22:13:20Z"
    assert format.watermark(5) == "5"
    assert format.watermark(None) == "none"
    assert format.watermark(-(2**63)) == str(-(2**63))


def test_natural_order():
    assert sorted(["p10", "p9", "p1", "q"], key=format.natural) == ["p1", "p9", "p10", "q"]
    assert sorted(["10", "a", "9", ""], key=format.natural) == ["", "9", "10", "a"]


def test_listed_counts_the_rest():
    assert format.listed([]) == "none"
    assert format.listed(range(10), most=3) == "0, 1, 2 and 7 more"


def test_counts_that_may_not_be_exact_say_so():
    assert [format.count_up_to(n, 10, "key") for n in (1, 10, 11)] == ["1 key", "10 keys", "more than 10 keys"]
    assert [format.known(value) for value in (None, 0, 1234)] == ["unknown", "0", "1,234"]


@pytest.mark.parametrize(
    ("mark", "said"),
    [(None, "none"), (17, "17"), (NOW, "2026-01-01T00:01:19Z  (1 min ago)"), (NOW + 120_000, "in 1 min)")],
)
def test_a_watermark_that_is_a_time_has_its_age(mark, said):
    assert format.watermark(mark, NOW + 60_000).endswith(said)
