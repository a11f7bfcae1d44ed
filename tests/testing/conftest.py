from __future__ import annotations

import pytest

from servers.s3 import S3Server


@pytest.fixture
def s3(s3_server: S3Server) -> S3Server:
    return s3_server
