"""Manifests as bytes, as a foreign or careless writer would leave them."""

from __future__ import annotations

import json
from typing import Any

from holdfast.testing.conformance.checkpoints.subject import CREATED_MS

MANDATORY = {"version": 1, "checkpoint_id": 2, "epoch": 2, "timestamp_ms": CREATED_MS}


def with_(**fields: Any) -> bytes:
    return json.dumps(MANDATORY | fields).encode()


def without(field: str) -> bytes:
    return json.dumps({name: value for name, value in MANDATORY.items() if name != field}).encode()
