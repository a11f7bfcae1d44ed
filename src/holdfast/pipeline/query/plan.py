"""The sources, the plan and the state of a streaming query, from Spark's plans.

Spark's offset log knows sources by position, users by name. The order of the plan's leaves connects the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.jvm import analysed_plan, identity_of, is_in_driver, optimised_plan, session_settings
from holdfast.errors import Invalid, one_line
from holdfast.pipeline.query.description import PINNED, PlanNode, SourceDescription, StatefulOperator
from holdfast.pipeline.query.plan_reader import (
    data_source,
    is_deterministic,
    plan_lines,
    read_leaf,
    read_nodes,
    read_state,
    read_watermarks,
    streaming_leaves,
    watermark_source,
)
from holdfast.pipeline.query.plan_text import normalised

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Query(msgspec.Struct, frozen=True):
    """The properties of a query that are the same in every run."""

    sources: tuple[SourceDescription, ...]
    plan: str
    """The plan as text, with every option of its sources: what the hashes of earlier releases are made of."""
    nodes: list[PlanNode]
    fingerprint: str
    """Of the plan without the options."""
    state: list[StatefulOperator]
    settings: dict[str, str]
    is_deterministic: bool
    watermark_source: int | None = None
    """The place of the source whose watermark the query's is; None if no source has one, or several have."""


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
    """Describe a query: its sources in the order of Spark's log, its plan, and what it keeps as state. Runs no job.

    A source without a name is named after its position. `Invalid` if a named source is not part of the query.
    """
    plan = analysed_plan(frame)
    nodes, fingerprint = read_nodes(plan)
    return Query(
        _named_sources(frame, plan, named),
        normalised("\n".join(plan_lines(plan))),
        nodes,
        fingerprint,
        _state(frame),
        session_settings(frame.sparkSession, PINNED),
        is_deterministic(plan),
        watermark_source(read_watermarks(plan)),
    )


def _named_sources(frame: DataFrame, plan: Any, named: Mapping[str, DataFrame]) -> tuple[SourceDescription, ...]:
    names = {_identity_of_source(frame, name): name for name, frame in named.items()}
    found: list[SourceDescription] = []
    seen: dict[str, int] = {}
    for place, leaf in enumerate(streaming_leaves(plan)):
        name = names.get(identity_of(frame, data_source(leaf)), f"source-{place + 1}")
        seen[name] = seen.get(name, 0) + 1
        read = read_leaf(leaf)
        unique = name if seen[name] == 1 else f"{name}#{seen[name]}"
        found.append(SourceDescription(unique, read.connector, read.options, read.columns))
    unused = sorted(set(names.values()) - seen.keys())
    if unused:
        raise Invalid(
            f"Source {unused[0]!r} is not part of the query.",
            code="pipeline.unused-source",
            about=f"source {unused[0]!r}",
            unchanged="the store and every sink",
            next_step="build the query from the frame that pipeline.source(...) returned, or do not name that source",
        )
    return tuple(found)


def _state(frame: DataFrame) -> list[StatefulOperator]:
    try:
        return read_state(optimised_plan(frame))
    except Exception as error:
        raise Invalid(
            f"Spark does not run this query: {one_line(error)}",
            code="pipeline.refused-by-spark",
            unchanged="the store and every sink",
            next_step="change the query",
        ) from error


def _identity_of_source(frame: DataFrame, name: str) -> int:
    leaves = streaming_leaves(analysed_plan(frame))
    if len(leaves) != 1:
        raise Invalid(
            f"Source {name!r} is made of {len(leaves)} streams.",
            code="pipeline.source",
            about=f"source {name!r}",
            next_step="name each spark.readStream...load() on its own",
        )
    return identity_of(frame, data_source(leaves[0]))
