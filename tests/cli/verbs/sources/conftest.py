"""Fixture of the tests of `sources`: an index."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from source_index import HASH, KAFKA, url_of

import holdfast
from holdfast.sinks.index.sink import sequence_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index with three sources, two results, a hash and a gap."""
    made = tmp_path / "turnover.db"
    now = time.time()
    with holdfast.open_index(url_of(made), clock=lambda: now - 300) as index:
        with index.session():
            index.results.put(b"a", b"1")
            index.results.put(b"b", b"2")
            index.checkpoints.stage_checkpoint("orders", sequence_of(2, 42), KAFKA)
            index.checkpoints.stage_checkpoint("clicks", 41, b'{"logOffset":3}')
        index.checkpoints.write_config_hash(HASH)
        index.checkpoints.pass_over("log", 7, b"\0\0\0\xff", "the log was cut")
    return made
