"""A request to stop is safe in a signal handler, wherever it interrupts the thread that waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from holdfast.base.stop_request import StopRequest, stop_on_signals

# Signals come faster than a wait takes, so that they hit every line of it, and each other's handlers.
HAMMERED = """
import signal, time
from holdfast.base.stop_request import StopRequest

request = StopRequest()

def ask(*_):
    request.make()

for number, timer in ((signal.SIGALRM, signal.ITIMER_REAL), (signal.SIGPROF, signal.ITIMER_PROF)):
    signal.signal(number, ask)
    signal.setitimer(timer, 0.0005, 0.0005)
end = time.monotonic() + 1.0
while time.monotonic() < end:
    request = StopRequest()
    while not request.is_made():
        request.wait(0.00002)
signal.setitimer(signal.ITIMER_REAL, 0)
signal.setitimer(signal.ITIMER_PROF, 0)
print("done")
"""


def test_a_handler_never_waits_for_the_thread_that_it_interrupts() -> None:
    ran = subprocess.run([sys.executable, "-c", HAMMERED], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("done\n", "", 0)


def test_it_wakes_who_waits() -> None:
    request = StopRequest()
    threading.Timer(0.05, request.make).start()
    began = time.monotonic()
    request.wait(60)
    assert request.is_made()
    assert time.monotonic() - began < 30
    request.wait(60)  # what has been asked once is not waited for again
    assert time.monotonic() - began < 30


def test_it_waits_no_longer_than_told() -> None:
    request = StopRequest()
    request.wait(0.01)
    assert not request.is_made()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_ask_for_the_end_within_the_block(number: signal.Signals) -> None:
    request, seen = StopRequest(), []
    before = signal.getsignal(number)

    def ask(received: signal.Signals) -> None:
        seen.append(received)
        request.make()

    with stop_on_signals(ask):
        os.kill(os.getpid(), number)
        request.wait(60)
    assert request.is_made()
    assert seen == [number]
    assert signal.getsignal(number) is before


def test_a_handler_may_raise_and_the_one_before_is_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_on_signals(lambda _: sys.exit(143), [signal.SIGTERM]):
        assert signal.getsignal(signal.SIGINT) is before[1]
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_another_thread_leaves_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def elsewhere() -> None:
        with stop_on_signals(lambda _: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [before]
