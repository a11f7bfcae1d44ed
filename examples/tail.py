"""Visits per page from a web server's log, followed while it grows: killed at any time, it resumes exactly.

    python examples/tail.py LOG [--index INDEX] [--follow] [--on-lost strict|reset]

Each line is `TIME PAGE`. The counts and the position in the log are one commit, so a line is counted once, however the
process ends. INDEX is a path or an address (see `holdfast.open_index`); `holdfast sources INDEX` shows the position.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.index import Applier, Change, Index, PositionUnavailable, open_index, recover

SOURCE = "log"
LINES = 1000
"""Lines in one commit."""
PAUSE = 0.05


class LogFile:
    """A `holdfast.index.Source`: lines of a file to which others append.

    A position is the offset of the byte after a line, in decimal, a sequence the number of that line.
    """

    def __init__(self, path: Path, *, follow: bool = False) -> None:
        self._path = path
        self._follow = follow

    def changes(self, resume_from: bytes | None, last_sequence: int | None) -> Iterator[Change]:
        position, number = int(resume_from or b"0"), last_sequence or 0
        with open(self._path, "rb") as log:
            self._check(position)
            log.seek(position)
            while True:
                # A line without its end is still being written: it is read again when there is more.
                lines = [line for line in islice(log, LINES) if line.endswith(b"\n")]
                if lines:
                    position, number = position + sum(map(len, lines)), number + len(lines)
                    yield Change(number, b"%d" % position, lines)
                elif not self._follow:
                    return
                else:
                    time.sleep(PAUSE)
                    self._check(position)
                log.seek(position)

    def _check(self, position: int) -> None:
        """Raise if the file was truncated or replaced: then the lines after the position are not those that follow."""
        with open(self._path, "rb") as log:
            log.seek(max(0, position - 1))
            if position and log.read(1) != b"\n":
                raise PositionUnavailable(SOURCE, f"{self._path} has no line that ends at byte {position}")


def count(index: Index, lines: list[bytes]) -> None:
    for page, visits in Counter(line.split()[1] for line in lines).items():
        index.results.put(page, b"%d" % (int(index.results.get(page) or 0) + visits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("log", type=Path)
    parser.add_argument("--index", default="visits.db")
    parser.add_argument("--follow", action="store_true", help="wait for more at the end of the log")
    parser.add_argument("--on-lost", choices=["strict", "reset"], default="strict", help="if the log was replaced")
    given = parser.parse_args()
    with open_index(given.index) as index:
        applier, log = Applier(index), LogFile(given.log, follow=given.follow)
        try:
            applier.follow(SOURCE, log, count)
        except PositionUnavailable as lost:
            recover(index, lost, given.on_lost)
            applier.follow(SOURCE, log, count)
        for page, visits in index.results.scan():
            print(f"{int(visits):>8}  {page.decode(errors='replace')}")


if __name__ == "__main__":
    main()
