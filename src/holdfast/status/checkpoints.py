"""The status of a checkpoint store: its checkpoints, their manifests, and the pointer `latest`.

Read only. One damaged checkpoint never hides the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.base.addresses import is_local
from holdfast.checkpoints import CheckpointStore, manifest_json, open_store
from holdfast.checkpoints.catalog import Catalog, read_each
from holdfast.checkpoints.layout import DirectoryLayout, ObjectLayout
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.storage.objects import LocalObjects

LayoutName = Literal["directory", "object"]
PointerState = Literal["ok", "missing", "garbage", "unreadable", "dangling", "misplaced", "none"]
_POINTER_BYTES = 4096


class OpenedStore(msgspec.Struct, frozen=True):
    """A store, with direct access to its manifests for details that the store's own methods do not return."""

    store: CheckpointStore
    catalog: Catalog
    options: Mapping[str, str] | None = None
    """The settings that it was opened with, for what lies beside it. They may hold secrets."""

    def __repr__(self) -> str:
        return f"OpenedStore({self.address!r})"

    @property
    def address(self) -> str:
        return self.store.objects.address

    def hint(self, verb: str, *rest: object) -> str:
        """A command to run next on this store."""
        return shlex.join(["holdfast", verb, self.address, *(str(word) for word in rest)])


def open_existing(
    url: str, *, layout: LayoutName | None = None, options: Mapping[str, str] | None = None
) -> OpenedStore:
    """Open a store that must exist: a mistyped path is `NotFound`, not an empty store.

    Does not guarantee this for object storage: an empty store and no store look the same there.
    """
    chosen: LayoutName = layout or ("directory" if is_local(url) else "object")
    # No automatic retention: it runs after a save, and status and cleanup never save.
    store = open_store(url, layout=chosen, options=options or None, max_retained=None)
    objects = store.objects
    if isinstance(objects, LocalObjects) and not os.path.isdir(objects.root):
        there = os.path.lexists(objects.root)
        raise NotFound(
            f"{objects.root} is {'not a directory' if there else 'not there'}.",
            code="store.not-found",
            about=objects.root,
            next_step="check the address: it is the directory that has 'checkpoints' in it",
        )
    catalog = Catalog(objects, DirectoryLayout() if chosen == "directory" else ObjectLayout())
    return OpenedStore(store, catalog, options or None)


def why_empty(opened: OpenedStore) -> str | None:
    """A guess why a store looks empty, or None."""
    objects = opened.store.objects
    if opened.address.startswith("memory://"):
        return "memory:// lives and dies with one process, so from the command line it is always empty"
    if not isinstance(objects, LocalObjects):
        return None
    with contextlib.suppress(OSError):
        names = set(os.listdir(objects.root))
        if any(re.fullmatch(r"checkpoint_\d{6,20}", name) for name in names):
            return f"this looks like the inside of a store; try: holdfast ls {os.path.dirname(objects.root)}"
        if "manifests" in names and isinstance(opened.catalog.layout, DirectoryLayout):
            return f"it has a folder 'manifests'; try: {opened.hint('ls', '--layout', 'object')}"
    return None


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the library's warnings while the block runs, for a caller that reports the same findings itself."""
    log = logging.getLogger("holdfast.checkpoints")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


# One checkpoint


class SeenManifest(msgspec.Struct, frozen=True):
    """One checkpoint's manifest, or why it cannot be read."""

    checkpoint_id: int
    state: Literal["ok", "damaged", "unreadable", "gone"]
    reason: str = ""
    manifest: CheckpointManifest | None = None


class CheckpointDetails(msgspec.Struct, frozen=True):
    """One manifest, decoded and as its stored bytes, and the size of the checkpoint."""

    manifest: CheckpointManifest
    body: bytes
    key: str
    size_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {
            "checkpoint_id": self.manifest.checkpoint_id,
            "key": self.key,
            "manifest_bytes": len(self.body),
            "size_bytes": self.size_bytes,
            "issues": [{"message": issue.message, "is_fatal": issue.is_fatal} for issue in self.manifest.validate()],
            # The stored document, with unknown fields and large numbers.
            "manifest": msgspec.json.decode(self.body),
        }


