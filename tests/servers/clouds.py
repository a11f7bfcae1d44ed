"""The servers of object storage by the scheme of their addresses, so that one test runs on all of them.

S3 is in `make test`; Google Cloud Storage and Azure are in `make test-clouds`, but for a sample.
"""

from __future__ import annotations

from typing import Protocol

import pytest

GOOGLE = pytest.param("gs", marks=pytest.mark.clouds)
AZURE = pytest.param("az", marks=pytest.mark.clouds)
CLOUDS = [pytest.param("s3", marks=pytest.mark.s3), GOOGLE, AZURE]
"""Parameters of a fixture or a test that takes the scheme."""

FIXTURES = {"s3": "s3_server", "gs": "google", "az": "azure"}


class CloudServer(Protocol):
    """What the servers have in common."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]: ...

    def new_bucket(self) -> str: ...


def cloud_server(request: pytest.FixtureRequest, scheme: str) -> CloudServer:
    """The one server of this kind that the tests of this process share."""
    server: CloudServer = request.getfixturevalue(FIXTURES[scheme])
    return server


def new_address(request: pytest.FixtureRequest, scheme: str, path: str) -> tuple[str, dict[str, str]]:
    """An address in a new bucket, and the options with which it is reached."""
    server = cloud_server(request, scheme)
    return f"{scheme}://{server.new_bucket()}/{path}", server.options
