"""Redis and Valkey: addresses, what the server keeps, rivals, lost replies, and keys that others wrote to."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from cut_lines import CutLine, interrupted_at

from holdfast.base.steps import Phase
from holdfast.errors import Conflict, Corrupt, Fenced, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.index.records import SCHEMA
from holdfast.storage.kv import redis_layout
from holdfast.storage.kv.redis import RedisStore
from holdfast.storage.kv.redis_connection import RedisConnection
from holdfast.storage.kv.redis_server import judge, may_evict, parse
from holdfast.storage.kv.store import WriteBatch
from servers.valkey import PASSWORD, ValkeyServer, valkey_server

A: WriteBatch = {"results": {b"a": b"1"}, "meta": {b"m": b"1"}}
B: WriteBatch = {"results": {b"b": b"2", b"a": None}, "meta": {b"m": b"2"}}


def commit(store: RedisStore, changes: WriteBatch) -> None:
    with store.begin() as transaction:
        transaction.write({space: dict(of_space) for space, of_space in changes.items()})


def contents(store: RedisStore) -> list[tuple[bytes, bytes]]:
    return [*store.scan("results", b"", None), *store.scan("meta", b"", None)]


AFTER_A = [(b"a", b"1"), (b"m", b"1")]
AFTER_B = [(b"b", b"2"), (b"m", b"2")]


@pytest.fixture
def client(valkey: ValkeyServer) -> Iterator[Any]:
    with redis.Redis(port=valkey.port, password=PASSWORD) as client:
        yield client


@contextlib.contextmanager
def opened(url: str, **options: Any) -> Iterator[RedisStore]:
    store = RedisStore(url, SCHEMA, **options)
    try:
        yield store
    finally:
        store.close()


# Addresses.


def test_address_is_shown_without_secrets() -> None:
    at = parse("valkeys://me:secret@host:7000/3?index=orders&socket_timeout=5&password=other")
    assert at.shown == "valkeys://host:7000/3?index=orders"
    assert at.connection is redis.SSLConnection
    assert (at.settings["db"], at.settings["socket_timeout"]) == (3, 5.0)
    assert at.key("token") == "{holdfast:orders}:token"
    assert parse("redis://h").shown == "redis://h:6379/0?index=default"


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:secret@host/orders",
        "redis://me:secret@host:port/0",
        "redis://me:secret@host/0?index=a}b",
        "redis://me:secret@host/0?index=",
        "redis://me:secret@host/0?durability=maybe",
        "redis://me:secret@host/0?socket_timeout=secret",
        "redis://me:secret@host/0?nonsense=secret",
        "http://me:secret@host/0",
    ],
)
def test_addresses_that_are_refused_do_not_leak(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def test_wrong_password_and_no_server(valkey: ValkeyServer) -> None:
    with pytest.raises(Invalid) as caught:
        RedisStore(valkey.url().replace(PASSWORD, "wrong-secret"), SCHEMA)
    assert caught.value.code == "index.denied"
    assert "wrong-secret" not in str(caught.value)
    with pytest.raises(Unavailable) as gone:
        RedisStore(valkey.url(port=1), SCHEMA)
    assert PASSWORD not in str(gone.value)


# What the server keeps.


@pytest.mark.parametrize(
    ("settings", "waitaof", "wanted", "kept"),
    [
        (("yes", "always", "no"), [1, 0], "strict", True),
        (("yes", "always", None), redis.ResponseError("unknown command"), "strict", True),
        (("yes", "always", "yes"), [1, 0], "strict", False),
        (("yes", "everysec", "no"), [1, 0], "strict", False),
        (("yes", "everysec", "no"), [1, 0], "server", True),
        (("yes", "no", "no"), [1, 0], "server", False),
        (("no", "always", "no"), redis.ResponseError("x"), "server", False),
        ((None, None, None), redis.ResponseError("WAITAOF ... appendonly is disabled."), "server", False),
        ((None, None, None), [1, 0], "strict", False),
        ((None, None, None), [1, 0], "server", True),
    ],
)
def test_what_is_taken_for_durable(settings: Any, waitaof: Any, wanted: Any, kept: bool) -> None:
    named = dict(zip(("appendonly", "appendfsync", "no-appendfsync-on-rewrite"), settings, strict=True))
    assert judge(named, False, waitaof, wanted).kept is kept
    assert judge(named, True, waitaof, wanted).kept is False
    assert judge(named, False, waitaof, wanted).has_waitaof is (kept and isinstance(waitaof, list))


def test_memory_that_evicts() -> None:
    assert may_evict(b"maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n")
    assert not may_evict(b"maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n")
    assert not may_evict(b"maxmemory:100\r\nmaxmemory_policy:volatile-lru\r\n")
    assert not may_evict(redis.ResponseError("NOPERM"))


def test_server_that_would_lose_commits(caplog: pytest.LogCaptureFixture) -> None:
    with valkey_server(appendonly=False) as server:
        url = server.url("i")
        with opened(f"{url}&durability=none") as first:
            commit(first, A)
            assert "appendonly no" in caplog.text
            assert "appendonly no" in first.durability
            for wish in ("", "&durability=server"):
                with pytest.raises(Invalid) as caught:
                    RedisStore(url + wish, SCHEMA)
                assert caught.value.code == "index.not-durable"
            commit(first, B)  # not fenced by those that were refused
            server.kill()
            server.start()
            assert contents(first) == []
            with pytest.raises(Corrupt) as lost:
                commit(first, A)
            assert lost.value.code == "index.lost"
            assert contents(first) == []
    with valkey_server(appendfsync="everysec") as server, pytest.raises(Invalid, match="everysec"):
        RedisStore(server.url(), SCHEMA)


def test_server_that_was_started_with_other_settings(caplog: pytest.LogCaptureFixture) -> None:
    with valkey_server() as server, opened(server.url()) as store:
        commit(store, A)
        server.kill()
        server.settings["appendfsync"] = "everysec"
        server.start()
        with pytest.raises(Invalid) as caught:
            commit(store, B)
        assert caught.value.code == "index.not-durable"
        assert contents(store) == AFTER_A
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# Rivals.


def test_second_opening_fences_the_first(valkey: ValkeyServer) -> None:
    url = valkey.url()
    with opened(url) as first:
        commit(first, A)
        with opened(url) as second:
            for _ in range(2):
                with pytest.raises(Fenced):
                    commit(first, {"meta": {b"stray": b""}})
            commit(second, B)
            assert contents(first) == contents(second) == AFTER_B


def test_opening_between_the_look_and_the_commit(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rival comes after the token was looked at, when the changes are on their way."""
    url = valkey.url()
    send = RedisConnection.send
    rivals: list[RedisStore] = []

    def interrupted(line: RedisConnection, commands: Any) -> None:
        found = list(commands)
        if found[0] == ["MULTI"] and len(found) > 3 and not rivals:
            rivals.append(None)  # type: ignore[arg-type]
            rivals[0] = RedisStore(url, SCHEMA)
        send(line, found)

    with opened(url) as first:
        commit(first, A)
        monkeypatch.setattr(RedisConnection, "send", interrupted)
        with pytest.raises(Fenced):
            commit(first, B)
        assert contents(rivals[0]) == AFTER_A
        rivals[0].close()