def see_manifest(opened: OpenedStore, checkpoint_id: int) -> SeenManifest:
    """Read one manifest. A damaged or unreadable one is reported in the result, never raised.

    Checks the manifest alone; `status.verify` checks that its state is there and intact.
    """
    try:
        manifest = opened.catalog.load(checkpoint_id)
    except (Corrupt, Invalid) as error:
        return SeenManifest(checkpoint_id, "damaged", error.message.removeprefix(f"{error.about} is damaged: "))
    except HoldfastError as error:
        return SeenManifest(checkpoint_id, "unreadable", error.message)
    if manifest is None:
        return SeenManifest(checkpoint_id, "gone", "removed while it was being read")
    fatal = [issue.message for issue in manifest.validate() if issue.is_fatal]
    return SeenManifest(checkpoint_id, "damaged" if fatal else "ok", "; ".join(fatal), manifest)


def resolve(opened: OpenedStore, wanted: int | Literal["latest"]) -> int:
    """Resolve an id. `latest` is the highest id in the store, damaged or not."""
    if wanted != "latest":
        return wanted
    ids = opened.store.list_ids()
    if not ids:
        raise NotFound(
            f"{opened.address} has no checkpoints yet.",
            code="store.empty",
            about=opened.address,
            next_step="run the pipeline, or check the address",
        )
    return ids[-1]


def load_checkpoint(opened: OpenedStore, wanted: int | Literal["latest"]) -> CheckpointDetails:
    """Load one manifest with its details. `NotFound` if there is none, `Corrupt` if it is damaged."""
    checkpoint_id = resolve(opened, wanted)
    body = load_bytes(opened, checkpoint_id)
    key = opened.catalog.layout.manifest_key(checkpoint_id)
    try:
        manifest = manifest_json.decode(body, about=opened.catalog.shown(key), checkpoint_id=checkpoint_id)
    except Corrupt as error:
        error.unchanged = error.unchanged or "the store"
        error.next_step = error.next_step or (
            f"{opened.hint('recover', '--dry-run')} finds the newest usable checkpoint; "
            f"{opened.hint('show', checkpoint_id, '--raw')} prints this one as it is"
        )
        raise
    return CheckpointDetails(manifest, body, key, stored_size(opened, manifest, len(body)))


def load_bytes(opened: OpenedStore, checkpoint_id: int) -> bytes:
    """The stored bytes of one manifest, damaged or not."""
    key = opened.catalog.layout.manifest_key(checkpoint_id)
    try:
        return opened.store.objects.read(key, limit=manifest_json.MAX_MANIFEST_BYTES)
    except NotFound:
        raise NotFound(
            f"There is no checkpoint {checkpoint_id} in {opened.address}.",
            code="checkpoint.not-found",
            about=opened.catalog.shown(key),
            next_step=opened.hint("ls"),
        ) from None


def stored_size(opened: OpenedStore, manifest: CheckpointManifest, manifest_bytes: int) -> int:
    """The size of a checkpoint in bytes; measured if the manifest lacks it, as writers other than Holdfast may do."""
    if manifest.size_bytes:
        return manifest.size_bytes
    with contextlib.suppress(HoldfastError):
        info = opened.store.objects.info(opened.catalog.sidecar_key(manifest.checkpoint_id, manifest))
        return manifest_bytes + (info.size if info else 0)
    return manifest_bytes


# All checkpoints


class ListedCheckpoint(msgspec.Struct, frozen=True):
    """One line of a list."""

    seen: SeenManifest
    size_bytes: int
    """0 if the manifest cannot be read."""
    is_latest: bool

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "checkpoint_id": self.seen.checkpoint_id,
            "state": self.seen.state,
            "reason": self.seen.reason or None,
            "is_latest": self.is_latest,
        }
        manifest = self.seen.manifest
        if manifest is None:
            return found
        return found | {
            "epoch": manifest.epoch,
            "timestamp_ms": manifest.timestamp_ms,
            "size_bytes": self.size_bytes,
            "is_incremental": manifest.is_incremental,
            "parent_id": manifest.parent_id,
            "sink_commit_statuses": msgspec.to_builtins(manifest.sink_commit_statuses),
        }


