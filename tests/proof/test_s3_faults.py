"""Services that do not answer, or whose answers are lost, cut short or strange.

Whatever fails: the error is one of ours and says what is unchanged, nothing acknowledged is lost, nothing half-done is
visible, and once the fault is gone the same call through the same handle succeeds.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from proof_acts import Act, Flushing, saves
from proof_checks import check
from proof_works import Address, Note, manifest, save, sidecar

from holdfast.checkpoints import CheckpointStore
from holdfast.errors import Corrupt, HoldfastError, NotFound, OutcomeUnknown, Unavailable
from holdfast.storage.objects import open, retry
from holdfast.testing.faults.proxy import FaultyProxy, Hold, LostReply, Refuse, Request, Stall, Status, once
from products import in_turn
from servers.s3 import S3Server, options_for


def save_under_lease(store: CheckpointStore, note: Note) -> None:
    if store._lease is None:
        note(f"generation {store.claim('driver').generation}")
    save(store, note, 2, "first", "sidecar")


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def direct(s3_server: S3Server, bucket: str) -> Address:
    """Round the proxy: what is really there."""
    return Address(f"s3://{bucket}/pipeline", "object", s3_server.options)


@pytest.fixture
def through(proxy: FaultyProxy, bucket: str) -> Address:
    return Address(f"s3://{bucket}/pipeline", "object", options_for(proxy.endpoint) | {"timeout": "2s"})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tries as ever, without the pauses between them."""
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
    monkeypatch.setitem(open.RETRIES_OF_READS, "backoff", backoff)


def saved_before(direct: Address) -> None:
    direct.open().save_with_state(manifest(1, "sidecar", "before"), sidecar(1, "before"))


S3_ACTS: dict[str, Act] = {
    "save_with_state": saves("sidecar", 2),
    "flush": Flushing(2),
    "under a lease": save_under_lease,
}


def requests_of(act: Act, proxy: FaultyProxy, s3_server: S3Server) -> int:
    """How many requests the undisturbed act makes, in a bucket of its own."""
    proxy.script = lambda _: None
    place = Address(f"s3://{s3_server.new_bucket()}/pipeline", "object", options_for(proxy.endpoint))
    place.open().save(manifest(1, "plain", "before"))
    proxy.forget()
    act(place.open(max_retained=3), [].append)
    return len(proxy.requests)


def from_request(number: int, fault: Any, *, once: bool) -> Callable[[Request], Any]:
    return lambda request: fault if request.number == number or (not once and request.number > number) else None


@pytest.mark.s3
@pytest.mark.parametrize(
    ("name", "fault"), in_turn(S3_ACTS, [LostReply(), LostReply(reset=True), Refuse(), Status(503)])
)
@pytest.mark.usefixtures("quick")
def test_one_request_that_fails_is_got_over(
    name: str, fault: Any, proxy: FaultyProxy, through: Address, direct: Address, s3_server: S3Server
) -> None:
    saved_before(direct)
    for number in range(requests_of(S3_ACTS[name], proxy, s3_server)):
        place = Address(through.url + f"/{number}", "object", through.options)
        seen = Address(direct.url + f"/{number}", "object", direct.options)
        seen.open().save_with_state(manifest(1, "sidecar", "before"), sidecar(1, "before"))
        proxy.forget()
        proxy.script = from_request(number, fault, once=True)
        lines = ["saved 1"]
        S3_ACTS[name](place.open(max_retained=3), lines.append)
        assert len(proxy.requests) > number
        assert check(seen, lines, None) == [1, 2]
        assert seen.open().latest_pointer() == 2


