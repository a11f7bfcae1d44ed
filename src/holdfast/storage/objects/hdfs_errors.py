"""The errors of hdfs-native in the words of Holdfast, sorted by what the caller does next."""

from __future__ import annotations

import re

from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable, one_line

_REMOTE = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[\w.$]+)", "(?P<message>.*)"\)', re.DOTALL)


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


def explained_text(
    message: str, text: str, about: str | None = None, *, unchanged: str = "everything that readers see"
) -> Unavailable | None:
    """The error of Hadoop's Java client in this text, in the same words; None if HDFS is not at fault."""
    cause = _cause_in(text)
    if cause is None:
        return None
    code, advice = _ADVICE[cause]
    return Unavailable(message, code=code, about=about, unchanged=unchanged, next_step=advice)


def _cause(error: Exception, kind: str, message: str) -> str:
    if isinstance(error, TimeoutError):
        return "silent"
    if isinstance(error, FileNotFoundError):
        return "swept"
    return _cause_in(f"{kind} {message}") or "unknown"


def _cause_in(text: str) -> str | None:
    return next((cause for cause, pattern in _PATTERNS.items() if pattern.search(text)), None)


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
