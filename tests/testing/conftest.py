from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.servers import S3Server, moto_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server
