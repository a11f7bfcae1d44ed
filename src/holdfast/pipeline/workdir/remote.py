"""A workdir on object storage or HDFS: a place of its own for each driver that does not go on from a clean end.

    <workdir>/g000004-5d0c1f2a/...    what generation 4 began, and generation 5 went on with after a clean end
    <workdir>/g000006-77b3e9d1/...    generation 6 took over after a crash

There are no links to cut off, so a place is the fence: Spark is given the address of a place, and a driver that was
taken over goes on writing where nobody reads any more. A place is used again only if its last query ended well and left
stamps (`stamps`), and if every file is what they say. The next driver removes them and then checks the lease, before
Spark starts: of two drivers that find the same stamps the one that was taken over stops there. Any other end leaves a
place that is not used again: the workdir is restored from the newest checkpoint into a new one. Old places are removed
at the next start.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.base.addresses import spark_address, without_secrets
from holdfast.base.jvm import active_session, remove_tree
from holdfast.base.steps import step
from holdfast.pipeline.workdir.owner import WorkdirOwner, write_owner
from holdfast.pipeline.workdir.workdir import SPOOL, STAMPS, Check, T, Workdir, is_own_name
from holdfast.sparkdir.operator_metadata import describes_state
from holdfast.storage.files.directory import Directory
from holdfast.storage.objects.directory import ObjectDirectory, folders
from holdfast.storage.objects.spark_access import OpenedForSpark
from holdfast.storage.objects.store import ObjectStore

_PLACE = re.compile(r"g(\d{6,})-[0-9a-f]{8}")
_NOWHERE = "g000000-00000000"
"""A place that never has files in it."""


class RemoteWorkdir(Workdir):
    """A folder of an object store with one place in use.

    `place` is known once a generation has entered it. Until then it is the newest one, whatever became of it.
    """

    vouches_after_failure = False
    has_checksums = False

    def __init__(
        self,
        home: str,
        *,
        options: Mapping[str, str] | None = None,
        generation: int | None = None,
        place: str | None = None,
    ) -> None:
        self._home = spark_address(home).rstrip("/")
        self._options = options
        self._generation = generation
        self._place = place
        self._spark = OpenedForSpark(self._home, options)
        self._directory: ObjectDirectory | None = None
        self._left_behind: RemoteWorkdir | None = None

    def __repr__(self) -> str:
        return f"RemoteWorkdir({self.address!r})"

    def __getstate__(self) -> dict[str, Any]:
        """For an executor: the address of the place, and the options with which it can be reached now."""
        return {"home": self._home, "options": self._spark.access().options_now(), "place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        RemoteWorkdir.__init__(self, state["home"], options=state["options"], place=state["place"])

    @property
    def address(self) -> str:
        return without_secrets(self._home)

    @property
    def place(self) -> str:
        """The name of the place that is used."""
        if self._place is None:
            self._place = self._newest() or _NOWHERE
        return self._place

    @property
    def directory(self) -> ObjectDirectory:
        if self._directory is None:
            self._directory = self._directory_of(self.place)
        return self._directory

    def written_address(self, directory: Directory) -> bytes:
        return directory.address.encode()

    @property
    def written_addresses(self) -> re.Pattern[bytes]:
        return re.compile(rf"{re.escape(self._home)}/{_PLACE.pattern}(?=[/\"])".encode())

    def is_named_in(self, text: str) -> bool:
        return f"{self._home}/" in text

    def incarnation(self) -> str:
        """Always the same: what is acknowledged there stays."""
        return "remote"

    def is_empty(self) -> bool:
        return all(is_own_name(path.partition("/")[0]) for path, _ in self.directory.files())

    def check_replaceable(self) -> None:
        """It always can be."""

    def fenced(self, generation: int, still_ours: Check) -> RemoteWorkdir:
        """In the place of the last query if that ended well, else in a new and empty one."""
        with step("workdir.enter"):
            found = self._found(generation, _new_place(generation))
        still_ours()
        return found

    taken_over = fenced

    def as_found(self) -> RemoteWorkdir:
        return self._found(self._generation, _NOWHERE)

    def _found(self, generation: int | None, otherwise: str) -> RemoteWorkdir:
        """In the newest place if it was handed over, else in another."""
        newest = self._newest()
        is_handed_over = newest is not None and self._directory_of(newest).exists(STAMPS)
        found = self._at(newest if is_handed_over else otherwise, generation)
        if newest is not None and not is_handed_over:
            found.absence = "the last driver did not end well, and its place is not used again"
            found._left_behind = self._at(newest, None)
        return found

    def left_behind(self) -> RemoteWorkdir | None:
        return self._left_behind

    def mark_suspect(self, why: str) -> None:
        """Nothing to do: the place of a query that failed is not used again."""

    def make(self, owner: WorkdirOwner) -> None:
        self._mark_owner(owner)

    def discard(self, still_ours: Check = lambda: None) -> None:
        """A generation that has entered it goes on in a new place. Without one, the newest place is removed."""
        with step("workdir.discard"):
            still_ours()
            self.directory.remove(STAMPS)
            if self._generation is not None:
                self._enter(_new_place(self._generation))
            elif self.place != _NOWHERE:
                self._remove(self.place)
                self._place, self._directory = None, None

    def replace(self, fill: Callable[[Directory], T], owner: WorkdirOwner, still_ours: Check) -> T:
        """Fill a place that nobody else knows, and go on there."""
        assert self._generation is not None, "only a generation that has entered the workdir replaces it"
        place = _new_place(self._generation)
        directory = self._directory_of(place)
        try:
            filled = fill(directory)
            write_owner(directory, owner)
            still_ours()
        except BaseException:
            with contextlib.suppress(Exception):  # the next start removes it
                self._remove(place)
            raise
        with step("workdir.publish"):
            self._enter(place)
        return filled

    def sweep(self, still_ours: Check = lambda: None) -> None:
        """Places of earlier generations, and what an interrupted driver left in this one.

        A successor may have been given any of them, so `still_ours` is called before each is removed. Its stamps go
        first: no driver that claims after that call is given a place that is being removed.
        """
        assert self._generation is not None, "only a generation that has entered the workdir sweeps it"
        for name in self._places():
            if name != self.place:
                still_ours()
                self._directory_of(name).remove(STAMPS)
                still_ours()
                self._remove(name)
        still_ours()
        self.directory.remove_folders(SPOOL)
        self.remove_probes()

    @property
    def _objects(self) -> ObjectStore:
        return self._spark.open()

    def _at(self, place: str | None, generation: int | None) -> RemoteWorkdir:
        there = RemoteWorkdir(self._home, options=self._options, generation=generation, place=place)
        there._spark = self._spark
        return there

    def _enter(self, place: str) -> None:
        self._place, self._directory = place, None

    def _directory_of(self, place: str) -> ObjectDirectory:
        return ObjectDirectory(self._objects, place, f"{self._home}/{place}", describes_state)

    def _remove(self, place: str) -> None:
        spark = active_session()
        if spark is not None:
            remove_tree(spark, f"{self._home}/{place}")
        else:
            self._directory_of(place).remove_folders("")

    def _newest(self) -> str | None:
        return max(self._places(), key=_number, default=None)

    def _places(self) -> list[str]:
        return [name for name in folders(self._objects) if _PLACE.fullmatch(name)]


def _new_place(generation: int) -> str:
    return f"g{generation:06d}-{uuid.uuid4().hex[:8]}"


def _number(place: str) -> int:
    found = _PLACE.fullmatch(place)
    return int(found[1]) if found else -1
