"""What a streaming query is, asked of Spark's analysed plan: its sources in order, its shape, its hash.

Spark's offset log names sources by their position; people name them by name. The plan joins the two.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.jvm import analysed_plan, identity_of, is_in_driver
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXPRESSION_ID = re.compile(r"#(\d+)(L?)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_IDENTITY = re.compile(r"@[0-9a-f]{3,}")
_SEEDS = (
    re.compile(r"(\b(?:rand|randn)\()-?\d+(?=\))"),
    re.compile(r"(\bSome\()-?\d+(?=\))"),
    re.compile(r"(\b(?:randstr|uniform)\([^()]*, )-?\d+(?=, true)"),
    re.compile(r"(\bSample [^,]+, [^,]+, (?:true|false), )-?\d+"),
)
"""Where Spark prints the seeds that it chooses itself."""
_ALL_FIELDS = 2**31 - 1


class Source(msgspec.Struct, frozen=True):
    """One source of a query, at its place in Spark's offset log."""

    name: str
    connector: str


class Query(msgspec.Struct, frozen=True):
    """What is durable about a query."""

    sources: tuple[Source, ...]
    plan: str
    """Its shape in words that are the same in every process."""
    is_deterministic: bool


def check_frame(frame: DataFrame) -> None:
    """Raise `Invalid` for a frame that cannot be run as a pipeline."""
    from pyspark.sql import DataFrame as AnyDataFrame

    if not isinstance(frame, AnyDataFrame):
        raise Invalid(
            f"A pipeline runs a DataFrame, not a {type(frame).__name__}.",
            code="pipeline.frame",
            next_step="pass the DataFrame that the query ends in, not its writeStream",
        )
    if not is_in_driver(frame):
        raise Invalid(
            "Holdfast runs inside the driver; a Spark Connect session has its driver elsewhere.",
            code="pipeline.connect",
            next_step="start the pipeline with a classic session: python FILE, holdfast run FILE or spark-submit FILE",
        )
    if not frame.isStreaming:
        raise Invalid(
            "The frame is not streaming: a pipeline reads with spark.readStream.",
            code="pipeline.not-streaming",
            unchanged="the store and every sink",
            next_step="read at least one source with spark.readStream",
        )


def describe_query(frame: DataFrame, named: Mapping[str, DataFrame]) -> Query:
    """Find out the sources of the query in the order of Spark's log, and its shape.

    A source without a name is called after its place. `Invalid` if a named one is no part of the query.
    """
    plan = analysed_plan(frame)
    names = {_identity_of_source(frame, name): name for name, frame in named.items()}
    found: list[Source] = []
    seen: dict[str, int] = {}
    for place, leaf in enumerate(_streaming_leaves(plan)):
        name = names.get(_identity(frame, leaf), f"source-{place + 1}")
        seen[name] = seen.get(name, 0) + 1
        found.append(Source(name if seen[name] == 1 else f"{name}#{seen[name]}", _connector(leaf)))
    unused = sorted(set(names.values()) - seen.keys())
    if unused:
        raise Invalid(
            f"Source {unused[0]!r} is not part of the query.",
            code="pipeline.unused-source",
            about=f"source {unused[0]!r}",
            unchanged="the store and every sink",
            next_step="build the query from the frame that pipeline.source(...) returned, or do not name that source",
        )
    return Query(tuple(found), normalised("\n".join(_lines(plan, 0))), bool(plan.deterministic()))


def normalised(plan: str) -> str:
    """A plan's text without what differs from process to process: expression ids, object identities, chosen seeds."""
    ids: dict[str, int] = {}
    text = _EXPRESSION_ID.sub(lambda found: f"#{ids.setdefault(found[1], len(ids))}{found[2]}", plan)
    text = _UUID.sub("<id>", text)
    text = _IDENTITY.sub("@", text)
    for seed in _SEEDS:
        text = seed.sub(r"\1", text)
    return text


def stable_hash(value: Any) -> int:
    """64 bits of plain values, the same in every process and on every machine."""
    text = msgspec.json.encode(value, order="deterministic")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def _streaming_leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaf for leaf in (leaves.apply(place) for place in range(leaves.size())) if leaf.isStreaming()]


def _identity_of_source(frame: DataFrame, name: str) -> int:
    leaves = _streaming_leaves(analysed_plan(frame))
    if len(leaves) != 1:
        raise Invalid(
            f"Source {name!r} is made of {len(leaves)} streams.",
            code="pipeline.source",
            about=f"source {name!r}",
            next_step="name each spark.readStream...load() on its own",
        )
    return _identity(frame, leaves[0])


def _identity(frame: DataFrame, leaf: Any) -> int:
    """The same for every use of one `load()`: Spark copies the leaf, but not what it reads from."""
    reads = leaf.dataSource() if leaf.getClass().getSimpleName() == "StreamingRelation" else leaf.table()
    return identity_of(frame, reads)


def _connector(leaf: Any) -> str:
    if leaf.getClass().getSimpleName() == "StreamingRelation":
        return str(leaf.dataSource().className())
    return str(leaf.sourceName())


def _lines(node: Any, depth: int) -> list[str]:
    """A plan, line by line. What is not streaming is only its columns: a reference table may be read at any version."""
    indent = "  " * depth
    if not node.isStreaming():
        return [f"{indent}Static {node.schema().simpleString()}"]
    children = node.children()
    lines = [f"{indent}{node.simpleString(_ALL_FIELDS)}"]
    for place in range(children.size()):
        lines += _lines(children.apply(place), depth + 1)
    return lines
