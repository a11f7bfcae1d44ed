"""HDFS beyond the contract of every medium: lost replies, dead writers, and a NameNode that refuses or is silent."""

from __future__ import annotations

import os
import posixpath
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from hdfs_native import Client, WriteOptions

from holdfast.errors import Conflict, HoldfastError, Invalid, NotFound, OutcomeUnknown, Unavailable
from holdfast.storage.objects import hdfs_turns, open_objects
from holdfast.storage.objects.hdfs import HdfsObjects
from holdfast.storage.objects.hdfs_client import HdfsClient
from holdfast.storage.objects.hdfs_errors import translated
from servers.hdfs import HdfsServer

T = TypeVar("T")
DEAD = "u00000000deadbeef-0.tmp"


@pytest.fixture
def url(hdfs: HdfsServer) -> str:
    return hdfs.new_folder()


@pytest.fixture
def objects(url: str) -> HdfsObjects:
    found = open_objects(url)
    assert isinstance(found, HdfsObjects)
    return found


@pytest.fixture
def client(hdfs: HdfsServer) -> Client:
    return Client(hdfs.address)


class FlakyClient(HdfsClient):
    """Loses the reply of a call, or the call itself, when told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lose: Callable[[str], str | None] = lambda name: None

    def call(self, act: Callable[[Client], T]) -> T:
        def watched(client: Client) -> T:
            return act(_Watched(client, self))  # type: ignore[arg-type]

        return super().call(watched)


class _Watched:
    def __init__(self, client: Client, owner: FlakyClient) -> None:
        self._client = client
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def called(*arguments: Any) -> Any:
            lost = self._owner.lose(name)
            if lost == "request":
                raise OSError("Connection reset by peer")
            result = method(*arguments)
            if lost == "reply":
                raise OSError("Connection reset by peer")
            return result

        return called


def losing(*losses: tuple[str, str]) -> Callable[[str], str | None]:
    """Lose these, each at the first call of that name."""
    left = list(losses)

    def lose(name: str) -> str | None:
        for loss in left:
            if loss[0] == name:
                left.remove(loss)
                return loss[1]
        return None

    return lose


@pytest.fixture
def flaky(hdfs: HdfsServer, url: str) -> tuple[FlakyClient, HdfsObjects]:
    client = FlakyClient(hdfs.address)
    return client, HdfsObjects(client, url.removeprefix(hdfs.address), url)


Flaky = tuple[FlakyClient, HdfsObjects]


class TestLostReplies:
    def test_a_creation_whose_reply_was_lost_is_found(self, flaky: Flaky, objects: HdfsObjects) -> None:
        flaky[0].lose = losing(("rename", "reply"))
        flaky[1].create("a/b", [b"one", b"x" * 100_000])
        assert objects.read("a/b", limit=1 << 20) == b"one" + b"x" * 100_000
        assert objects.leftovers() == []

    def test_a_creation_that_never_arrived_is_a_failure(self, flaky: Flaky, objects: HdfsObjects) -> None:
        flaky[0].lose = losing(("rename", "request"))
        with pytest.raises(Unavailable) as caught:
            flaky[1].create("a/b", [b"one"])
        assert caught.value.code == "hdfs.unreachable"
        assert objects.list("") == objects.leftovers() == []

    def test_a_rival_that_won_meanwhile_is_a_conflict(self, flaky: Flaky, objects: HdfsObjects) -> None:
        """The source is gone, as after a rename, but the body is another."""
        lose = losing(("rename", "request"), ("delete", "reply"))

        def lose_and_lose(name: str) -> str | None:
            if name == "rename":
                objects.create("a/b", [b"theirs"])
            return lose(name)

        flaky[0].lose = lose_and_lose
        with pytest.raises((Conflict, OutcomeUnknown)):
            flaky[1].create("a/b", [b"mine"])
        assert objects.read("a/b", limit=10) == b"theirs"

    def test_what_cannot_be_read_back_is_unknown(self, flaky: Flaky, objects: HdfsObjects) -> None:
        flaky[0].lose = losing(("rename", "reply"), ("delete", "request"), ("get_file_info", "request"))
        with pytest.raises(OutcomeUnknown) as caught:
            flaky[1].create("a/b", [b"mine"])
        assert caught.value.code == "object.outcome-unknown"
        assert objects.read("a/b", limit=10) == b"mine"

    @pytest.mark.parametrize("lost", ["request", "reply"])
    @pytest.mark.parametrize("call", ["create", "list_status", "read", "rename"])
    def test_an_update_happens_or_fails_cleanly(self, call: str, lost: str, flaky: Flaky, objects: HdfsObjects) -> None:
        objects.create("a/b", [b"1"])
        flaky[0].lose = losing((call, lost))
        try:
            assert flaky[1].update("a/b", lambda body: (body or b"") + b"2")
        except Unavailable:
            assert (call, lost) != ("rename", "reply")
            assert objects.read("a/b", limit=10) == b"1"
        else:
            assert objects.read("a/b", limit=10) == b"12"
        assert objects.update("a/b", lambda body: b"end")
        assert objects.read("a/b", limit=10) == b"end"

    @pytest.mark.parametrize("lost", ["request", "reply"])
    def test_a_deletion_can_be_repeated(self, lost: str, flaky: Flaky, objects: HdfsObjects) -> None:
        for call in ("mkdirs", "list_status", "rename", "delete"):
            objects.create("a/b", [b"1"])
            flaky[0].lose = losing((call, lost))
            try:
                flaky[1].delete(["a/b"])
            except Unavailable:
                flaky[1].delete(["a/b"])
            assert objects.list("") == []


class TestTurns:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hdfs_turns, "PATIENCE", 0.3)

    @pytest.mark.parametrize("act", ["update", "delete"])
    @pytest.mark.parametrize("left", ["file", "folder"])
    def test_what_a_dead_writer_left_blocks_nobody(
        self, act: str, left: str, objects: HdfsObjects, client: Client
    ) -> None:
        objects.create("a/b", [b"1"])
        if left == "file":
            client.create(f"{objects.root}/a/.b.{DEAD}").close()
        else:
            client.mkdirs(f"{objects.root}/a/.removal.{DEAD}")
        began = time.monotonic()
        if act == "update":
            assert objects.update("a/b", lambda body: (body or b"") + b"2")
            assert objects.read("a/b", limit=10) == b"12"
        else:
            objects.delete(["a/b"])
            assert objects.list("") == []
        assert time.monotonic() - began < 10
        objects.delete([info.key for info in objects.leftovers()])
        assert objects.leftovers() == []

    def test_a_contender_that_was_removed_begins_again(self, objects: HdfsObjects, client: Client) -> None:
        """A rival out-waited it: nothing that it computed from the old body may count."""
        objects.create("a/b", [b"1"])
        seen = []

        def change(body: bytes | None) -> bytes:
            if not seen:
                for status in client.list_status(f"{objects.root}/a"):
                    if posixpath.basename(status.path).startswith(".b."):
                        client.delete(status.path)
                writer = client.create(f"{objects.root}/a/.new")
                writer.write(b"theirs")
                writer.close()
                client.rename(f"{objects.root}/a/.new", f"{objects.root}/a/b", True)
            seen.append(body)
            return (body or b"") + b"+"

        assert objects.update("a/b", change)
        assert seen == [b"1", b"theirs"]
        assert objects.read("a/b", limit=10) == b"theirs+"

    def test_an_update_never_brings_back_what_was_deleted_meanwhile(self, url: str, objects: HdfsObjects) -> None:
        objects.create("a/b", [b"1"])
        objects.create("a/c", [b"1"])
        seen = []

        def change(body: bytes | None) -> bytes | None:
            if not seen:
                open_objects(url).delete(["a/c", "a/b"])
            seen.append(body)
            return None if body is None else body + b"+"

        assert objects.update("a/b", change) is False
        assert seen == [b"1", None]
        assert objects.list("") == []

    def test_updates_and_deletions_at_once(self, url: str) -> None:
        """A counter that is deleted at times: it begins anew or goes on, and never loses a step."""

        def act(index: int) -> list[tuple[bytes | None, bytes]]:
            handle, done = open_objects(url), []
            for turn in range(8):
                if index == 0:
                    handle.delete(["a/n"])
                    continue
                step: list[tuple[bytes | None, bytes]] = []

                def change(body: bytes | None, tag: str = f"{index}.{turn}", step: Any = step) -> bytes:
                    step[:] = [(body, f"{tag} after {(body or b'none').split()[0].decode()}".encode())]
                    return step[0][1]

                assert handle.update("a/n", change)
                done += step
            return done

        with ThreadPoolExecutor(4) as threads:
            steps = [step for found in threads.map(act, range(4)) for step in found]
        built_on = [before for before, _ in steps if before is not None]
        assert len(built_on) == len(set(built_on)), "two updates replaced the same body"


class TestRefusals:
    def test_safe_mode(self, hdfs: HdfsServer, objects: HdfsObjects) -> None:
        objects.create("a/b", [b"1"])
        with hdfs.safe_mode():
            acts: list[Callable[[], object]] = [
                lambda: objects.create("a/c", [b"2"]),
                lambda: objects.update("a/b", lambda _: b"2"),
                lambda: objects.delete(["a/b"]),
            ]
            for act in acts:
                with pytest.raises(Unavailable, match="safe mode") as caught:
                    act()
                assert caught.value.code == "hdfs.safe-mode"
                assert caught.value.unchanged
                assert caught.value.next_step
            assert objects.read("a/b", limit=10) == b"1"
            objects.secure(["a/b"])
        objects.create("a/c", [b"2"])
        assert [info.key for info in objects.list("")] == ["a/b", "a/c"]

    def test_quota(self, hdfs: HdfsServer, objects: HdfsObjects) -> None:
        objects.create("a/b", [b"1"])
        for files, size in ((2, 2**63 - 1), (1000, 1)):
            hdfs.tell(f"quota {objects.root}/a {files} {size}")
            with pytest.raises(Unavailable) as caught:
                objects.create("a/c", [b"x"])
            assert caught.value.code == "hdfs.quota"
            assert "\tat " not in str(caught.value)
            assert objects.leftovers() == []

    def test_denied(self, hdfs: HdfsServer, url: str, objects: HdfsObjects, monkeypatch: pytest.MonkeyPatch) -> None:
        objects.create("a/b", [b"1"])
        hdfs.tell(f"chmod {objects.root}/a 755")
        monkeypatch.setenv("HADOOP_USER_NAME", "somebody-else")
        other = open_objects(url)
        assert other.read("a/b", limit=1) == b"1"
        other.secure(["a/b"])
        for act in (lambda: other.create("a/c", [b"x"]), lambda: other.delete(["a/b"])):
            with pytest.raises(Unavailable) as caught:
                act()
            assert caught.value.code == "hdfs.denied"
        hdfs.tell(f"chmod {objects.root} 700")
        with pytest.raises(Unavailable, match="Permission denied"):
            other.list("")
        with pytest.raises(Unavailable):
            other.info("a/b")

    def test_a_file_where_a_folder_should_be(self, objects: HdfsObjects) -> None:
        objects.create("a", [b"1"])
        for act in (lambda: objects.create("a/b", [b"x"]), lambda: objects.list("a/")):
            with pytest.raises(Unavailable) as caught:
                act()
            assert caught.value.code == "hdfs.not-a-directory"
        assert objects.info("a/b") is None

    def test_nobody_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.storage.objects.hdfs_client.SETTINGS", {"dfs.client.failover.max.attempts": "0"})
        with pytest.raises(Unavailable) as caught:
            open_objects("hdfs://127.0.0.1:9/x").list("")
        assert caught.value.code == "hdfs.unreachable"
        with pytest.raises(Unavailable) as caught:
            open_objects("hdfs://no-such-host.invalid:8020/x").info("a")
        assert caught.value.code == "hdfs.unreachable"

    def test_a_name_node_that_does_not_answer(self, hdfs: HdfsServer, url: str) -> None:
        slow = HdfsObjects(HdfsClient(hdfs.address, limit=0.5), url.removeprefix(hdfs.address), url)
        slow.create("a/b", [b"1"])
        os.kill(hdfs.pid, signal.SIGSTOP)
        try:
            acts: list[Callable[[], object]] = [lambda: slow.info("a/b"), lambda: slow.create("a/c", [b"x"])]
            for act in acts:
                with pytest.raises(Unavailable, match="no answer") as caught:
                    act()
                assert caught.value.code == "hdfs.no-answer"
        finally:
            os.kill(hdfs.pid, signal.SIGCONT)
        assert slow.read("a/b", limit=1) == b"1"


def test_a_folder_is_not_an_object(objects: HdfsObjects) -> None:
    objects.create("a/b/c", [b"1"])
    objects.delete(["a/b", "a", "a/b/c/d"], then=["a/b", "a/b/c/d"])
    assert [info.key for info in objects.list("")] == ["a/b/c"]
    assert objects.info("a/b") is None
    with pytest.raises(NotFound):
        objects.read("a/b", limit=1)
    with pytest.raises(HoldfastError):
        objects.create("a/b", [b"1"])
    with pytest.raises(HoldfastError):
        objects.update("a/b", lambda _: b"1")
    assert objects.read("a/b/c", limit=1) == b"1"
    assert objects.leftovers() == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError('RPCError("org.apache.hadoop.ipc.StandbyException", "Operation category READ")'), "hdfs.standby"),
        (RuntimeError('FatalRPCError("org.apache.hadoop.ipc.StandbyException", "x")'), "hdfs.standby"),
        (
            RuntimeError(
                'RPCError("java.io.IOException", "File /x could only be written to 0 of the 1 minReplication nodes.'
                '\\n\\tat org.apache.X(Y.java:1)")'
            ),
            "hdfs.full",
        ),
        (RuntimeError("NoSASLMechanism"), "hdfs.credentials"),
        (RuntimeError('GSSAPIError(GSS_S_NO_CRED, 1, "No Kerberos credentials available")'), "hdfs.credentials"),
        (RuntimeError("ChecksumError"), "hdfs.checksum"),
        (RuntimeError('DataTransferError("something")'), "hdfs.unavailable"),
        (OSError("RPC listener disconnected"), "hdfs.unreachable"),
        (TimeoutError("no answer"), "hdfs.no-answer"),
        (FileNotFoundError("x"), "hdfs.swept"),
        (RuntimeError('RPCError("org.apache.X$PathComponentTooLongException", "x")'), "key.refused"),
    ],
    ids=str,
)
def test_errors_by_their_texts(error: Exception, code: str) -> None:
    found = translated(error, "hdfs://h:1/x", writing=True)
    assert found.code == code
    assert "hdfs://h:1/x" in str(found)
    assert "Y.java" not in str(found)


def test_what_was_written_can_be_read_at_once(objects: HdfsObjects) -> None:
    """The server closes files before their blocks are reported."""
    for number in range(30):
        objects.update("a/b", lambda _, number=number: b"%d" % number)  # type: ignore[misc]
        assert objects.read("a/b", limit=10) == b"%d" % number


def test_closing_a_file_syncs_every_block_on_every_data_node(
    hdfs: HdfsServer, objects: HdfsObjects, client: Client
) -> None:
    """Durability rests on this, and only the library decides it: a release that stops doing so fails here."""
    before = hdfs.fsyncs()
    objects.create("a/b", [b"x" * 5000])
    assert hdfs.fsyncs() - before == 2  # two replicas
    assert objects.update("a/b", lambda _: b"y")
    assert hdfs.fsyncs() - before == 4
    writer = client.create(f"{objects.root}/blocks", WriteOptions(block_size=1 << 20))
    writer.write(b"x" * (3 << 20))
    writer.close()
    assert hdfs.fsyncs() - before == 4 + 3 * 2


FORKS = """
import os, sys
from holdfast.storage.objects import hdfs_turns, open_objects

