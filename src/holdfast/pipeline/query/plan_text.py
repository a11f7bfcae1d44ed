"""A plan's text and its hash, the same in every process and on every machine."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

_EXPRESSION_ID = re.compile(r"#(\d+)(L?)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_IDENTITY = re.compile(r"@[0-9a-f]{3,}")
_SEEDS = (
    re.compile(r"(\b(?:rand|randn)\()-?\d+(?=\))"),
    re.compile(r"(\bSome\()-?\d+(?=\))"),
    re.compile(r"(\b(?:randstr|uniform)\([^()]*, )-?\d+(?=, true)"),
    re.compile(r"(\bSample [^,]+, [^,]+, (?:true|false), )-?\d+"),
)
"""Where Spark prints the seeds that it chooses itself."""
_LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'")


def normalised(plan: str) -> str:
    """The plan without the parts that differ from process to process: expression ids, object identities, seeds."""
    ids: dict[str, int] = {}
    text = _EXPRESSION_ID.sub(lambda found: f"#{ids.setdefault(found[1], len(ids))}{found[2]}", plan)
    text = _UUID.sub("<id>", text)
    text = _IDENTITY.sub("@", text)
    for seed in _SEEDS:
        text = seed.sub(r"\1", text)
    return text


def stable_hash(value: Any) -> int:
    """A 64-bit hash of plain values, the same in every process and on every machine."""
    text = msgspec.json.encode(value, order="deterministic")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def fingerprint(text: str) -> str:
    """A short hash of a plan's text, for a manifest, which has no room for it and must not hold its literals."""
    return f"{stable_hash(normalised(text)):016x}"


def without_ids(text: str) -> str:
    """A line of a plan for people: without expression ids and the marks of watermarks."""
    return re.sub(r"#\d+L?(?:-T\d+ms)?", "", normalised(text)).lstrip("~")


def without_literals(sql: str) -> str:
    """An SQL expression with the texts in it masked: nobody knows what they are."""
    return _LITERAL.sub("'***'", sql)
