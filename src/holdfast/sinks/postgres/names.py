"""What things are called in PostgreSQL: the target, the tables beside it, and what is said of them without secrets."""

from __future__ import annotations

import hashlib
import re

import msgspec

from holdfast.errors import Invalid
from holdfast.sinks.sink import Delivery

COMMITS = "holdfast_commits"
"""One row for each delivery that its readers see, in the target's schema: restored from a backup, both agree."""
STAGED = "holdfast_staged_"
"""Begins the name of every staging table, which is in the target's schema too."""
ATTEMPT = "holdfast_attempt"
"""The column of a staging table that says which task attempt copied the row."""
DELETED = "holdfast_deleted"
"""The column of a staging table that says that the row deletes its key."""
LONGEST = 63  # bytes; PostgreSQL cuts longer names off without a word

_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".][^.]*)')
_STAGED = re.compile(rf"{STAGED}[0-9a-f]{{32}}")


class TableName(msgspec.Struct, frozen=True):
    """A table, and its schema if one was named."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in (self.schema, self.name) if part is not None)


def quoted(name: str) -> str:
    """A name as SQL spells it, for people to copy and for `to_regclass`."""
    return '"' + name.replace('"', '""') + '"'


def parse_table(text: str) -> TableName:
    """`name` or `schema.name`, exactly as spelled: no folding to lower case. A part with a dot goes in quotes."""
    parts: list[str] = []
    at = 0
    while found := _PART.match(text, at):
        parts.append(found["quoted"].replace('""', '"') if found["quoted"] else found["plain"])
        at = found.end() + 1
        if text[found.end() : at] != ".":
            break
    if at <= len(text) or not 1 <= len(parts) <= 2:
        raise Invalid(
            f"{text!r} does not name a table.",
            next_step='write "name" or "schema.name"; a part that contains a dot goes in double quotes',
        )
    for part in parts:
        check_name(part, "table or schema")
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


def check_name(name: str, what: str) -> None:
    """Refuse what PostgreSQL would cut off or could not store."""
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > LONGEST:
        raise Invalid(f"{name!r} cannot be the name of a {what}: PostgreSQL takes 1 to {LONGEST} bytes, and no NUL.")


def staged_name(delivery: Delivery, token: str) -> str:
    """The staging table of one attempt at a delivery. The token keeps apart two attempts of one driver."""
    whole = f"{delivery.owner}/{delivery.lineage}/{delivery.epoch}/{delivery.generation}/{token}"
    return STAGED + hashlib.sha256(whole.encode()).hexdigest()[:32]


def is_staged_name(name: str) -> bool:
    """Whether we could have given this name: nothing else is ever dropped."""
    return _STAGED.fullmatch(name) is not None