# Replies that are lost.


@pytest.fixture
def cut_line(valkey: ValkeyServer) -> Iterator[CutLine]:
    with CutLine(valkey.port, b"EXEC\r\n") as line:
        yield line


def test_lost_reply_of_a_commit_that_took_effect(valkey: ValkeyServer, cut_line: CutLine) -> None:
    with opened(valkey.url(port=cut_line.port)) as store:
        commit(store, A)
        cut_line.cuts = 1
        commit(store, B)
        assert cut_line.cuts == 0
        assert contents(store) == AFTER_B
        commit(store, A)
        assert store.get("results", b"a") == b"1"


@pytest.mark.parametrize("cut", ["request", "late"])
def test_lost_request_was_not_applied_and_never_will_be(valkey: ValkeyServer, cut_line: CutLine, cut: Any) -> None:
    with opened(valkey.url(port=cut_line.port)) as store:
        commit(store, A)
        cut_line.cut, cut_line.cuts = cut, 1
        with pytest.raises(Unavailable) as caught:
            commit(store, B)
        assert caught.value.code == "index.not-applied"
        if cut == "late":
            assert b"*-1\r\n" in cut_line.deliver(b"*-1\r\n")  # EXEC was refused
        assert contents(store) == AFTER_A
        commit(store, B)
        assert contents(store) == AFTER_B


def test_settling_loses_its_own_replies_too(valkey: ValkeyServer, cut_line: CutLine) -> None:
    with opened(valkey.url(port=cut_line.port)) as store:
        cut_line.cuts = 4
        commit(store, A)
        assert cut_line.cuts == 0
        commit(store, B)
        assert contents(store) == AFTER_B


