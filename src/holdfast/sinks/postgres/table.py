"""Names of tables, and the description of a table in PostgreSQL's catalog. Reads only; decides nothing."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.sinks.postgres.types import PgType
from holdfast.sinks.sink import Delivery

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

COMMITS = "holdfast_commits"
"""The table with one row per committed delivery, in the target's schema: a backup restores both or neither."""
STAGED = "holdfast_staged_"
"""The prefix of staging tables, which are in the target's schema too."""
ATTEMPT = "holdfast_attempt"
"""The column of a staging table with the task attempt that copied the row."""
DELETED = "holdfast_deleted"
"""The column of a staging table that marks rows which delete their key."""
LONGEST = 63  # bytes; PostgreSQL truncates longer names silently

_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".][^.]*)')
_STAGED = re.compile(rf"{STAGED}[0-9a-f]{{32}}")


class TableName(msgspec.Struct, frozen=True):
    """A table, and its schema if one was given."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in (self.schema, self.name) if part is not None)


def quoted(name: str) -> str:
    """A name as an SQL identifier, for messages and for `to_regclass`."""
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
    """`Invalid` for a name that PostgreSQL would truncate or cannot store."""
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > LONGEST:
        raise Invalid(f"{name!r} cannot be the name of a {what}: PostgreSQL takes 1 to {LONGEST} bytes, and no NUL.")


def staged_name(delivery: Delivery, token: str) -> str:
    """The staging table of one attempt at a delivery. The token distinguishes two attempts of one driver."""
    whole = f"{delivery.owner}/{delivery.lineage}/{delivery.epoch}/{delivery.generation}/{token}"
    return STAGED + hashlib.sha256(whole.encode()).hexdigest()[:32]


def is_staged_name(name: str) -> bool:
    """Whether it is the name of a staging table: no other table is ever dropped."""
    return _STAGED.fullmatch(name) is not None


class CatalogColumn(msgspec.Struct, frozen=True):
    """A column of a table."""

    number: int
    name: str
    type: PgType
    collation: str | None
    """The collation if it is not the type's default; it decides which keys are equal."""
    required: bool
    has_default: bool
    numbered: bool
    """Whether a sequence fills it when no value is given."""
    generated: str | None
    """Why no value can be given; None if one can."""
    domain: bool


class CheckConstraint(msgspec.Struct, frozen=True):
    """A CHECK constraint. A row violates it if the expression is false; null is fine."""

    name: str
    expression: str
    columns: frozenset[int]


class CatalogIndex(msgspec.Struct, frozen=True):
    """An index, with the numbers of its key columns (without INCLUDE columns)."""

    name: str
    unique: bool
    columns: tuple[int, ...]
    immediate: bool
    valid: bool
    plain: bool
    """Whether it is on columns only, without an expression or a WHERE."""


class CatalogTable(msgspec.Struct, frozen=True):
    """A table, with everything about it that decides whether it takes rows."""

    schema: str
    name: str
    kind: str
    logged: bool
    """Whether it and all its partitions survive a crash of the server."""
    rules: bool
    row_security: bool
    triggers: bool
    exclusions: bool
    refers: bool
    """Whether it has a foreign key."""
    referred: bool
    """Whether another table has a foreign key to it."""
    columns: tuple[CatalogColumn, ...]
    checks: tuple[CheckConstraint, ...]
    indexes: tuple[CatalogIndex, ...]

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.name)

    def column(self, name: str) -> CatalogColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def key_index(self, key: tuple[str, ...]) -> CatalogIndex | None:
        """The unique index on exactly these columns that `ON CONFLICT` can use."""
        numbers = {column.number for column in self.columns if column.name in key}
        usable = (index for index in self.indexes if index.unique and index.immediate and index.valid and index.plain)
        return next((index for index in usable if set(index.columns) == numbers and len(numbers) == len(key)), None)


def schema_of(connection: Connection, table: TableName) -> str | None:
    """The schema that the table is in, or would be created in; None if that schema does not exist."""
    found = connection.execute(_HOME, [str(table), table.schema]).fetchone()
    return found[0] if found else None


def exists(connection: Connection, table: TableName) -> bool:
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [str(table)]).fetchone()
    return bool(found and found[0])


