"""An index in SlateDB on object storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from index_works import MILESTONES, open_at, session, snapshot

import holdfast
from holdfast.errors import Fenced, Invalid, NotFound
from holdfast.testing.conformance.index.subject import contents, fill
from holdfast.testing.faults.crash import CrashRing

WORKS = Path(__file__).with_name("index_works.py")


@pytest.fixture
def url(bucket: str) -> str:
    return f"s3://{bucket}/indexes/orders"


def test_sessions_outlive_the_process_and_a_second_opening_fences(url: str) -> None:
    with pytest.raises(NotFound):
        holdfast.open_index(url, read_only=True)
    with holdfast.open_index(url) as index:
        fill(index)
        with holdfast.open_index(url) as second:
            assert len(contents(second)) == 3
            with pytest.raises(Fenced) as caught, index.session():
                index.results.put(b"k", b"too late")
            assert caught.value.code == "index.fenced"
            fill(second, 5)
    with holdfast.open_index(url, read_only=True) as looked:
        assert len(contents(looked)) == len(looked.checkpoints.read_all_checkpoints()) == 5


@pytest.mark.parametrize(
    "wrong", ["s3://bucket", "s3://bucket/", "s3:///path", "s3://bucket/path?x=1", "s3://me@bucket/path"]
)
def test_addresses_that_are_refused(wrong: str) -> None:
    with pytest.raises(Invalid) as caught:
        holdfast.open_index(wrong)
    assert caught.value.code == "address.refused"


@pytest.mark.crash
def test_killed_at_the_steps_of_its_commits(bucket: str) -> None:
    """In the object storage there is the session as a whole, or nothing of it."""
    with open_at(f"s3://{bucket}/expected") as expected:
        states = [snapshot(expected)]
        for milestone in MILESTONES:
            milestone(expected)
            states.append(snapshot(expected))
    with CrashRing(f"{WORKS}:all_milestones") as ring:
        events = ring.record(url=f"s3://{bucket}/record")
        places = [at for at, event in enumerate(events) if event.name.startswith("slatedb.")]
        for at in places[:: max(1, len(places) // 8)]:
            url = f"s3://{bucket}/killed-{at}"
            assert ring.kill_at(at, url=url).killed
            with open_at(url) as index:
                assert snapshot(index) in states, events[at]
                session(99, 5)(index)
                assert snapshot(index)[1]["a"].sequence == 99