def test_server_that_stays_away(valkey: ValkeyServer, cut_line: CutLine) -> None:
    with opened(valkey.url(port=cut_line.port), settle_seconds=0.2) as store:
        commit(store, A)
        cut_line.cuts, cut_line.is_down = 1, True
        with pytest.raises(OutcomeUnknown) as caught:
            commit(store, B)
        assert PASSWORD not in str(caught.value)
        for call in (lambda: contents(store), lambda: commit(store, A)):
            with pytest.raises(Unavailable):
                call()
        cut_line.is_down = False
        assert contents(store) == AFTER_B


def test_lost_reply_settled_after_a_rival_has_opened(valkey: ValkeyServer, cut_line: CutLine) -> None:
    url = valkey.url(port=cut_line.port)
    for cut, applied in (("reply", True), ("request", False)):
        with opened(url) as store:
            commit(store, A)
            before, after = store._committer._token, b"after"
            with opened(url):
                store._committer._in_doubt = {before: applied, after: not applied}
                if applied:
                    store._committer._settle(cut)
                else:
                    with pytest.raises(Fenced):
                        store._committer._settle(cut)
                with pytest.raises(Fenced):
                    commit(store, B)


@pytest.mark.parametrize("cut", ["reply", "request", "late"])
@pytest.mark.parametrize("phase", ["begin", "end"])
def test_interrupted_while_a_lost_reply_is_settled(
    valkey: ValkeyServer, cut_line: CutLine, cut: Any, phase: Phase
) -> None:
    """The store is intact, and so is the handle: the next commit finds out what was applied."""
    with opened(valkey.url(uuid.uuid4().hex, port=cut_line.port)) as store:
        commit(store, A)
        cut_line.cut, cut_line.cuts = cut, 1
        for _ in range(2):
            with interrupted_at("redis.settle", phase), pytest.raises(KeyboardInterrupt):
                commit(store, B)
        assert contents(store) == (AFTER_B if cut == "reply" else AFTER_A)
        commit(store, B)
        if cut == "late":
            cut_line.deliver(b"*-1\r\n")
        assert contents(store) == AFTER_B
        commit(store, A)
        assert store.get("results", b"a") == b"1"


def test_interrupted_while_a_lost_reply_is_settled_and_then_fenced(valkey: ValkeyServer, cut_line: CutLine) -> None:
    url = valkey.url(uuid.uuid4().hex, port=cut_line.port)
    with opened(url) as store:
        cut_line.cuts = 1
        with interrupted_at("redis.settle", "begin"), pytest.raises(KeyboardInterrupt):
            commit(store, A)
        with opened(url) as rival:
            for _ in range(2):
                with pytest.raises(Fenced):
                    commit(store, B)
            assert contents(rival) == AFTER_A


def test_connections_that_the_server_dropped(valkey: ValkeyServer, client: Any) -> None:
    with opened(valkey.url()) as store:
        commit(store, A)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert contents(store) == AFTER_A
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        commit(store, B)
        assert contents(store) == AFTER_B


