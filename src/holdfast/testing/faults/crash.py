"""Kill a real process with SIGKILL at every named step, and check what it left behind.

    def work(acknowledge, root):                      # in a file of its own, or any importable module
        LocalObjects(root).create("key", [b"body"])
        acknowledge("key")                            # from here on the key must survive a kill

    with CrashRing("mytests.works:work") as ring:     # or f"{path_of_file}:work"
        for index in range(len(ring.record(root=fresh()))):
            run = ring.kill_at(index, root=(root := fresh()))
            ...                                       # reopen root: everything in run.acknowledged is there

`CrashRing` imports the work once and forks for each run, which takes some milliseconds. `record` and `kill_at` start a
fresh interpreter for each run, for work that does not survive a fork: obstore hangs in the child of a process that has
used it, and other libraries start threads when they are imported.

One call kills the whole process group: a JVM that the work has started dies at the same instant. If the events of two
runs differ, as after a recovery, use a `Moment` instead of an index.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from holdfast.base.steps import Phase, observe

TIMEOUT = 60.0
_GRACE = 5.0  # a run ends itself, with a traceback, at its timeout; its parent kills it this much later
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from holdfast.testing.faults import crash; crash.{}()"

Acknowledge = Callable[[str], None]
"""Called by the work with a text once its caller may rely on the result; the text survives a later kill."""


class StepEvent(NamedTuple):
    """The begin or end of a step. Killed at `begin`, the step has done nothing; killed at `end`, everything."""

    name: str
    phase: Phase


class Moment(msgspec.Struct, frozen=True):
    """The `nth` occurrence of an event, counted from the start of the run or from the first occurrence of `since`."""

    event: StepEvent
    nth: int = 1
    since: StepEvent | None = None


class KilledRun(msgspec.Struct, frozen=True):
    """A run as its parent saw it."""

    event: StepEvent | None
    """The event at which it was killed; None if it ended before it reached that event."""
    killed: bool
    acknowledged: list[str]
    events: list[StepEvent]
    """All events of the run, including the one it was killed at."""


class ChildFailed(AssertionError):
    """The run did not end as it should: it raised, hung, or was killed by another process."""


class _Order(msgspec.Struct, frozen=True):
    work: str
    arguments: dict[str, Any]
    kill_at: int | Moment | None
    folder: str
    timeout: float


def record(work: str, /, *, timeout: float = TIMEOUT, **arguments: Any) -> list[StepEvent]:
    """Run the work to its end in a fresh interpreter and return every event. Arguments are plain JSON values."""
    return _run_fresh(work, arguments, None, timeout).events


def kill_at(work: str, at: int | Moment, /, *, timeout: float = TIMEOUT, **arguments: Any) -> KilledRun:
    """Run the work in a fresh interpreter and kill it at the event with this index in the recording, or at a moment.

    On return every process that the work started is gone, even those in a process group of their own.
    """
    return _run_fresh(work, arguments, at, timeout)


class CrashRing:
    """The same with one process that imports the work once and forks for each run.

    The work must not start a thread when imported; that is checked. When a run is reported, every process in its
    process group is gone. The forking process ends with the `with` block, or when this process dies. Not thread-safe.
    """

    def __init__(self, work: str, *, timeout: float = TIMEOUT) -> None:
        self._work = work
        self._timeout = timeout

    def __enter__(self) -> CrashRing:
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-ring-"))
            with open(os.path.join(self._folder, "log"), "wb") as log:
                self._process = _start("serve", stdout=subprocess.PIPE, stderr=log)
            stack.callback(_end, self._process)
            self._send(self._work.encode())
            if self._reply(TIMEOUT) != b"ready":
                raise ChildFailed(f"{self._work} could not be made ready:\n{_tail(self._folder, 'log')}")
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._cleanup.close()

    def record(self, **arguments: Any) -> list[StepEvent]:
        """Run the work to its end and return every event. Arguments are plain JSON values."""
        return self._run(arguments, None).events

    def kill_at(self, at: int | Moment, **arguments: Any) -> KilledRun:
        """Run the work and kill it at the event with this index in the recording, or at a moment."""
        return self._run(arguments, at)

    def _run(self, arguments: dict[str, Any], at: int | Moment | None) -> KilledRun:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            order = _Order(self._work, arguments, at, folder, self._timeout)
            self._send(msgspec.json.encode(order))
            reply = self._reply(self._timeout + 2 * _GRACE)
            if not reply:
                _end(self._process)
                raise ChildFailed(f"The process that forks is gone or frozen:\n{_tail(self._folder, 'log')}")
            return _report(order, int(reply))

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
        except BrokenPipeError:
            raise ChildFailed(f"The process that forks is gone:\n{_tail(self._folder, 'log')}") from None

    def _reply(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        is_ready = _readable([self._process.stdout.fileno()], timeout)
        return self._process.stdout.readline().strip() if is_ready else b""


def _readable(descriptors: list[int], timeout: float) -> bool:
    """Wait until one of them can be read. Not by `select`, which takes no descriptor above 1023."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout * 1000))


