"""A connection to HDFS whose calls all end, and the errors of HDFS in the words of Holdfast.

hdfs-native waits for ever for a NameNode that takes a request and does not answer. So each call runs in a thread of its
own and is given up after `CALL_LIMIT` seconds. Whether it takes effect later is then unknown, as after a lost reply.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from hdfs_native import Client

from holdfast.base import forks
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable, one_line

T = TypeVar("T")
CALL_LIMIT = 30.0
SETTINGS = {
    # About ten seconds of asking again, the other NameNodes included. By default hdfs-native takes minutes.
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "500",
    "dfs.client.failover.sleep.max.millis": "4000",
    "dfs.client.socket-timeout": "20000",
}
"""Hadoop's names. They override hdfs-site.xml, and the `options` of a store override them."""

_REMOTE = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[\w.$]+)", "(?P<message>.*)"\)', re.DOTALL)


class HdfsClient:
    """One NameNode, or the NameNodes of one nameservice. Safe to use from several threads, and after a fork.

    The first reads of a forked child may take the socket's timeout: hdfs-native offers it connections to DataNodes that
    only its parent can use, and takes another one only then.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None = None, *, limit: float = CALL_LIMIT) -> None:
        self._url = url
        self._settings = {**SETTINGS, **(options or {})}
        self._limit = limit
        self._client: Client | None = self._opened()  # a wrong setting is found here; nothing is sent yet
        forks.opened(self)

    def forget_in_child(self) -> None:
        forks.leak(self._client)  # its threads are the parent's: even closing it would wait for them
        self._client = None

    def call(self, act: Callable[[Client], T]) -> T:
        """The result of `act`, or its error; `TimeoutError` if there is neither within the limit."""
        if self._client is None:
            self._client = self._opened()
        client = self._client
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(act(client))
            except BaseException as error:  # a panic of the library is not an Exception
                errors.append(error)

        thread = threading.Thread(target=work, name="holdfast-hdfs", daemon=True)
        thread.start()
        thread.join(self._limit)
        if results:
            return results[0]
        if not errors:
            self._client = None  # the next call connects anew
            forks.leak(client)
            raise TimeoutError(f"no answer within {self._limit:g} seconds")
        if isinstance(errors[0], Exception):
            raise errors[0]
        raise RuntimeError(str(errors[0])) from errors[0]

    def _opened(self) -> Client:
        return Client(self._url, self._settings)


def translated(error: Exception, about: str, *, writing: bool) -> HoldfastError:
    """The error of hdfs-native, sorted by what the caller does next. `about` is the path, as an address."""
    if isinstance(error, HoldfastError):
        return error
    kind, message = _parts(error)
    done = "write" if writing else "read"
    if isinstance(error, FileNotFoundError) and not writing:
        return NotFound(f"{about} is not there.", code="object.not-found", about=about)
    if "PathComponentTooLong" in kind or "InvalidPath" in kind:
        return Invalid(
            f"HDFS refuses the name {about}: {message}.", code="key.refused", about=about, unchanged="the store"
        )
    if message == "ChecksumError":
        return Corrupt(f"{about} does not match its checksum.", code="hdfs.checksum", about=about)
    code, advice = _ADVICE.get(
        _cause(error, kind, message), ("hdfs.unavailable", "try again when HDFS answers; its own logs say more")
    )
    return Unavailable(
        f"Could not {done} {about}: {message}.",
        code=code,
        about=about,
        unchanged="everything that was acknowledged before" if writing else "the store",
        next_step=advice,
    )


def _cause(error: Exception, kind: str, message: str) -> str:
    if isinstance(error, TimeoutError):
        return "silent"
    if isinstance(error, FileNotFoundError):
        return "swept"
    for cause, pattern in _PATTERNS.items():
        if pattern.search(f"{kind} {message}"):
            return cause
    return "unknown"


_PATTERNS = {
    "safe mode": re.compile(r"SafeMode|safe mode"),
    "standby": re.compile(r"StandbyException"),
    "quota": re.compile(r"QuotaExceeded"),
    "file": re.compile(r"ParentNotDirectory|\(is not a directory\)"),
    "denied": re.compile(r"AccessControl|Authorization"),
    "credentials": re.compile(r"GSSAPI|SASL|InvalidToken"),
    "full": re.compile(r"could only be (?:written|replicated) to|DiskOutOfSpace|No space left"),
    "unreachable": re.compile(r"onnection (?:refused|reset)|failed to lookup|No route|unreachable|timed out|disconnec"),
}
_ADVICE = {
    "silent": ("hdfs.no-answer", "try again when the NameNode answers"),
    "swept": ("hdfs.swept", "try again; a clean-up removed the unfinished file, or the directory was removed"),
    "safe mode": ("hdfs.safe-mode", "try again when `hdfs dfsadmin -safemode get` says OFF"),
    "standby": (
        "hdfs.standby",
        "give the active NameNode's address, or the nameservice's name with HADOOP_CONF_DIR set to its settings",
    ),
    "quota": ("hdfs.quota", "raise the directory's quota with `hdfs dfsadmin`, or free some of it"),
    "file": ("hdfs.not-a-directory", "remove the file that stands where a directory should be"),
    "denied": ("hdfs.denied", "give this user access to the directory, or set HADOOP_USER_NAME where HDFS trusts it"),
    "credentials": (
        "hdfs.credentials",
        "get a Kerberos ticket with kinit, and set HADOOP_CONF_DIR to the cluster's settings",
    ),
    "full": ("hdfs.full", "free some space on the DataNodes, or start those that are down, and try again"),
    "unreachable": ("hdfs.unreachable", "check host and port, and that the NameNode runs; then try again"),
}


def _parts(error: Exception) -> tuple[str, str]:
    """The Java class, empty if there is none, and the message without the server's stack trace."""
    text = str(error)
    found = _REMOTE.search(text)
    if found:
        message = found["message"].replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
        return found["kind"], one_line(message.partition("\n\tat ")[0].replace("\n", " ")).rstrip(".")
    return "", one_line(text.partition("\n\tat ")[0]).rstrip(".")
