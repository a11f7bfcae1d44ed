"""Looking into an index on Redis, Valkey or Garnet: its token is left alone, so that nobody is fenced."""

from __future__ import annotations

from holdfast.storage.kv.redis_client import Server
from holdfast.storage.kv.redis_reading import Reader
from holdfast.storage.kv.redis_server import parse


class RedisLooker:
    """Commands that read and no others. Where there is no index, there is simply nothing to read."""

    def __init__(self, url: str) -> None:
        server = Server(parse(url))
        reader = Reader(server)
        self.address = server.address
        self.read = reader.read
        self.scan = reader.scan
        self.close = server.close
