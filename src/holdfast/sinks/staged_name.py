"""The name of staged output, which carries the delivery and the driver's generation.

By it a later driver tells which staged output it may remove, on every kind of storage.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.sinks.sink import Delivery, Descriptor, StagedOutputGone, is_undecided

_NAME = re.compile(
    r"(?P<owner>[A-Za-z0-9_.]+)-(?P<lineage>\d+)-(?P<epoch>\d+)-(?P<generation>\d+)-[0-9a-f]{12}", re.ASCII
)


def owner_name(delivery: Delivery) -> str:
    """The pipeline and the sink in a few letters that need no escaping in paths, globs or URLs.

    Two owners never have the same name: the hash ensures that, the letters are for people.
    """
    whose = msgspec.json.encode([delivery.pipeline, delivery.sink])
    readable = re.sub(r"[^A-Za-z0-9]+", "_", f"{delivery.pipeline}_{delivery.sink}")[:40]
    return f"{readable}.{hashlib.sha256(whose).hexdigest()[:16]}"


class StagedName(msgspec.Struct, frozen=True):
    """The parts of a name."""

    owner: str
    lineage: int
    epoch: int
    generation: int

    def is_of(self, delivery: Delivery) -> bool:
        """Whether this was staged for the delivery, by any driver."""
        return self.owner == owner_name(delivery) and (self.lineage, self.epoch) == (delivery.lineage, delivery.epoch)

    def is_left_over(self, published: Delivery) -> bool:
        """Whether this driver or an earlier one staged it for a delivery that has been published."""
        return self.is_of(published) and self.generation <= published.generation

    def is_over(self, newest: Delivery) -> bool:
        """Whether an earlier generation staged it, and nobody can decide it any more. `newest` is the newest decided
        delivery, with the generation of the driver that runs now."""
        is_old = self.owner == owner_name(newest) and self.generation < newest.generation
        return is_old and not is_undecided(self.lineage, self.epoch, newest)


def new_name(delivery: Delivery) -> str:
    """A name that no other staged output has."""
    numbers = f"{delivery.lineage}-{delivery.epoch}-{delivery.generation}"
    return f"{owner_name(delivery)}-{numbers}-{uuid.uuid4().hex[:12]}"


def parse(name: object) -> StagedName | None:
    """The parts of a name; None for anything that is not the name of staged output."""
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        return None
    return StagedName(found["owner"], int(found["lineage"]), int(found["epoch"]), int(found["generation"]))


def left_over(names: Iterable[str], published: Delivery) -> list[str]:
    """Of the names in a staging area, those that nobody needs once a delivery is published: see `is_left_over`."""
    return [name for name in sorted(names) if (found := parse(name)) is not None and found.is_left_over(published)]


def over(names: Iterable[str], newest: Delivery, keep: Descriptor | None) -> list[str]:
    """Of the names in a staging area, those that a sweep removes: see `is_over`. What `keep` names stays."""
    kept = None if keep is None else keep.get("staged")
    mine = ((name, parse(name)) for name in sorted(names) if name != kept)
    return [name for name, found in mine if found is not None and found.is_over(newest)]


@contextlib.contextmanager
def removed_if_it_fails(name: str, remove: Callable[[str], None]) -> Iterator[str]:
    """Stage under a name within a block, and remove what was staged again if the block raises."""
    try:
        yield name
    except BaseException:
        with contextlib.suppress(HoldfastError, OSError):  # raise the first failure, not this one
            remove(name)
        raise


def name_in(descriptor: Descriptor, delivery: Delivery, *, area: str) -> str:
    """The staged output that a descriptor of this delivery names. `Invalid` if it names anything else."""
    name = descriptor.get("staged")
    parts = parse(name)
    if parts is None or not parts.is_of(delivery):
        raise Invalid(
            f"The descriptor names {str(name)[:100]!r}, which is not staged output of {delivery}.",
            code="sink.descriptor",
            about=area,
            unchanged="what is staged and what is published",
            next_step="verify the checkpoint that the descriptor comes from",
        )
    return str(name)


def gone(delivery: Delivery, *, where: str, unchanged: str = "everything that readers see") -> StagedOutputGone:
    """The error to raise if the staged output of a delivery is missing or incomplete."""
    return StagedOutputGone(
        f"The staged output of {delivery} is gone, or incomplete.",
        about=where,
        unchanged=unchanged,
        next_step="stage the epoch again",
    )