objects = open_objects(sys.argv[1])
objects.create("a/b", [b"1"])
child = os.fork()
if child == 0:
    objects.update("a/b", lambda body: body + b"2")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
objects.update("a/b", lambda body: body + b"3")
assert objects.read("a/b", limit=10) == b"123"
"""


def test_a_forked_child_connects_by_itself(url: str) -> None:
    """In a process of its own: hdfs-native keeps connections that were read from, and a child would wait for those."""
    subprocess.run([sys.executable, "-c", FORKS, url], check=True, timeout=60)


@pytest.mark.parametrize(
    "address",
    [
        "hdfs:///x",
        "hdfs://nameservice/x",
        "hdfs://user@host:1/x",
        "hdfs://h:1/a:b",
        "hdfs://h:1/../x",
        "hdfs://h:1/x?y",
    ],
)
def test_addresses_that_are_refused(address: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_objects(address)
    assert caught.value.next_step


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("hdfs_native", "holdfast.storage.objects.hdfs")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(Invalid, match=r"pip install 'holdfast\[hdfs\]'") as caught:
        open_objects("hdfs://127.0.0.1:9/x")
    assert caught.value.code == "hdfs.package"


def test_addresses_are_shown_without_empty_parts() -> None:
    assert open_objects("HDFS://127.0.0.1:9//a///b/").address == "hdfs://127.0.0.1:9/a/b"
    assert open_objects("hdfs://127.0.0.1:9").address == "hdfs://127.0.0.1:9"
