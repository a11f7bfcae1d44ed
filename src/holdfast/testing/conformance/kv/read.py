"""Reading what was committed: single keys, many keys, ranges."""

from __future__ import annotations

import os
import threading

from holdfast.testing.conformance.kv.subject import MEGABYTE, KeyValueUnderTest, puts, rows

ODD = [
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"a\xff",
    b"aa",
    b"b",
    b"\x7f",
    b"\x80",
    b"\xfe\xff",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\0",
]


class KeyValueReadingConformance(KeyValueUnderTest):
    """`get`, `get_many`, `scan`."""

    def test_new_store_is_empty(self) -> None:
        store = self.reopened(self.open())
        for space in self.schema.names:
            assert rows(store, space) == []
            assert store.get(space, b"k") is None
            assert store.get_many(space, [b"k", b"l"]) == [None, None]

    def test_round_trip(self) -> None:
        store = self.open()
        values: dict[bytes, bytes | None] = {b"empty": b"", b"zeros": bytes(3), b"large": os.urandom(3 * MEGABYTE)}
        values |= {key: b"value of " + key for key in ODD}
        self.commit(store, {"results": dict(values), "meta": {b"empty": b"other"}})
        store = self.reopened(store)
        for key, value in values.items():
            assert store.get("results", key) == value
        assert store.get_many("results", list(values)) == list(values.values())
        assert rows(store) == sorted(values.items())
        assert rows(store, "meta") == [(b"empty", b"other")]

    def test_later_changes_win_and_none_deletes(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(5))})
        with store.begin() as transaction:
            transaction.write({"results": {b"k000001": None, b"k000002": b"first", b"new": b"x", b"never": None}})
            transaction.write({"results": {b"k000001": b"back", b"k000002": b"second", b"k000003": b"x"}})
            transaction.write({"results": {b"k000003": None, b"new": None}, "meta": {}})
        store = self.reopened(store)
        assert rows(store) == [
            (b"k000000", b"v"),
            (b"k000001", b"back"),
            (b"k000002", b"second"),
            (b"k000004", b"v"),
        ]

    def test_keyspaces_are_apart(self) -> None:
        store = self.open()
        spaces = self.schema.names
        self.commit(store, {space: {b"key": space.encode(), b"\xff": b"last"} for space in spaces})
        self.commit(store, {spaces[0]: {b"key": None}})
        store = self.reopened(store)
        assert store.get(spaces[0], b"key") is None
        for space in spaces[1:]:
            assert rows(store, space) == [(b"key", space.encode()), (b"\xff", b"last")]

    def test_scans_by_range(self) -> None:
        store = self.open()
        self.commit(store, {"results": {key: key for key in ODD}, "meta": {b"before": b"", b"zz": b""}})
        ordered = sorted(ODD)
        bounds = [b"", b"a", b"a\0", b"ab", b"\x7f\xff", b"\xff", b"\xff\xff", b"\xff\xff\xff"]
        with store.begin() as transaction:
            for start in bounds:
                for end in [None, *bounds]:
                    for limit in (None, 0, 1, 3, 100):
                        expected = [(key, key) for key in ordered if key >= start and (end is None or key < end)]
                        expected = expected if limit is None else expected[:limit]
                        assert list(store.scan("results", start, end, limit)) == expected, (start, end, limit)
                        assert list(transaction.scan("results", start, end, limit)) == expected, (start, end, limit)

    def test_scans_of_many_keys(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(2345))})
        self.commit(store, {"results": puts(range(1000, 1500)) | dict.fromkeys(puts(range(10)), None)})
        assert [key for key, _ in rows(store)] == sorted(puts(range(10, 2345)))
        assert [key for key, _ in rows(store, prefix=b"k0012")] == sorted(puts(range(1200, 1300)))

    def test_gets_of_many_keys(self) -> None:
        store = self.open()
        self.commit(store, {"results": {b"%d" % number: b"%d" % number for number in range(0, 3000, 2)}})
        keys = [b"%d" % number for number in range(2999, -1, -1)]
        expected = [key if int(key) % 2 == 0 else None for key in keys]
        assert store.get_many("results", keys) == expected
        assert store.get_many("results", [b"2", b"3", b"2"]) == [b"2", None, b"2"]
        assert store.get_many("results", []) == []
        with store.begin() as transaction:
            assert transaction.get_many("results", keys) == expected
            assert transaction.get_many("results", []) == []

    def test_gets_of_many_keys_are_of_one_moment(self) -> None:
        """One thread sets all keys to the same value again and again; whoever reads them sees one value."""
        store = self.open()
        keys = [b"%d" % number for number in range(1200)]
        self.commit(store, {"results": dict.fromkeys(keys, b"0")})
        is_over = threading.Event()

        def write() -> None:
            for number in range(1, 60):
                if is_over.is_set():
                    return
                self.commit(store, {"results": dict.fromkeys(keys, b"%d" % number)})

        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen: set[bytes | None] = set()
            while writer.is_alive() and len(seen) < 5:
                found = set(store.get_many("results", keys))
                assert len(found) == 1
                seen |= found
        finally:
            is_over.set()
            writer.join()

    def test_scan_is_of_one_moment(self) -> None:
        store = self.open()
        self.commit(store, {"results": puts(range(2000))})
        scan = store.scan("results", b"", None)
        seen = [next(scan)]
        self.commit(store, {"results": puts(range(2000), b"new") | puts(range(5), prefix=b"z")})
        seen += scan
        if self.abilities.scans_one_moment:
            assert dict(seen) == puts(range(2000))
        else:
            assert [key for key, _ in seen][:2000] == sorted(puts(range(2000)))
