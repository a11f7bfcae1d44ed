"""A store as the verbs see it: opened, known to exist, its manifests and its pointer read with care."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.base.addresses import is_local
from holdfast.checkpoints import CheckpointStore, manifest_json, open_store
from holdfast.checkpoints.catalog import Catalog
from holdfast.checkpoints.layout import DirectoryLayout, ObjectLayout
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.storage.objects import LocalObjects

LayoutName = Literal["directory", "object"]


class Opened(msgspec.Struct, frozen=True):
    """A store, and direct sight of its manifests for what the store's own methods do not tell."""

    store: CheckpointStore
    catalog: Catalog
    url: str
    """As it was typed; may hold credentials."""

    @property
    def address(self) -> str:
        return self.store.objects.address

    def hint(self, verb: str, *rest: object) -> str:
        """A command to run next on this store."""
        return shlex.join(["holdfast", verb, self.address, *(str(word) for word in rest)])


class Seen(msgspec.Struct, frozen=True):
    """One checkpoint's manifest, or why there is none to be had."""

    checkpoint_id: int
    state: Literal["ok", "damaged", "unreadable", "gone"]
    reason: str = ""
    manifest: CheckpointManifest | None = None


def open_existing(url: str, *, layout: LayoutName | None, options: Mapping[str, str]) -> Opened:
    """Open a store that must be there: a mistyped path is `NotFound`, not an empty store.

    Does not guarantee that there is anything in it: in object storage an empty store and none are the same.
    """
    chosen: LayoutName = layout or ("directory" if is_local(url) else "object")
    # Looking and cleaning up never save, so the store's own retention is off.
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
    return Opened(store, Catalog(objects, DirectoryLayout() if chosen == "directory" else ObjectLayout()), url)


def look_at(opened: Opened, checkpoint_id: int) -> Seen:
    """Read one manifest. Never raises for what is wrong with one checkpoint.

    Only the manifest is judged: whether its state is there and intact is for `verify`.
    """
    try:
        manifest = opened.catalog.load(checkpoint_id)
    except (Corrupt, Invalid) as error:
        return Seen(checkpoint_id, "damaged", error.message.removeprefix(f"{error.about} is damaged: "))
    except HoldfastError as error:
        return Seen(checkpoint_id, "unreadable", error.message)
    if manifest is None:
        return Seen(checkpoint_id, "gone", "removed while it was being read")
    fatal = [issue.message for issue in manifest.validate() if issue.is_fatal]
    return Seen(checkpoint_id, "damaged" if fatal else "ok", "; ".join(fatal), manifest)


def resolve(opened: Opened, wanted: int | Literal["latest"]) -> int:
    """The id that is meant. `latest` is the highest id there is, damaged or not."""
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


def load(opened: Opened, wanted: int | Literal["latest"]) -> tuple[CheckpointManifest, bytes]:
    """One manifest and its document, byte for byte. `NotFound` or `Corrupt` if it cannot be had."""
    checkpoint_id = resolve(opened, wanted)
    body = load_bytes(opened, checkpoint_id)
    about = opened.catalog.shown(opened.catalog.layout.manifest_key(checkpoint_id))
    try:
        return manifest_json.decode(body, about=about, checkpoint_id=checkpoint_id), body
    except Corrupt as error:
        error.unchanged = error.unchanged or "the store"
        error.next_step = error.next_step or (
            f"{opened.hint('recover', '--dry-run')} finds the newest usable checkpoint; "
            f"{opened.hint('show', checkpoint_id, '--raw')} prints this one as it is"
        )
        raise


def load_bytes(opened: Opened, checkpoint_id: int) -> bytes:
    """One manifest's document as it is stored, damaged or not."""
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


def stored_size(opened: Opened, manifest: CheckpointManifest, manifest_bytes: int) -> int:
    """What a checkpoint takes, in bytes; a foreign writer may have left it to us to find out."""
    if manifest.size_bytes:
        return manifest.size_bytes
    with contextlib.suppress(HoldfastError):
        info = opened.store.objects.info(opened.catalog.sidecar_key(manifest.checkpoint_id, manifest))
        return manifest_bytes + (info.size if info else 0)
    return manifest_bytes


def why_empty(opened: Opened) -> str | None:
    """A guess why a store that should hold something looks empty, None if there is none to make."""
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
    """Keep the library's own warnings off the screen where the verb reports the same findings itself."""
    log = logging.getLogger("holdfast.checkpoints")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def as_json(manifest_body: bytes) -> Any:
    """A stored manifest as plain values, unknown fields and large numbers as they are."""
    return msgspec.json.decode(manifest_body)