@pytest.mark.s3
@pytest.mark.parametrize(
    ("name", "fault"),
    in_turn(
        ["save_with_state", "under a lease"],
        [LostReply(), LostReply(reset=True), Refuse(), Status(503), Status(403)],
    ),
)
@pytest.mark.usefixtures("quick")
def test_a_service_that_stops_answering_is_reported_honestly_and_a_repeat_settles_it(
    name: str, fault: Any, proxy: FaultyProxy, through: Address, direct: Address, s3_server: S3Server
) -> None:
    """From each request on, nothing gets an answer any more, neither writes nor the reads that would settle them."""
    outcomes = []
    for number in range(requests_of(S3_ACTS[name], proxy, s3_server)):
        place = Address(through.url + f"/{number}", "object", through.options)
        seen = Address(direct.url + f"/{number}", "object", direct.options)
        seen.open().save_with_state(manifest(1, "sidecar", "before"), sidecar(1, "before"))
        store = place.open(max_retained=3)
        proxy.forget()
        proxy.script = from_request(number, fault, once=False)
        lines = ["saved 1"]
        error: HoldfastError | None = None
        try:
            S3_ACTS[name](store, lines.append)
        except HoldfastError as raised:
            error = raised
        proxy.script = lambda _: None
        ids = check(seen, lines, None)
        if error is not None:
            outcomes.append(type(error))
            assert isinstance(error, Unavailable | OutcomeUnknown), repr(error)
            assert error.about is not None
            assert through.url in error.about
            assert error.unchanged
            assert error.next_step
            if isinstance(error, Unavailable):
                assert error.code == ("cloud.denied" if fault == Status(403) else "cloud.unavailable")
                assert 2 not in ids, "it said that nothing was written, and it was"
            S3_ACTS[name](store, lines.append)
        assert check(seen, lines, None) == [1, 2]
        assert seen.open().load_latest() is not None
    assert outcomes, "no fault ever reached the caller"
    assert (OutcomeUnknown in outcomes) == (fault != Status(403)), "a refusal is an answer, silence is none"


@pytest.mark.s3
@pytest.mark.usefixtures("quick")
def test_a_write_that_lands_after_everybody_gave_up_is_still_our_own(
    proxy: FaultyProxy, through: Address, direct: Address
) -> None:
    """The request is under way for longer than we wait. It must not turn a repeat of the same save into a defeat."""
    saved_before(direct)
    hold = Hold()
    place = Address(through.url, "object", {**(through.options or {}), "timeout": "300ms"})
    store = place.open(max_retained=3)
    proxy.script = lambda request: hold if "manifest-000002" in request.path and request.method == "PUT" else None
    with pytest.raises((Unavailable, OutcomeUnknown)):
        store.save_with_state(manifest(2, "sidecar", "late"), sidecar(2, "late"))
    assert direct.open().list_ids() == [1]
    hold.release()
    proxy.script = lambda _: None
    store.save_with_state(manifest(2, "sidecar", "late"), sidecar(2, "late"))
    assert check(direct, ["saved 1", "saved 2"], None) == [1, 2]


@pytest.mark.s3
@pytest.mark.usefixtures("quick")
def test_an_update_whose_reply_is_lost_is_settled(proxy: FaultyProxy, through: Address, direct: Address) -> None:
    direct.open().save(manifest(1, "plain", "before", pending=("a", "b")))
    store = through.open()
    proxy.script = once(LostReply(), lambda request: request.method == "PUT")
    found = store.load_by_id(1)
    assert found is not None
    statuses: Any = {"a": "Committed", "b": "Pending"}
    store.update_manifest(msgspec.structs.replace(found, sink_commit_statuses=statuses))
    stored = direct.open().load_by_id(1)
    assert stored is not None
    assert stored.sink_commit_statuses == {"a": "Committed", "b": "Pending"}
    assert direct.open().validate_checkpoint(1).valid


@pytest.mark.s3
@pytest.mark.usefixtures("quick")
def test_a_prune_that_fails_loses_nothing_and_can_be_repeated(
    proxy: FaultyProxy, through: Address, direct: Address
) -> None:
    lines = [f"saved {number}" for number in range(1, 5)]
    for index, fault in enumerate((Status(503), LostReply(), Refuse(), Status(403))):
        seen = Address(f"{direct.url}/{index}", "object", direct.options)
        for number in range(1, 5):
            seen.open().save_with_state(manifest(number, "sidecar", "before"), sidecar(number, "before"))
        store = Address(f"{through.url}/{index}", "object", through.options).open()
        proxy.script = lambda request, fault=fault: fault if request.method in ("POST", "DELETE") else None
        with pytest.raises((Unavailable, OutcomeUnknown)):
            store.prune(2)
        proxy.script = lambda _: None
        check(seen, lines, 2)
        store.prune(2)
        assert check(seen, lines, 2) == [3, 4]


