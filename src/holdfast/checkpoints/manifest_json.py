"""A manifest as bytes: pretty-printed JSON in which every byte is covered by a checksum.

The checksum stands last in the document, so that it is found by position, before anything is parsed:
it is the SHA-256 of the document with its own 64 digits written as zeros.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.base.codec import converted
from holdfast.checkpoints.manifest import MAX_U64, UNKNOWN_KEY, CheckpointManifest
from holdfast.errors import Corrupt, Invalid

MAX_MANIFEST_BYTES = 64 << 20
_MARK = "sha256:"
_BLANK = "0" * 64
_TAIL = b'"\n  }\n}\n'
_NO_SIZE = b'\n  "size_bytes": 0,'
# A flipped bit can hide one of these, not all: a document that shows any of them must pass the checksum.
# With their indentation: a connector's own keys may have these names, further in.
_SIGNS_OF_OURS = (b'\n  "holdfast": {', b'\n    "write_id": "', b'\n    "checksum": "sha256:')


def encode(manifest: CheckpointManifest, *, others: int | None = None) -> bytes:
    """Encode a manifest with its checksum. The JSON is made once; size and checksum are then written into it.

    With `others`, the bytes of the checkpoint's other objects, `size_bytes` becomes the size of the whole checkpoint;
    without, it stays. `Invalid` if a value does not fit JSON or the document exceeds the limit. Field types are not
    checked here: `CheckpointManifest.type_issues` does that.
    """
    own = msgspec.structs.replace(manifest.own, checksum=_MARK + _BLANK)
    size = manifest.size_bytes if others is None else 0
    manifest = msgspec.structs.replace(manifest, holdfast=own, size_bytes=size)
    try:
        _check_ranges(manifest)
        compact = msgspec.json.encode(manifest)
        if UNKNOWN_KEY.encode() in compact:
            compact = msgspec.json.encode(_plain(manifest))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise Invalid(
            f"The manifest of checkpoint {manifest.checkpoint_id} cannot be written: {error}.",
            code="manifest.unwritable",
            about=f"checkpoint {manifest.checkpoint_id}",
            unchanged="the store",
        ) from error
    body = msgspec.json.format(compact, indent=2) + b"\n"
    if others is not None:
        body = _with_size(body, others)
    if len(body) > MAX_MANIFEST_BYTES:
        raise Invalid(
            f"The manifest of checkpoint {manifest.checkpoint_id} would be {len(body)} bytes; "
            f"the limit is {MAX_MANIFEST_BYTES}.",
            code="manifest.too-large",
            about=f"checkpoint {manifest.checkpoint_id}",
            unchanged="the store",
            next_step="keep large operator state in the sidecar or in batch objects",
        )
    digest = hashlib.sha256(body).hexdigest().encode()
    return body[: -len(_TAIL) - 64] + digest + _TAIL


def _with_size(body: bytes, others: int) -> bytes:
    """The document with its `size_bytes` of 0 replaced by the size of the checkpoint.

    The field is found by its indentation: no other field has this name at this depth, and no JSON string has a newline.
    """
    total = rest = len(body) - len("0") + others
    while total != rest + len(str(total)):  # the size counts its own digits
        total = rest + len(str(total))
    before, after = body.split(_NO_SIZE)
    return b"".join((before, _NO_SIZE.replace(b"0", str(total).encode()), after))


def decode(body: bytes, *, about: str, checkpoint_id: int | None = None) -> CheckpointManifest:
    """Parse a document, ours or LaminarDB's. Anything wrong with it is `Corrupt` and names `about`."""
    is_verified = _checksum_matches(body)
    if not is_verified and any(sign in body for sign in _SIGNS_OF_OURS):
        raise _corrupt(about, "manifest.checksum", "its checksum does not match its content")
    try:
        raw = msgspec.json.decode(body)
        manifest = _check_ranges(converted(raw, CheckpointManifest))
    except RecursionError:
        raise _corrupt(about, "manifest.json", "it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise _corrupt(about, "manifest.json", str(error) if body else "it is empty") from None
    if not is_verified and manifest.holdfast is not UNSET:
        raise _corrupt(about, "manifest.checksum", "it has our section, and no checksum over it")
    if checkpoint_id is not None and manifest.checkpoint_id != checkpoint_id:
        raise _corrupt(about, "manifest.id", f"it says it is checkpoint {manifest.checkpoint_id}")
    _keep_unknown(manifest, raw)
    return manifest


def _check_ranges(manifest: CheckpointManifest) -> CheckpointManifest:
    if max(manifest.checkpoint_id, manifest.epoch, manifest.timestamp_ms) > MAX_U64:
        raise ValueError("a number in it does not fit 64 bits")
    return manifest


def _corrupt(about: str, code: str, why: str) -> Corrupt:
    return Corrupt(
        f"{about} is damaged: {why.rstrip('.')}.",
        code=code,
        about=about,
        unchanged="the store",
    )


def _checksum_matches(body: bytes) -> bool:
    head, digits = body[: -len(_TAIL) - 64], body[-len(_TAIL) - 64 : -len(_TAIL)]
    if not body.endswith(_TAIL) or not head.endswith(_MARK.encode()):
        return False
    expected = hashlib.sha256(head)
    expected.update(_BLANK.encode() + _TAIL)
    return expected.hexdigest().encode() == digits


def _plain(value: Any) -> Any:
    """The JSON value of a struct, with the unknown fields back in their places, our own section last."""
    if isinstance(value, Struct):
        fields = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        plain = {name: _plain(getattr(value, field)) for name, field in fields.items() if name != UNKNOWN_KEY}
        plain = {name: item for name, item in plain.items() if item is not UNSET}
        unknown = getattr(value, "unknown", UNSET)
        if isinstance(unknown, UnsetType):
            return plain
        last = next(reversed(plain))
        ending = {last: plain.pop(last)} if last in ("holdfast", "checksum") else {}
        return {**plain, **{key: item for key, item in unknown.items() if key not in fields}, **ending}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _keep_unknown(value: Any, raw: Any) -> None:
    if isinstance(value, Struct) and isinstance(raw, dict):
        names = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        if UNKNOWN_KEY in names:
            unknown = {key: item for key, item in raw.items() if key not in names}
            msgspec.structs.force_setattr(value, "unknown", unknown or UNSET)
        for name, field in names.items():
            if name in raw and name != UNKNOWN_KEY:
                _keep_unknown(getattr(value, field), raw[name])
    elif isinstance(value, dict) and isinstance(raw, dict):
        for key, item in value.items():
            if isinstance(item, (Struct, list)):
                _keep_unknown(item, raw.get(key))
    elif isinstance(value, list) and isinstance(raw, list):
        for item, raw_item in zip(value, raw, strict=True):
            if isinstance(item, Struct):
                _keep_unknown(item, raw_item)