def test_interrupted_while_waiting_for_the_reply(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(valkey.url()) as store:
        commit(store, A)

        def interrupted(_: RedisConnection) -> list[Any]:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(RedisConnection, "receive", _after(1, RedisConnection.receive, interrupted))
            with pytest.raises(KeyboardInterrupt):
                commit(store, B)
        store._client.drop_connection()
        assert contents(store) == AFTER_B
        commit(store, A)
        assert store.get("results", b"a") == b"1"


def _after(count: int, first: Any, then: Any) -> Any:
    """`first` so many times, then something else."""
    left = count

    def call(line: RedisConnection) -> Any:
        nonlocal left
        left -= 1
        return first(line) if left >= 0 else then(line)

    return call


# Servers that refuse, and keys that others wrote to.


def test_server_without_memory_applies_nothing() -> None:
    with valkey_server() as server, opened(server.url()) as store:
        commit(store, A)
        with redis.Redis(port=server.port, password=PASSWORD) as client:
            client.config_set("maxmemory", "1mb")
            with pytest.raises(Unavailable, match="maxmemory"):
                commit(store, B)
            assert contents(store) == AFTER_A
            client.config_set("maxmemory", "0")
        commit(store, B)
        assert contents(store) == AFTER_B


@pytest.mark.parametrize("name", ["meta", "results", "results:order", "token", "earlier"])
def test_keys_of_a_wrong_type(valkey: ValkeyServer, client: Any, name: str) -> None:
    url = valkey.url()
    with opened(url) as store:
        commit(store, A)
        key = parse(url).key(name)
        client.delete(key)
        client.geoadd(key, [1, 1, "x"]) if name != "results:order" else client.set(key, "x")
        others = {found: client.dump(found) for found in client.keys(parse(url).key("*").replace("[", "?"))}
        with pytest.raises(Corrupt) as caught:
            commit(store, B)
        assert caught.value.code == "index.damaged"
        with pytest.raises(Corrupt):
            RedisStore(url, SCHEMA)
        for found, dumped in others.items():
            assert client.dump(found) == dumped


def test_value_that_is_missing(valkey: ValkeyServer, client: Any) -> None:
    url = valkey.url()
    with opened(url) as store:
        commit(store, A)
        client.hdel(parse(url).key("results"), "a")
        with pytest.raises(Corrupt):
            list(store.scan("results", b"", None))


def test_keys_changed_by_hand_during_a_commit(
    valkey: ValkeyServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = valkey.url()
    with opened(url) as store:
        commit(store, A)
        send = RedisConnection.send

        def touched(line: RedisConnection, commands: Any) -> None:
            found = list(commands)
            if found[0] == ["MULTI"]:
                client.hset(parse(url).key("results"), "c", "3")
            send(line, found)

        with monkeypatch.context() as patch:
            patch.setattr(RedisConnection, "send", touched)
            with pytest.raises(Conflict) as caught:
                commit(store, B)
            assert caught.value.code == "index.touched"
        assert contents(store) == AFTER_A


def test_session_beyond_the_limit_is_refused_as_a_whole(valkey: ValkeyServer) -> None:
    with opened(valkey.url(), limit=1 << 20) as store:
        commit(store, A)
        transaction = store.begin()
        transaction.write({"results": dict(B["results"])})
        with pytest.raises(Invalid):
            transaction.write({"results": {b"%d" % key: bytes(1000) for key in range(2000)}})
        for call in (lambda: transaction.write(B), transaction.commit):
            with pytest.raises(Invalid) as caught:
                call()
            assert caught.value.code == "index.session-too-large"
        assert contents(store) == AFTER_A
        commit(store, B)
        assert contents(store) == AFTER_B


def test_large_session_and_scan_in_pages(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_layout, "PAGE", 7)
    with opened(valkey.url()) as store:
        expected = {b"%05d\xff\x00" % key: bytes(5000) for key in range(5000)}
        commit(store, {"results": expected})
        assert list(store.scan("results", b"00", b"01")) == [(k, v) for k, v in expected.items() if k.startswith(b"00")]
        gone = [key for key in expected if key.startswith(b"01")]
        scan = store.scan("results", b"01", b"02")
        next(scan)
        commit(store, {"results": dict.fromkeys(gone)})
        assert len(list(scan)) < 7  # the page that was read, and no error for the others
        assert sum(1 for _ in store.scan("results", b"", None)) == 4000


def test_a_closed_store_refuses_every_call(valkey: ValkeyServer) -> None:
    store = RedisStore(valkey.url(), SCHEMA)
    store.close()
    store.close()
    for call in (
        lambda: store.get("meta", b"a"),
        lambda: list(store.scan("meta", b"", None)),
        lambda: commit(store, A),
    ):
        with pytest.raises(HoldfastError) as caught:
            call()
        assert caught.value.code == "index.closed"


def test_cluster_is_followed_to_the_node_that_has_the_index() -> None:
    settings = {"cluster-enabled": "yes"}
    with valkey_server(settings=settings) as first, valkey_server(settings=settings) as second:
        with contextlib.ExitStack() as stack:
            one, two = (
                stack.enter_context(redis.Redis(port=server.port, password=PASSWORD)) for server in (first, second)
            )
            one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
            two.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
            two.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 7)
            one.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port)
            deadline = time.monotonic() + 60
            while not (is_whole(one) and is_whole(two)):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            nodes = {one.execute_command("CLUSTER", "KEYSLOT", f"{{holdfast:{name}}}:token") // 8192 for name in "abcd"}
            assert nodes == {0, 1}
        for name in "abcd":
            with opened(first.url(name)) as store:
                commit(store, A)
                assert contents(store) == AFTER_A
            with opened(second.url(name)) as store:
                commit(store, B)
                assert contents(store) == AFTER_B


def is_whole(node: Any) -> bool:
    """Whether a node knows of all slots, and serves them."""
    shards = repr(node.execute_command("CLUSTER", "SHARDS"))
    return "8191" in shards and "16383" in shards and b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO")