def _start(entry: str, **streams: Any) -> subprocess.Popen[bytes]:
    # faulthandler: a child that crashes in native code prints the tracebacks of its threads.
    command = [sys.executable, "-X", "faulthandler", "-c", _BOOT.format(entry), json.dumps(sys.path)]
    # A session of its own: it identifies every process that the child starts, even in another process group.
    return subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True, **streams)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the standard input of the process, which makes it end itself and its run; kill it if it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _run_fresh(work: str, arguments: dict[str, Any], at: int | Moment | None, timeout: float) -> KilledRun:
    with tempfile.TemporaryDirectory(prefix="holdfast-crash-") as folder:
        order = _Order(work, arguments, at, folder, timeout)
        with open(os.path.join(folder, "output"), "ab") as output:
            process = _start("run_once", stdout=output, stderr=output)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(msgspec.json.encode(order) + b"\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout + _GRACE)
            ended = process.returncode is not None
        finally:
            _kill_group(process.pid)
            process.wait()
            _wait_until_gone(process.pid)
        return _report(order, process.returncode if ended else -signal.SIGALRM)


def _kill_group(leader: int) -> None:
    """Kill the process group of a process that we started as its leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: not permitted once all are zombies
        os.killpg(leader, signal.SIGKILL)


def _wait_until_gone(leader: int) -> None:
    """Wait for the end of every process of a session that we started, in any process group.

    A process dies some time after it was killed, and until then it may still write. Kills processes that outlive the
    session's leader by more than a few seconds.
    """
    deadline = time.monotonic() + _GRACE
    while left := _members(leader):
        if time.monotonic() > deadline:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.005)


def _members(leader: int) -> list[int]:
    """The processes of a session or of a group that are not dead yet."""
    if not os.path.isdir("/proc/self"):  # macOS: the group only
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, 0)
            return [leader]
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                state, _, group, session = Path("/proc", name, "stat").read_text().rpartition(") ")[2].split()[:4]
                if leader in (int(group), int(session)) and state not in "ZX":
                    found.append(int(name))
    return found


class _Watch:
    """Recognises the event at which a run is to be killed."""

    def __init__(self, at: int | Moment | None) -> None:
        self._at = at
        self._counted = 0
        self._is_counting = not (isinstance(at, Moment) and at.since)

    def is_due(self, event: StepEvent) -> bool:
        if not isinstance(self._at, Moment):
            self._counted += 1
            return self._at is not None and self._counted == self._at + 1
        if self._is_counting and event == self._at.event:
            self._counted += 1
            return self._counted == self._at.nth
        self._is_counting = self._is_counting or event == self._at.since
        return False


def _report(order: _Order, status: int) -> KilledRun:
    events = [StepEvent(*found) for found in _whole_lines(order.folder, "events")]
    acknowledged = _whole_lines(order.folder, "acknowledged")
    watch = _Watch(order.kill_at)
    reached = [place for place, event in enumerate(events) if watch.is_due(event)] == [len(events) - 1]
    if reached and status == -signal.SIGKILL:
        return KilledRun(events[-1], True, acknowledged, events)
    if status == 0:
        return KilledRun(None, False, acknowledged, events)
    if status == -signal.SIGALRM:
        what = f"did not end within {order.timeout:g} seconds"
    else:
        what = f"failed ({status})" if status > 0 else f"was ended by {signal.Signals(-status).name}, not by us"
    at = events[-1] if events else "no event"
    raise ChildFailed(f"{order.work} {what}, after {at} ({len(events)}):\n{_tail(order.folder, 'output')}")


def _whole_lines(folder: str, name: str) -> list[Any]:
    """The complete lines of a file; a last line that a kill cut short is ignored."""
    with contextlib.suppress(FileNotFoundError):
        *lines, _ = Path(folder, name).read_bytes().split(b"\n")
        return [json.loads(line) for line in lines]
    return []


def _tail(folder: str, name: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        return Path(folder, name).read_text(errors="replace")[-20_000:]
    return ""


# From here on: code that runs in the child.


def run_once() -> None:
    """The process of `record` and `kill_at`: one run, then a normal end of the interpreter."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Order)
    _perform(order, _find(order.work))


def serve() -> None:
    """The process of `CrashRing`. Reads the work, then an order per line; writes `ready`, then a status per order."""
    requests, replies = os.fdopen(os.dup(0), "rb", buffering=0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the pipes are ours: the work gets an empty standard input, and prints to the log
    os.dup2(2, 1)
    work = _find(requests.readline().decode().strip())
    if _threads() > 1:
        raise SystemExit("Importing it started threads, which no fork can carry over. Next: use record and kill_at.")
    os.write(replies, b"ready\n")
    while line := requests.readline():
        status = _run_forked(msgspec.json.decode(line, type=_Order), work, requests.fileno(), replies)
        os.write(replies, b"%d\n" % status)


def _run_forked(order: _Order, work: Callable[..., object], parent: int, replies: int) -> int:
    alive, lifeline = os.pipe()  # only the fork keeps `lifeline` open, so `alive` is at its end when the fork dies
    child = os.fork()
    if child == 0:
        for ours in (alive, parent, replies):
            os.close(ours)
        _in_fork(order, work)
    os.close(lifeline)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(child, child)  # the fork does it too: the group exists, whichever of them runs first
    # The parent sends nothing during a run, so if its pipe is readable it is closed: end the run as well.
    ended = _readable([alive, parent], order.timeout + _GRACE)
    os.close(alive)
    _kill_group(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if ended else -signal.SIGALRM


def _in_fork(order: _Order, work: Callable[..., object]) -> None:
    status = 1
    try:
        os.setpgid(0, 0)
        output = os.open(os.path.join(order.folder, "output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _perform(order, work)
        status = 0
    except SystemExit as leaving:  # the same status as from the interpreter
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)  # never return into the loop that forked us


def _perform(order: _Order, work: Callable[..., object]) -> None:
    faulthandler.register(signal.SIGALRM, chain=True)  # print where it hung, then die by the default action
    signal.alarm(math.ceil(order.timeout))
    acknowledge = _appender(order.folder, "acknowledged")
    tell = _appender(order.folder, "events")
    lock = threading.Lock()
    watch = _Watch(order.kill_at)

    def observer(name: str, phase: Phase, _: float) -> None:
        with lock:
            tell([name, phase])
            if watch.is_due(StepEvent(name, phase)):
                _die()

    observe(observer)
    work(acknowledge, **order.arguments)
    signal.alarm(0)


def _die() -> None:
    """Kill this process and its group at once; only this process if it does not lead the group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _appender(folder: str, name: str) -> Callable[[object], None]:
    """A function that appends a line in one call. Not synced: a kill ends the process, not the machine."""
    file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def append(value: object) -> None:
        os.write(file, json.dumps(value).encode() + b"\n")

    return append


def _find(work: str) -> Callable[..., object]:
    where, _, name = work.rpartition(":")
    if not where.endswith(".py"):
        found = getattr(importlib.import_module(where), name)
    else:
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        found = getattr(module, name)
    function: Callable[..., object] = found
    return function


def _threads() -> int:
    with contextlib.suppress(FileNotFoundError):
        return len(os.listdir("/proc/self/task"))
    return threading.active_count()
