"""A process that freezes within a transaction: stopped by a signal, its connection open. Run as a process of its own.

Its arguments are the address, the kind of the store, and whether it freezes after it has sent a part of a large
transaction, or right before it commits a small one. When it is let go on, it prints how the commit ended.
"""

from __future__ import annotations

import os
import signal
import sys

from holdfast.base.steps import observe
from holdfast.errors import HoldfastError
from holdfast.index import records
from holdfast.projections import keys
from holdfast.storage.kv import postgres


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    is_large = sys.argv[3] == "large"
    if is_large:
        postgres.SPILL_BYTES = 0
    schema = records.SCHEMA if sys.argv[2] == "index" else keys.SCHEMA
    store = postgres.PostgresStore(sys.argv[1], schema, idle_timeout="1s")
    transaction = store.begin()
    transaction.write({"meta": {b"stray": b""}})
    if is_large:
        freeze()
    else:
        observe(lambda name, phase, _: freeze() if (name, phase) == ("postgres.commit", "begin") else None)
    try:
        transaction.commit()
    except HoldfastError as error:
        print(type(error).__name__, error)
    else:
        print("done")
