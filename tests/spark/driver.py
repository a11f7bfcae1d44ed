"""A pipeline's file as users have it, for `holdfast run`; at a step that the test names it freezes, JVM and all.

holdfast run driver.py '{"root": ..., "orders": ..., "freeze_at": ["epoch.decide", "begin", 2]}'
"""

from __future__ import annotations

import json
import os
import signal
import sys

from works import revenue

from holdfast.steps import observe


def freeze(name: str, phase: str, nth: int) -> None:
    """Stop this process and all in its group when it comes to an event for the nth time."""
    left = nth

    def look(seen: str, seen_phase: str, _: float) -> None:
        nonlocal left
        if (seen, seen_phase) == (name, phase):
            left -= 1
            if left == 0:
                os.killpg(0, signal.SIGSTOP)

    observe(look)


arguments = json.loads(sys.argv[1])
if freeze_at := arguments.pop("freeze_at", None):
    freeze(*freeze_at)
revenue(lambda _: None, **arguments)