def read_table(connection: Connection, table: TableName) -> CatalogTable | None:
    """The catalog's description of a table; None if there is none. A name without schema uses the search path."""
    found = connection.execute(_TABLE, [str(table)]).fetchone()
    if found is None:
        return None
    oid, facts = found[0], dict(zip(_FACTS, found[1:], strict=True))
    columns = tuple(_column(row) for row in connection.execute(_COLUMNS, [oid]))
    checks = tuple(
        CheckConstraint(name, expression, frozenset(numbers))
        for name, expression, numbers in connection.execute(_CHECKS, [oid])
    )
    indexes = tuple(
        CatalogIndex(name, unique, tuple(numbers), immediate, valid, plain)
        for name, unique, numbers, immediate, valid, plain in connection.execute(_INDEXES, [oid])
    )
    return CatalogTable(**facts, columns=columns, checks=checks, indexes=indexes)


def _column(row: tuple[Any, ...]) -> CatalogColumn:
    number, name, *rest = row
    type_name, category, modifier, written, element_name, element_category, element_written, *flags = rest
    element = None
    if element_name is not None:
        element = PgType(element_name, element_category, modifier, element_written)
    return CatalogColumn(number, name, PgType(type_name, category, modifier, written, element), *flags)


_FACTS = tuple(name for name in CatalogTable.__struct_fields__ if name not in {"columns", "checks", "indexes"})

_HOME = """
SELECT coalesce(
    (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)),
    (SELECT n.nspname FROM pg_namespace n WHERE n.nspname = coalesce(%s, current_schema()))
)"""

_TABLE = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text,
    NOT EXISTS (SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class part ON part.oid = p.relid
                WHERE part.relpersistence <> 'p' OR part.relkind = 'f') AND c.relpersistence = 'p',
    c.relhasrules, c.relrowsecurity,
    EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D'),
    EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'x'),
    EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'),
    EXISTS (SELECT FROM pg_constraint k WHERE k.confrelid = c.oid AND k.contype = 'f')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)"""

_COLUMNS = """
SELECT a.attnum, a.attname, b.typname, b.typcategory::text, base.modifier, format_type(b.oid, base.modifier),
    CASE WHEN b.typcategory = 'A' THEN e.typname END,
    CASE WHEN b.typcategory = 'A' THEN e.typcategory::text END,
    CASE WHEN b.typcategory = 'A' THEN format_type(e.oid, base.modifier) END,
    CASE WHEN a.attcollation <> b.typcollation
         THEN (SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname)
               FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) END,
    a.attnotnull OR t.typnotnull,
    a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
    a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%%', false),
    CASE WHEN a.attgenerated <> '' THEN 'a generated column'
         WHEN a.attidentity = 'a' THEN 'an identity column that is GENERATED ALWAYS' END,
    t.typtype = 'd'
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
CROSS JOIN LATERAL (
    WITH RECURSIVE chain (oid, modifier, depth) AS (
        SELECT a.atttypid, a.atttypmod, 0
        UNION ALL
        SELECT up.typbasetype, up.typtypmod, chain.depth + 1
        FROM chain JOIN pg_type up ON up.oid = chain.oid WHERE up.typtype = 'd'
    )
    SELECT oid, modifier FROM chain ORDER BY depth DESC LIMIT 1
) base
JOIN pg_type b ON b.oid = base.oid
LEFT JOIN pg_type e ON e.oid = b.typelem
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""

# Before PostgreSQL 18 there is no column that says whether a constraint is enforced: all are.
_CHECKS = """
SELECT k.conname, pg_get_expr(k.conbin, k.conrelid), coalesce(k.conkey, '{}')
FROM pg_constraint k
WHERE k.conrelid = %s AND k.contype = 'c' AND coalesce(to_jsonb(k) ->> 'conenforced', 'true') = 'true'
ORDER BY k.conname"""

_INDEXES = """
SELECT c.relname, i.indisunique, ARRAY(SELECT i.indkey[n] FROM generate_series(0, i.indnkeyatts - 1) n),
    i.indimmediate, i.indisvalid, i.indpred IS NULL AND i.indexprs IS NULL
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %s ORDER BY c.relname"""
