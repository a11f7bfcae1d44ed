"""A read model as others see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from holdfast.projections import keys, state
from holdfast.projections.arguments import check_key, check_prefix
from holdfast.projections.backend import Backend, Row
from holdfast.projections.view import scan_views, table_name, table_prefix

_T = TypeVar("_T")


class ReadModel:
    """The live read model of one projection, read only. What is read is committed, and of one build."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._track = state.live(name)

    def get(self, key: bytes) -> bytes | None:
        key = check_key(key)
        return self._of_one_build(
            lambda build: self._backend.read("views", [keys.of_build(self._track.escaped, build) + key])[0]
        )

    def scan(self, prefix: bytes = b"") -> Iterator[Row]:
        """Keys that begin with these bytes, in order, as they are when this is called."""
        prefix = check_prefix(prefix)
        return iter(
            self._of_one_build(
                lambda build: list(scan_views(self._backend, keys.of_build(self._track.escaped, build), prefix))
            )
        )

    def query(self, sql: Callable[[Callable[[str], str]], str], parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Rows from the read model's own tables: `view.query(lambda table: f"SELECT * FROM {table('orders')}")`.

        The statement is made again if a rebuild switches over meanwhile.
        """

        def asked(build: int) -> list[tuple[Any, ...]]:
            prefix = table_prefix(self._track.escaped, build)
            return self._backend.query(sql(lambda name: table_name(prefix, name)), parameters)

        return self._of_one_build(asked)

    def _of_one_build(self, ask: Callable[[int], _T]) -> _T:
        """A build that is switched away from is swept, so an answer counts only if its build was live after it."""
        build = self._build()
        while True:
            try:
                found = ask(build)
            except Exception:  # a table may be gone with its build
                if (now := self._build()) == build:
                    raise
            else:
                if (now := self._build()) == build:
                    return found
            build = now

    def _build(self) -> int:
        found = state.read(self._backend, self._track.key, self._backend.address)
        return found.build if found else 1
