"""A directory in which deliveries wait, one directory each, until they are published or removed.

Its names carry the delivery and the driver's generation, so that a later driver can tell what it may sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator

import msgspec

from holdfast.base.steps import step
from holdfast.errors import Invalid
from holdfast.sinks.durable import sync, sync_tree
from holdfast.sinks.sink import Delivery, Descriptor

REMOVING = "_removing-"
_NAME = re.compile(
    r"(?P<owner>[A-Za-z0-9_.]+)-(?P<lineage>\d+)-(?P<epoch>\d+)-(?P<generation>\d+)-[0-9a-f]{12}", re.ASCII
)


def owner_name(delivery: Delivery) -> str:
    """Names the pipeline's sink in a few letters that need no escaping anywhere, in paths, globs or URLs.

    Two owners have two names, whatever is in theirs: the hash sees to that, the letters are for people.
    """
    whose = msgspec.json.encode([delivery.pipeline, delivery.sink])
    readable = re.sub(r"[^A-Za-z0-9]+", "_", f"{delivery.pipeline}_{delivery.sink}")[:40]
    return f"{readable}.{hashlib.sha256(whose).hexdigest()[:16]}"


class StagingArea:
    """The deliveries waiting below `root`, which is made when needed and removed when empty.

    Removing is safe beside a commit: a directory loses its name in one move before anything in it goes, so that
    whoever publishes finds all of it or nothing. What a crash leaves of a removal is removed by the next `sweep`.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    @contextlib.contextmanager
    def new(self, delivery: Delivery) -> Iterator[str]:
        """The name of a new, empty directory for a delivery, removed again if the block fails.

        What the block puts there is not durable before `seal`.
        """
        name = self._make(delivery)
        try:
            yield name
        except BaseException:
            with contextlib.suppress(OSError):  # the failure itself is what to report
                self.remove(name)
            raise

    def seal(self, name: str) -> None:
        """Make everything in a staged directory durable, and its name, and the area's."""
        with step("sink.sync", staged=name):
            sync_tree(self.path(name))
            sync(self.root)
            sync(os.path.dirname(self.root))

    def name_in(self, descriptor: Descriptor, delivery: Delivery) -> str:
        """The staged directory that a descriptor of this delivery names. `Invalid` if it names anything else."""
        name = descriptor.get("staged")
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None or not _is_of(found, delivery):
            raise Invalid(
                f"A descriptor says {str(name)[:100]!r}, which is not what {delivery} was staged as.",
                code="sink.descriptor",
                about=self.root,
                unchanged="what is staged and what is published",
                next_step="verify the checkpoint that the descriptor comes from",
            )
        return str(name)

    def remove(self, name: str) -> None:
        """Remove a staged directory. Fine if it is gone."""
        with step("sink.discard", staged=name):
            self._remove(name)
            self._leave()

    def remove_leftovers(self, delivery: Delivery) -> None:
        """Remove whatever this delivery was staged as, by this driver or an earlier one. It has been published."""
        with step("sink.discard", epoch=delivery.epoch):
            for name, found in self._staged():
                if _is_of(found, delivery) and int(found["generation"]) <= delivery.generation:
                    self._remove(name)
            self._leave()

    def sweep(self, delivery: Delivery, keep: Descriptor | None) -> None:
        """Remove what drivers of an earlier generation staged for this owner, and what half-removed is left."""
        kept = None if keep is None else keep.get("staged")
        with step("sink.discard", generation=delivery.generation):
            for name, found in self._staged():
                old = int(found["generation"]) < delivery.generation
                if old and name != kept and found["owner"] == owner_name(delivery):
                    self._remove(name)
            for name in self._names():
                if name.startswith(REMOVING):
                    shutil.rmtree(self.path(name), ignore_errors=True)
            self._leave()

    def holds(self, delivery: Delivery) -> bool:
        """True if anything is still staged for this delivery, by whichever driver."""
        return any(_is_of(found, delivery) for _, found in self._staged())

    def _make(self, delivery: Delivery) -> str:
        numbers = f"{delivery.lineage}-{delivery.epoch}-{delivery.generation}"
        name = f"{owner_name(delivery)}-{numbers}-{uuid.uuid4().hex[:12]}"
        while True:
            try:
                os.makedirs(self.path(name))
            except FileNotFoundError:
                continue  # another driver removed the empty root in between
            return name

    def _staged(self) -> list[tuple[str, re.Match[str]]]:
        return [(name, found) for name in self._names() if (found := _NAME.fullmatch(name)) is not None]

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []

    def _remove(self, name: str) -> None:
        aside = self.path(f"{REMOVING}{uuid.uuid4().hex}")
        try:
            os.rename(self.path(name), aside)
        except FileNotFoundError:
            return
        # It is out of everybody's way now: what cannot be removed today, a sweep removes another day.
        shutil.rmtree(aside, ignore_errors=True)

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # not empty, or gone
            os.rmdir(self.root)


def _is_of(found: re.Match[str], delivery: Delivery) -> bool:
    numbers = (int(found["lineage"]), int(found["epoch"]))
    return found["owner"] == owner_name(delivery) and numbers == (delivery.lineage, delivery.epoch)
