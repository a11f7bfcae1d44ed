"""Services that ignore the conditions of writes are refused before the first claim; the check is made only once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from holdfast import open_store
from holdfast.checkpoints.conditional_writes import check_once
from holdfast.checkpoints.lease import FOLDER
from holdfast.errors import Fenced, Invalid
from holdfast.storage.objects import open_objects
from holdfast.storage.objects.store import ObjectInfo
from holdfast.testing.conformance.checkpoints.subject import manifest
from holdfast.testing.faults.proxy import FaultyProxy, Request, Strip
from servers import azure, gcs, s3
from servers.clouds import AZURE, CloudServer, cloud_server

S3 = pytest.param("s3", marks=pytest.mark.s3)


class Service:
    """One service behind a proxy, and an empty store in it."""

    def __init__(self, scheme: str, server: CloudServer, proxy: FaultyProxy) -> None:
        self.url = f"{scheme}://{server.new_bucket()}/orders"
        self.direct = server.options
        self.options = {"s3": s3, "gs": gcs, "az": azure}[scheme].options_for(proxy.endpoint)
        self.proxy = proxy

    def ignores(self, *headers: str) -> None:
        if self.url.startswith("s3:"):
            self.options["aws_skip_signature"] = "true"  # it would cover the headers

        def script(request: Request) -> Strip | None:
            return Strip(headers) if request.method == "PUT" else None

        self.proxy.script = script


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    server = cloud_server(request, request.param)
    with FaultyProxy(server.endpoint) as proxy:
        yield Service(request.param, server, proxy)


@pytest.mark.parametrize(
    ("service", "header"),
    [
        pytest.param("s3", "if-none-match", marks=pytest.mark.s3),
        pytest.param("s3", "if-match", marks=pytest.mark.s3),
        ("gs", "x-goog-if-generation-match"),
    ],
    indirect=["service"],
)
def test_a_service_that_ignores_a_condition_is_refused(service: Service, header: str) -> None:
    service.ignores(header)
    for _ in range(2):  # not taken for checked the second time
        with pytest.raises(Invalid, match="does not enforce") as caught:
            open_store(service.url, options=service.options).claim("driver")
        assert caught.value.code == "cloud.unconditional"
        assert caught.value.about == service.url
        assert caught.value.unchanged
        assert caught.value.next_step
    assert open_objects(service.url, options=service.direct).list("") == [], "the check leaves nothing behind"


@pytest.mark.parametrize("service", [S3, "gs", AZURE], indirect=True)
def test_the_check_is_made_once_per_store(service: Service) -> None:
    first = open_store(service.url, options=service.options)
    first.claim("first")
    service.proxy.forget()
    second = open_store(service.url, options=service.options)
    assert second.claim("second").generation == 2
    # The listing, who held it before, the claim.
    assert [request.method for request in service.proxy.requests] == ["GET", "GET", "PUT"]
    with pytest.raises(Fenced):
        first.save(manifest(1))
    kept = [info.key for info in second.objects.list(FOLDER)]
    assert [key.rpartition("/")[2].partition("-")[0] for key in kept] == ["conditional", "generation", "generation"]


@pytest.mark.parametrize("service", ["gs"], indirect=True)
def test_a_store_that_was_copied_elsewhere_is_checked_anew(service: Service) -> None:
    original = open_store(service.url, options=service.options)
    original.claim()
    copy = open_objects(f"{service.url}-copied", options=service.options)
    for info in original.objects.list(""):
        copy.create(info.key, [original.objects.read(info.key, limit=1 << 20)])
    service.ignores("x-goog-if-generation-match")
    original.claim()  # known already: the check is not made again
    with pytest.raises(Invalid, match="does not enforce"):
        open_store(f"{service.url}-copied", options=service.options).claim()


@pytest.mark.parametrize("service", ["gs"], indirect=True)
def test_what_an_interrupted_check_left_goes_later(service: Service) -> None:
    objects = open_objects(service.url, options=service.options)
    objects.create(f"{FOLDER}probe-dead", [b"1"])
    check_once(objects, FOLDER, objects.list(FOLDER), now=time.time())
    assert objects.info(f"{FOLDER}probe-dead") is not None, "it may belong to a check under way"
    check_once(objects, FOLDER, objects.list(FOLDER), now=time.time() + 3700)
    assert objects.info(f"{FOLDER}probe-dead") is None


def test_a_store_without_a_service_needs_no_check(tmp_path: object) -> None:
    for address in ("memory://", str(tmp_path)):
        store = open_store(address)
        store.claim()
        assert [type(info) for info in store.objects.list(FOLDER)] == [ObjectInfo], "the claim alone"
