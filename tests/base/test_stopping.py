"""A request to stop is safe in a signal handler, wherever it interrupts the thread that waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from holdfast.base.stopping import StopRequest

# Signals come faster than a wait takes, so that they hit every line of it, and each other's handlers.
HAMMERED = """
import signal, time
from holdfast.base.stopping import StopRequest

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
