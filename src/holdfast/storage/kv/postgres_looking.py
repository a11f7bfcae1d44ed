"""Looking into an index on PostgreSQL: its row is only read, so that nobody is fenced and nobody waits."""

from __future__ import annotations

from holdfast.storage.kv import postgres_tables as tables
from holdfast.storage.kv.errors import not_there
from holdfast.storage.kv.postgres_reader import Reader
from holdfast.storage.kv.postgres_server import parse


class PostgresLooker:
    """Queries that change nothing: a role that may only read is enough."""

    def __init__(self, url: str) -> None:
        address = parse(url)
        reader = Reader(address)
        self.address = address.shown
        self.read = reader.read
        self.scan = reader.scan
        self.close = reader.close
        try:
            is_made = reader.fetched(tables.ARE_MADE, [tables.NAMES]) == [(True,)]
            found = reader.fetched(tables.FIND, [address.index]) if is_made else []
            if not found:
                raise not_there("index", self.address)
            reader.index_id, layout = found[0]
            tables.check_layout(layout, self.address)
        except BaseException:
            self.close()
            raise
