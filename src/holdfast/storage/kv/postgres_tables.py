"""The tables of all indexes in a database, in the schema `holdfast`.

One table for each space, shared by all indexes: a role is granted them once, and opening an index changes no table.
"""

from __future__ import annotations

from holdfast.base.steps import step
from holdfast.errors import Corrupt, Invalid
from holdfast.storage.kv.backend import Space
from holdfast.storage.kv.postgres_server import Connection

LAYOUT = 1
_LOCK = 0x686F6C6466617374  # "holdfast", for the advisory lock under which the tables are made

_MAKE = f"""
CREATE SCHEMA IF NOT EXISTS holdfast;
CREATE TABLE IF NOT EXISTS holdfast.indexes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    layout int NOT NULL DEFAULT {LAYOUT},
    token bytea NOT NULL,
    earlier bytea[] NOT NULL DEFAULT '{{}}'
);
CREATE TABLE IF NOT EXISTS holdfast.index_meta (
    index_id bigint NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (index_id, key)
);
CREATE TABLE IF NOT EXISTS holdfast.index_results (
    index_id bigint NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (index_id, key)
);
"""


class Statements:
    """What is asked of one space's table."""

    def __init__(self, space: Space) -> None:
        def made(text: str) -> bytes:  # psycopg remembers the parts of a query in bytes
            return text.format(f"holdfast.index_{space}").encode()

        self.read = made("SELECT value FROM {} WHERE index_id = %s AND key = %s")
        self.scan = made("SELECT key, value FROM {} WHERE index_id = %s AND key >= %s ORDER BY key")
        self.scan_to = made("SELECT key, value FROM {} WHERE index_id = %s AND key >= %s AND key < %s ORDER BY key")
        self.put = made(
            "INSERT INTO {} (index_id, key, value) SELECT %s, * FROM unnest(%b::bytea[], %b::bytea[]) "
            "ON CONFLICT (index_id, key) DO UPDATE SET value = excluded.value"
        )
        self.delete = made("DELETE FROM {} WHERE index_id = %s AND key = ANY(%b::bytea[])")


SPACES: dict[Space, Statements] = {"meta": Statements("meta"), "results": Statements("results")}

PRELUDE = """
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
       set_config('lock_timeout', '10s', true), pg_backend_pid(), pg_current_xact_id()::text"""
"""At the start of a transaction: COMMIT returns when it is on disk, whatever the server's default is; and nobody is
waited for longer than ten seconds."""
NOTICE = """
SELECT set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false),
       set_config('tcp_keepalives_count', '3', false)"""
"""Once for a connection: the server notices within a minute that a client is gone, and drops its locks. Where a pooler
is between the two, noticing is the pooler's."""

TAKE = "UPDATE holdfast.indexes SET token = %s WHERE id = %s AND token = %s"
LOCKED = "SELECT token, earlier FROM holdfast.indexes WHERE id = %s FOR UPDATE"
LOOK = "SELECT token, earlier FROM holdfast.indexes WHERE id = %s"
REPLACE = "UPDATE holdfast.indexes SET token = %s WHERE id = %s"
END_TRANSACTION = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_xid = %s::xid8::xid"
)


ARE_MADE = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) name"
NAMES = ["holdfast.indexes", "holdfast.index_meta", "holdfast.index_results"]
FIND = "SELECT id, layout FROM holdfast.indexes WHERE name = %s"


def make(connection: Connection) -> None:
    """Make the tables where they are missing; a role that may not make any needs them to be there."""
    if connection.execute(ARE_MADE, [NAMES]).fetchone() == (True,):
        return
    with connection.transaction(), step("postgres.tables"):
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])  # IF NOT EXISTS alone fails in a race
        connection.execute(_MAKE)


def check_layout(layout: int, address: str) -> None:
    if layout != LAYOUT:
        kind = Invalid if layout > LAYOUT else Corrupt
        raise kind(
            f"The index has layout {layout}; this version reads layout {LAYOUT}.",
            code="index.newer",
            about=address,
            unchanged="the index",
            next_step="use the version of Holdfast that wrote it, or a later one",
        )