@pytest.mark.s3
def test_a_bucket_that_does_not_exist_is_not_an_empty_store(s3_server: S3Server) -> None:
    store = Address("s3://no-such-bucket-anywhere/pipeline", "object", s3_server.options).open()
    calls: list[Callable[[], object]] = [
        store.list_ids,
        store.load_latest,
        store.recover_latest_validated,
        store.next_id,
        lambda: store.save(manifest(1, "plain", "x")),
        lambda: store.save_with_state(manifest(1, "plain", "x"), [b"x"]),
        lambda: store.claim(),
        lambda: store.prune(1),
        lambda: store.cleanup_orphans(older_than=0),
    ]
    for call in calls:
        with pytest.raises((NotFound, Unavailable), match=r"no-such-bucket-anywhere"):
            call()


@pytest.mark.s3
@pytest.mark.parametrize("fault", [Refuse(), Status(503), Status(403)], ids=repr)
@pytest.mark.usefixtures("quick")
def test_a_store_that_cannot_be_read_is_not_a_fresh_start(
    fault: Any, proxy: FaultyProxy, through: Address, direct: Address
) -> None:
    saved_before(direct)
    proxy.script = lambda _: fault
    store = through.open()
    for call in (store.list_ids, store.load_latest, store.next_id, store.recover_latest_validated):
        with pytest.raises(Unavailable):
            call()
    proxy.script = lambda request: fault if "list-type" not in request.query else None
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.unreadable) == (None, [1]), "unreadable, not damaged"


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address to which no connection is ever made: its queue is full, so the kernel drops whoever knocks."""
    with contextlib.ExitStack() as stack:
        hole = stack.enter_context(socket.socket())
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(3):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(hole.getsockname())
        yield f"http://127.0.0.1:{hole.getsockname()[1]}"


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "expected"), [("refused", Unavailable), ("black hole", Unavailable), ("silent", OutcomeUnknown)]
)
def test_an_endpoint_that_cannot_be_reached_is_given_up_in_bounded_time(
    what: str, expected: type[HoldfastError], proxy: FaultyProxy, black_hole: str
) -> None:
    """With the real pauses. What never left is plainly not there; what was sent and not answered may be."""
    proxy.script = lambda _: Stall(60)
    where = {"silent": proxy.endpoint, "refused": "http://127.0.0.1:9", "black hole": black_hole}[what]
    options = options_for(where) | {"timeout": "500ms", "connect_timeout": "200ms"}
    store = Address("s3://bucket/pipeline", "object", options).open()
    began = time.monotonic()
    with pytest.raises(HoldfastError) as caught:
        store.save(manifest(1, "plain", "x"))
    assert time.monotonic() - began < 20
    assert caught.type is expected
    assert caught.value.about is not None
    assert "manifest-000001" in caught.value.about


@pytest.mark.s3
def test_an_answer_that_is_cut_short_or_strange_is_no_checkpoint(
    proxy: FaultyProxy, through: Address, direct: Address
) -> None:
    """A captive portal: 200 and a page. The manifest is damaged as far as one can tell, and nothing is believed."""
    saved_before(direct)
    proxy.script = lambda request: Status(200, b"<html>Please log in</html>") if "manifest-0" in request.path else None
    store = through.open()
    with pytest.raises((Corrupt, Unavailable)):
        store.load_by_id(1)
    with pytest.raises(HoldfastError):
        store.save(manifest(1, "plain", "x"))
    proxy.script = lambda _: None
    assert check(direct, ["saved 1"], None) == [1]
