"""Commits to a Delta table on S3 whose replies are lost or strange: the log tells what has happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from delta_s3_place import AppendPlace, MergePlace, S3Place

from holdfast.errors import Unavailable
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.testing.conformance.sinks import A, B, delivery
from holdfast.testing.faults.proxy import Fault, FaultyProxy, LostReply, Request, Status, once
from products import only
from servers.s3 import options_for

pytestmark = pytest.mark.s3

CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>try again</Message></Error>"


def is_commit(request: Request) -> bool:
    return request.method == "PUT" and "_delta_log/" in request.path and request.path.endswith(".json")


class Commits(S3Place):
    @pytest.fixture(autouse=True)
    def proxy(self, place: None) -> Iterator[None]:
        with FaultyProxy(self.endpoint) as self.between:
            self.behind = DeltaSink(self.table.address, self.key, storage_options=options_for(self.between.endpoint))
            yield

    @pytest.mark.parametrize(
        "fault", [LostReply(reset=True), Status(503), Status(409, CONFLICT)], ids=["lost", "busy", "under way"]
    )
    def test_settled_by_the_log(self, fault: Fault) -> None:
        self.deliver(A, delivery(1))
        descriptor = self.stage(B, delivery(2))
        self.between.script = once(fault, is_commit)
        self.behind.commit(descriptor, delivery(2))
        assert self.rows() == A + B
        assert self.leftovers() == []
        assert self.table.open().version() == 2

    def test_service_that_takes_no_commit(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.between.script = lambda request: Status(403, b"<Error><Code>AccessDenied</Code></Error>")
        with pytest.raises(Unavailable, match="AccessDenied"):
            self.behind.commit(descriptor, delivery(1))
        self.between.script = lambda request: Status(409, CONFLICT) if is_commit(request) else None
        with pytest.raises(Unavailable, match="refused a commit"):
            self.behind.commit(descriptor, delivery(1))
        self.between.script = lambda request: None
        self.behind.commit(descriptor, delivery(1))
        assert self.rows() == A

    @pytest.mark.soak
    def test_replies_that_are_always_lost(self) -> None:
        """The client repeats the request, and is told that the entry exists: its own."""
        descriptor = self.stage(A, delivery(1))
        self.between.script = lambda request: LostReply() if is_commit(request) else None
        self.behind.commit(descriptor, delivery(1))
        assert self.rows() == A


class TestAppend(AppendPlace, Commits):
    pass


@only("test_settled_by_the_log")
class TestMerge(MergePlace, Commits):
    pass
