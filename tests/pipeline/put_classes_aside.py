"""Puts the classes that a JVM with Spark loads where the JVMs of the tests find them: `make test` runs this once.

A pipeline runs for some epochs, and its JVM writes them down when it ends. Where it cannot, the tests start slower.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from orders import make_orders, write_orders  # noqa: E402
from works import alone  # noqa: E402

from sparks import CLASSES  # noqa: E402


def main() -> None:
    print("putting Spark's classes aside for the tests, once", flush=True)
    unfinished = Path(f"{CLASSES}.part")
    with tempfile.TemporaryDirectory(prefix="holdfast-classes-") as folder:
        write_orders(Path(folder) / "orders", make_orders(2))
        arguments = {"root": f"{folder}/pipeline", "orders": f"{folder}/orders", "provider": "rocksdb-changelog"}
        options = f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
        alone(lambda _: None, **arguments, **{"spark.driver.extraJavaOptions": options})
    if unfinished.exists():
        os.rename(unfinished, CLASSES)
    else:
        print("this Java does not do that; the tests take longer")


if __name__ == "__main__":
    main()
