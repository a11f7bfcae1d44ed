"""What may be written down of options and descriptions: everything but secrets."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from holdfast.base.addresses import CONTAINER_FIRST

MASK = "***"
LONGEST = 300

_WORDS = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|jaas|signature|keystore|truststore|connection[._-]?string"
    r"|(?:access|account|api|private|shared|encryption|master|sas)[._-]?\w*key"
)
_SECRET_NAMES = re.compile(rf"{_WORDS}|(?:^|[._-])auth(?!or)", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?P<name>[\w.-]*(?:{_WORDS}|\bsig\b)[\w.-]*[\"']?\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^&;,\s\"']+)",
    re.IGNORECASE,
)
_USER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/@\s]*)@")
_CONTAINERS = (*CONTAINER_FIRST, "wasb", "wasbs")
"""Their addresses have the container where others have the user."""


def is_secret(name: str) -> bool:
    """Whether an option of this name may hold a secret."""
    return _SECRET_NAMES.search(name) is not None


def redacted(value: Any, name: str = "") -> Any:
    """The same plain value without secrets: values of options that sound like one, users and passwords in addresses.

    Does not guarantee: that a secret under an innocent name is found. Long texts are cut.
    """
    if isinstance(value, dict):
        return {str(key): redacted(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, name) for inner in value]
    if not isinstance(value, str):
        return value
    if is_secret(name):
        return MASK
    return _cut(_PAIR.sub(rf"\g<name>{MASK}", _USER.sub(_without_user, value)))


def _without_user(found: re.Match[str]) -> str:
    is_container = found["scheme"].lower() in _CONTAINERS and ":" not in found["user"]
    return found[0] if is_container else f"{found['scheme']}://{MASK}@"


def _cut(text: str) -> str:
    """A long text as its beginning and a hash, so that two of them can still be told apart."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… ({len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()[:8]})"
