"""Validate checkpoints: manifest, sidecar, batch objects, and the chain of parents."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator

import msgspec

from holdfast.checkpoints.batcher import read_batch
from holdfast.checkpoints.catalog import Catalog
from holdfast.checkpoints.layout import batch_key, is_batch_key
from holdfast.checkpoints.manifest import BatchObject, CheckpointManifest, Issue, StateVersion
from holdfast.checkpoints.operator_state import checksum_subject, inline_hash, read_ahead, state_checksum
from holdfast.errors import Corrupt, NotFound

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


class ValidationResult(msgspec.Struct, frozen=True):
    """The findings about one checkpoint. `valid`: none of them is fatal."""

    checkpoint_id: int
    valid: bool
    issues: list[Issue]

    @property
    def reason(self) -> str:
        """The fatal findings in one line."""
        return "; ".join(issue.message for issue in self.issues if issue.is_fatal)


class Validator:
    """Validates checkpoints of one store, each at most once.

    `deep` reads every byte of state; otherwise only presence and sizes of state are checked. Raises
    `Unavailable` where the object store fails: that says nothing about the checkpoint.
    """

    def __init__(
        self, catalog: Catalog, vnode_count: int | None = None, *, deep: bool = True, progress: Progress | None = None
    ) -> None:
        self._catalog = catalog
        self._vnode_count = vnode_count
        self._deep = deep
        self._progress = progress or (lambda _: None)
        self._known: dict[int, ValidationResult] = {}
        self._broken: dict[int, tuple[int, str]] = {}
        self._holds: dict[int, dict[str, StateVersion]] = {}
        self._batches: dict[BatchObject, str | None] = {}

    def validate(self, checkpoint_id: int) -> ValidationResult:
        """Validate a checkpoint and every ancestor that it needs."""
        looked: list[tuple[int, CheckpointManifest | None, list[Issue]]] = []
        ahead: int | None = checkpoint_id
        while ahead is not None and ahead not in self._known:
            manifest, issues = self.look(ahead)
            looked.append((ahead, manifest, issues))
            ahead = _parent(manifest)
        below = self._known.get(ahead) if ahead is not None else None
        for number, manifest, issues in reversed(looked):  # oldest first: a child is only as good as its parent
            if below is not None and not below.valid:
                issues.append(self._broken_chain(number, below))
            if manifest is not None:
                self._holds[number] = _held_states(manifest)
                issues.extend(self._inheritance_issues(manifest))
            below = ValidationResult(number, not any(issue.is_fatal for issue in issues), issues)
            self._known[number] = below
        return self._known[checkpoint_id]

    def _broken_chain(self, checkpoint_id: int, parent: ValidationResult) -> Issue:
        """The issue of a child: names its parent, and the damaged ancestor however far down the chain."""
        root, why = self._broken.get(parent.checkpoint_id, (parent.checkpoint_id, parent.reason))
        self._broken[checkpoint_id] = (root, why)
        because = "" if root == parent.checkpoint_id else f", because checkpoint {root} is not"
        return Issue(f"parent checkpoint {parent.checkpoint_id} is not usable{because}: {why}", True)

    def look(self, checkpoint_id: int) -> tuple[CheckpointManifest | None, list[Issue]]:
        """One manifest (None if it cannot be read), and the issues of this checkpoint alone, without its ancestors."""
        try:
            manifest = self._catalog.load(checkpoint_id)
        except Corrupt as error:
            return None, [Issue(f"corrupt manifest: {error.message}", True)]
        if manifest is None:
            return None, [Issue(f"manifest not found for checkpoint {checkpoint_id}", True)]
        found = [
            msgspec.structs.replace(issue, message=f"manifest validation: {issue.message}")
            for issue in manifest.content_issues(self._vnode_count)
        ]
        return manifest, [*found, *self._state_issues(manifest), *self._batch_issues(manifest)]

    def _state_issues(self, manifest: CheckpointManifest) -> Iterator[Issue]:
        key = self._catalog.sidecar_key(manifest.checkpoint_id, manifest)
        if manifest.own.sidecar and manifest.own.sidecar.key != key:
            yield Issue(f"{manifest.own.sidecar.key!r} cannot be the sidecar of this checkpoint", True)
            return
        slices = {name: op for name, op in manifest.operator_states.items() if op.external}
        recorded = manifest.own.sidecar
        if manifest.is_ours and not recorded and not slices and not manifest.state_checksum:
            return
        info = self._catalog.objects.info(key)
        if info is None:
            if recorded or slices:
                yield Issue(f"{key} holds operator state and is not there", True)
                return
            if manifest.state_checksum and inline_hash(manifest.operator_states) is None:
                yield Issue(f"{key} is referenced by a checksum and is not there", True)
                return
        elif recorded and info.size != recorded.bytes:
            yield Issue(f"{key} has {info.size} bytes, {recorded.bytes} were written", True)
            return
        for name, op in sorted(slices.items()):
            if info and op.external_offset + op.external_length > info.size:
                yield Issue(f"operator {name!r} ends beyond the {info.size} bytes of {key}", True)
        if manifest.state_checksum is None:
            if info and slices:
                yield Issue(f"{key} has no checksum: damage in it would not be noticed")
        elif self._deep:
            yield from self._checksum_issues(
                manifest, has_sidecar=info is not None and self._catalog.has_sidecar(manifest)
            )

    def _checksum_issues(self, manifest: CheckpointManifest, *, has_sidecar: bool) -> Iterator[Issue]:
        operators = manifest.operator_states
        expected = manifest.state_checksum
        try:
            pieces = self._counted(manifest) if has_sidecar else None
            actual = state_checksum(operators, pieces)
            if actual == expected:
                return
            if has_sidecar and not manifest.is_ours and expected in self._foreign_checksums(manifest):
                return
        except NotFound:
            yield Issue("the sidecar disappeared while it was being read", True)
            return
        kind = checksum_subject(operators, has_sidecar)
        yield Issue(f"{kind} checksum mismatch: expected {expected}, got {actual}", True)

    def _foreign_checksums(self, manifest: CheckpointManifest) -> Iterator[str | None]:
        """The checksums that other releases of LaminarDB would record: of inline states alone, of the sidecar alone."""
        yield inline_hash(manifest.operator_states)
        yield state_checksum({}, self._catalog.sidecar(manifest.checkpoint_id, manifest))

    def _counted(self, manifest: CheckpointManifest) -> Iterator[bytes | bytearray | memoryview]:
        for piece in self._catalog.sidecar(manifest.checkpoint_id, manifest):
            self._progress(len(piece))
            yield piece

    def _inheritance_issues(self, manifest: CheckpointManifest) -> Iterator[Issue]:
        for name, version in sorted(manifest.own.states.items()):
            if self._holds.get(version.checkpoint_id, {}).get(name) != version:
                yield Issue(f"state of {name!r} is said to be in checkpoint {version.checkpoint_id} and is not", True)

    def _batch_issues(self, manifest: CheckpointManifest) -> Iterator[Issue]:
        if self._deep and not manifest.needed_batches:
            yield from self._unlisted_batch_issues(manifest)
        for batch in manifest.needed_batches:
            if batch not in self._batches:  # several checkpoints may need it
                self._batches[batch] = self._batch_problem(batch)
            problem = self._batches[batch]
            if problem:
                yield Issue(f"batch object {batch.key!r} {problem}", True)

    def _unlisted_batch_issues(self, manifest: CheckpointManifest) -> Iterator[Issue]:
        """Issues of the epoch's batch objects if the manifest lists none: only their own checksums can be verified."""
        for part in itertools.count(1):
            key = batch_key("", manifest.epoch, part)
            if self._catalog.objects.info(key) is None:
                return
            try:
                read_batch(self._catalog.objects, key)
            except Corrupt as error:
                yield Issue(f"batch object {key!r}: {error.message}", True)
            except NotFound:
                return

    def _batch_problem(self, batch: BatchObject) -> str | None:
        if not is_batch_key(batch.key):
            return "cannot be one: its name is not a batch object's"
        info = self._catalog.objects.info(batch.key)
        if info is None:
            return "is not there"
        if info.size != batch.bytes:
            return f"has {info.size} bytes, {batch.bytes} were written"
        if not self._deep:
            return None
        digest = hashlib.sha256()
        try:
            for piece in read_ahead(self._catalog.objects.stream(batch.key)):
                self._progress(len(piece))
                digest.update(piece)
        except NotFound:
            return "disappeared while it was being read"
        actual = digest.hexdigest()
        return None if actual == batch.sha256 else f"checksum mismatch: expected {batch.sha256}, got {actual}"


def _held_states(manifest: CheckpointManifest) -> dict[str, StateVersion]:
    """The states whose bytes are in this checkpoint itself, as it records them."""
    described = manifest.own.states.items()
    return {name: version for name, version in described if name in manifest.operator_states}


def _parent(manifest: CheckpointManifest | None) -> int | None:
    """The parent in the chain. An id that is not lower than the child's is ignored, so that every chain ends."""
    parent = manifest.needed_parent if manifest else None
    return parent if manifest and parent is not None and 0 < parent < manifest.checkpoint_id else None
