"""A pipeline's file as users have it, for `holdfast run`; at a step that the test names it freezes, JVM and all.

holdfast run driver.py '{"root": ..., "orders": ..., "freeze_at": ["epoch.decide", "begin", 2]}'
"""

from __future__ import annotations

import json
import os
import signal
import sys

from works import alone, when

arguments = json.loads(sys.argv[1])
if freeze_at := arguments.pop("freeze_at", None):
    when(*freeze_at, lambda: os.killpg(0, signal.SIGSTOP))
alone(lambda _: None, **arguments)