class CheckpointList(msgspec.Struct, frozen=True):
    """The newest checkpoints of a store, newest first."""

    checkpoints: list[ListedCheckpoint]
    total: int
    """The number of checkpoints in the store, listed here or not."""
    latest: LatestPointer

    @property
    def exit_code(self) -> int:
        unreadable = any(one.seen.state == "unreadable" for one in self.checkpoints)
        return Unavailable.exit_code if unreadable else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "checkpoints": [one.as_json() for one in self.checkpoints],
            "total": self.total,
            "latest": self.latest.as_json(),
        }


def list_checkpoints(opened: OpenedStore, most: int | None = None) -> CheckpointList:
    """The newest `most` checkpoints, or all. Only their manifests are read."""
    folder = opened.catalog.layout.folders[0]
    sizes = {
        checkpoint_id: info.size
        for info in opened.store.objects.list(folder)
        if (checkpoint_id := opened.catalog.layout.manifest_id(info.key)) is not None
    }
    ids = sorted(sizes)
    wanted = ids[::-1][:most]
    found = [one for one in read_each(lambda number: see_manifest(opened, number), wanted) if one.state != "gone"]
    damaged = [one.checkpoint_id for one in found if one.state == "damaged"]
    latest = observe_pointer(opened.catalog, ids, damaged)
    listed = [
        ListedCheckpoint(
            one,
            stored_size(opened, one.manifest, sizes[one.checkpoint_id]) if one.manifest else 0,
            one.checkpoint_id == latest.names,
        )
        for one in found
    ]
    return CheckpointList(listed, len(ids), latest)


# The pointer `latest`: only a hint, so a wrong pointer is not an error


class LatestPointer(msgspec.Struct, frozen=True):
    """The id that `latest` names, and the one it should name. State `none`: no pointer, and nothing to point at."""

    state: PointerState
    names: int | None
    should_name: int | None
    """The newest checkpoint that is not known to be damaged."""

    @property
    def problem(self) -> str | None:
        """The problem in a sentence; None if the pointer is right."""
        return {
            "ok": None,
            "none": None,
            "missing": f"latest is missing; it should name checkpoint {self.should_name}",
            "garbage": "latest is damaged and names no checkpoint; readers walk the ids instead",
            "unreadable": "latest could not be read; readers walk the ids instead",
            "dangling": f"latest names checkpoint {self.names}, which is not there",
            "misplaced": f"latest names checkpoint {self.names}; it should name {self.should_name}",
        }[self.state]

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state, "names": self.names, "should_name": self.should_name}


def observe_pointer(catalog: Catalog, ids: Collection[int], unusable: Collection[int] = ()) -> LatestPointer:
    """Read `latest` and compare it with the newest of `ids` that is not in `unusable`."""
    newest = _newest(ids, unusable)
    try:
        body = catalog.objects.read(catalog.layout.pointer_key, limit=_POINTER_BYTES)
    except NotFound:
        return LatestPointer("missing" if ids else "none", None, newest)
    except Corrupt:
        return LatestPointer("garbage", None, newest)
    except HoldfastError:
        return LatestPointer("unreadable", None, newest)
    return judge_pointer(catalog.layout.pointer_id(body), ids, unusable)


def judge_pointer(names: int | None, ids: Collection[int], unusable: Collection[int] = ()) -> LatestPointer:
    """The state of a pointer that names the id `names`, or no id (None). Pure."""
    newest = _newest(ids, unusable)
    if names is None:
        return LatestPointer("garbage", None, newest)
    if names == newest:
        return LatestPointer("ok", names, newest)
    if names not in set(ids):
        return LatestPointer("dangling", names, newest)
    return LatestPointer("ok" if newest is None else "misplaced", names, newest)


def _newest(ids: Collection[int], unusable: Collection[int]) -> int | None:
    return max(set(ids).difference(unusable), default=None)
