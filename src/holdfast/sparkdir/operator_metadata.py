"""Which state stores a batch loads, by the metadata that Spark keeps of each stateful operator. Pure.

state/<op>/_metadata/metadata     version 1: one file, written with the operator's first batch
state/<op>/_metadata/v2/<batch>   version 2: counts from this batch on, until the next one

Either is a version line and a line of JSON: the operator's name and, for each of its stores, name and partitions.
Version 1 is not written again when the state is repartitioned, so the number of partitions is taken from the offset
log, as Spark does. An operator whose rows are all in one partition has state in that one alone, whatever its metadata
say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import Corrupt, Invalid
from holdfast.sparkdir.logs import parse_commit, parse_offsets

Read = Callable[[str], bytes]

PARTITIONS = "spark.sql.shuffle.partitions"
DEFAULT_STORE = "default"
"""A store of this name lies in the partition's own folder, any other in a folder of its name in there."""

_PATH = re.compile(r"state/(\d+)/_metadata/(?:metadata|v2/(\d+))")
_VERSIONS = ("v1", "v2")
_GLOBAL_LIMIT = "globalLimit"
_NO_KEY = b'\x00\x02v2\x00\x00\x00\x01\x00\x1d{"type":"struct","fields":[]}'
"""How the schema of state without a key begins: that of an aggregate over all rows."""


class OperatorMetadata(msgspec.Struct, frozen=True):
    """One stateful operator as Spark describes it."""

    name: str
    partitions: Mapping[str, int]
    """By the name of each of its stores."""


class StateStore(msgspec.Struct, frozen=True):
    """One state store that a batch loads."""

    folder: str
    partition: int
    ids: tuple[str, ...] = ()
    """The attempts that wrote the version which counts, one of each store of the partition; none in state format 1."""


def parse_operator_metadata(text: str, about: str) -> OperatorMetadata:
    """Read the metadata of one operator. `Corrupt` if they are torn, `Invalid` if a newer Spark wrote them."""
    version, _, body = text.partition("\n")
    if version not in _VERSIONS:
        if re.fullmatch(r"v\d+", version):
            raise Invalid(
                f"{about} has format {version}, and only {', '.join(_VERSIONS)} are known here.",
                code="workdir.log-format",
                about=about,
                unchanged="every checkpoint and every sink",
                next_step="use a release of Holdfast that knows this release of Spark",
            )
        raise _torn(about, "they do not begin with a version")
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
        name = found["operatorInfo"]["operatorName"]
        stores = {store["storeName"]: store["numPartitions"] for store in found["stateStoreInfo"]}
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError) as error:
        raise _torn(about, repr(error)) from None
    is_sound = isinstance(name, str) and stores and all(type(count) is int for count in stores.values())
    if not is_sound or not all(isinstance(store, str) and store and "/" not in store for store in stores):
        raise _torn(about, "they name no stores")
    return OperatorMetadata(name, stores)


def describes_state(path: str) -> bool:
    """Whether `stores_of_batch` may read a file."""
    return path.startswith(("offsets/", "commits/")) or (path.startswith("state/") and "/_metadata/" in path)


def stores_of_batch(paths: Iterable[str], batch_id: int, read: Read) -> list[StateStore]:
    """The state stores that running `batch_id` loads: those that the batch before it wrote. Empty for batch 0.

    `read` returns a file among `paths`; it is called for the logs of the batch before and for what describes state.
    """
    if batch_id == 0:
        return []
    found = set(paths)
    described = _metadata_paths(found, batch_id - 1)
    if not described:
        return []
    offsets, commit = f"offsets/{batch_id - 1}", f"commits/{batch_id - 1}"
    settings = parse_offsets(_text(read, offsets), offsets).settings if offsets in found else {}
    ids = parse_commit(_text(read, commit), commit).state_ids if commit in found else {}
    stores = []
    for operator, path in sorted(described.items()):
        metadata = parse_operator_metadata(_text(read, path), path)
        written = ids.get(str(operator), ())
        for name, recorded in metadata.partitions.items():
            count = _count(settings.get(PARTITIONS, str(recorded)), offsets)
            for partition in range(1 if _is_in_one_partition(metadata, operator, found, read) else count):
                folder = f"state/{operator}/{partition}" + ("" if name == DEFAULT_STORE else f"/{name}")
                stores.append(StateStore(folder, partition, written[partition] if partition < len(written) else ()))
    return stores


def _metadata_paths(paths: Iterable[str], batch_id: int) -> dict[int, str]:
    """The file that describes each operator as it was in `batch_id`; none for an operator that came later."""
    newest: dict[int, tuple[int, str]] = {}
    for path in paths:
        match = _PATH.fullmatch(path)
        since = int(match[2] or -1) if match else 0
        if match and since <= batch_id:
            newest[int(match[1])] = max(newest.get(int(match[1]), (-1, "")), (since, path))
    return {operator: path for operator, (_, path) in newest.items()}


def _is_in_one_partition(metadata: OperatorMetadata, operator: int, paths: set[str], read: Read) -> bool:
    if metadata.name == _GLOBAL_LIMIT:
        return True
    schema = f"state/{operator}/0/_metadata/schema"
    return schema in paths and read(schema).startswith(_NO_KEY)


def _count(text: str, about: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _torn(about, f"{PARTITIONS} is {text!r}")
    return int(text)


def _text(read: Read, path: str) -> str:
    try:
        return read(path).decode()
    except UnicodeDecodeError as error:
        raise _torn(path, str(error)) from None


def _torn(about: str, why: str) -> Corrupt:
    return Corrupt(f"{about} does not describe an operator's state: {why}.", code="workdir.state-file", about=about)
