"""Verify checkpoints: a verdict on each, and a report on the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from holdfast.checkpoints.catalog import read_each
from holdfast.checkpoints.retention import Orphan
from holdfast.checkpoints.validate import Validator
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.pipeline.workdir.restore import Completeness
from holdfast.status.checkpoints import LatestPointer, OpenedStore, observe_pointer, see_manifest, without_warnings

State = Literal["ok", "damaged", "unreadable", "missing"]
STATES: tuple[State, ...] = ("ok", "damaged", "unreadable", "missing")
QUERY_ID = "query_id"
"""What only the checkpoint of a pipeline records."""

_MOST_BYTES = 1 << 62
"""A damaged manifest may claim any size."""


class Verdict(msgspec.Struct, frozen=True):
    """The findings about one checkpoint."""

    checkpoint_id: int
    state: State
    reason: str | None = None
    warnings: list[str] = []


class VerifyReport(msgspec.Struct, frozen=True):
    """The findings about a store."""

    deep: bool
    verdicts: list[Verdict]
    latest: LatestPointer
    orphans: list[Orphan]
    """Objects that no checkpoint owns; not searched for if only some checkpoints are verified."""
    orphans_problem: str | None = None
    """Why the search for orphans failed."""

    def count(self, state: State) -> int:
        return sum(verdict.state == state for verdict in self.verdicts)

    @property
    def orphan_bytes(self) -> int:
        return sum(orphan.bytes for orphan in self.orphans)

    @property
    def exit_code(self) -> int:
        """The code of the gravest finding: damage first, because the others may be temporary."""
        if self.count("damaged"):
            return Corrupt.exit_code
        if self.count("unreadable"):
            return Unavailable.exit_code
        return NotFound.exit_code if self.count("missing") else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "deep": self.deep,
            "checkpoints": msgspec.to_builtins(self.verdicts),
            "counts": {state: self.count(state) for state in STATES},
            "latest": self.latest.as_json(),
            "orphans": {"count": len(self.orphans), "bytes": self.orphan_bytes},
        }


class Verifier:
    """Verifies the checkpoints of one store, one by one.

    Checks the manifest's checksum, and the presence and size of the state that it names; if `deep`, every byte of it.
    """

    def __init__(
        self,
        opened: OpenedStore,
        ids: Sequence[int],
        *,
        deep: bool,
        vnode_count: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`ids` are all ids in the store; `progress` is called with the bytes of state read since its last call."""
        self._opened = opened
        self._ids = set(ids)
        self._deep = deep
        self._completeness = Completeness(opened.store.objects)
        self._validator = Validator(opened.catalog, vnode_count, deep=deep, progress=progress)

    def verdict(self, checkpoint_id: int) -> Verdict:
        """Verify one checkpoint. Damage is reported in the verdict, never raised."""
        if checkpoint_id not in self._ids:
            return Verdict(checkpoint_id, "missing", "there is no such checkpoint")
        try:
            result = self._validator.validate(checkpoint_id)
        except (Corrupt, Invalid) as error:
            return Verdict(checkpoint_id, "damaged", error.message)
        except HoldfastError as error:
            return Verdict(checkpoint_id, "unreadable", error.message)
        warnings = [issue.message for issue in result.issues if not issue.is_fatal]
        reason = result.reason or None
        if result.valid and self._deep:
            try:
                reason = self._missing_file(checkpoint_id)
            except (Corrupt, Invalid) as error:
                reason = error.message
            except HoldfastError as error:
                return Verdict(checkpoint_id, "unreadable", error.message, warnings)
        return Verdict(checkpoint_id, "damaged" if reason else "ok", reason, warnings)

    def _missing_file(self, checkpoint_id: int) -> str | None:
        """What a pipeline's checkpoint lacks although every byte of it is right; None for any other checkpoint."""
        manifest = self._opened.catalog.load(checkpoint_id)
        if manifest is None or QUERY_ID not in manifest.own.runtime:
            return None
        missing = self._completeness.missing_in(manifest)
        return f"it does not hold {missing[0]}; Spark cannot resume without it" if missing else None

    def report(self, verdicts: list[Verdict], *, with_orphans: bool) -> VerifyReport:
        """The verdicts, and the findings about the store as a whole."""
        damaged = [verdict.checkpoint_id for verdict in verdicts if verdict.state == "damaged"]
        latest = observe_pointer(self._opened.catalog, self._ids, damaged)
        if not with_orphans:
            return VerifyReport(self._deep, verdicts, latest, [])
        try:
            with without_warnings():  # the verdicts report the same
                orphans = self._opened.store.plan_cleanup().orphans
        except HoldfastError as error:
            return VerifyReport(self._deep, verdicts, latest, [], error.message)
        return VerifyReport(self._deep, verdicts, latest, orphans)


def bytes_ahead(opened: OpenedStore, wanted: Sequence[int]) -> int:
    """The number of bytes that a deep verification will read, according to the manifests."""
    total = 0
    batches: dict[str, int] = {}
    for seen in read_each(lambda number: see_manifest(opened, number), list(wanted)):
        if seen.manifest is None:
            continue
        own = seen.manifest.own
        batches |= {batch.key: batch.bytes for batch in seen.manifest.needed_batches}
        total += own.sidecar.bytes if own.sidecar else 0
        if not seen.manifest.is_ours:
            with contextlib.suppress(HoldfastError):
                info = opened.store.objects.info(opened.catalog.sidecar_key(seen.checkpoint_id, seen.manifest))
                total += info.size if info else 0
    return min(total + sum(batches.values()), _MOST_BYTES)
