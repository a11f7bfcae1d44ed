"""A pipeline in words and plain values, as the manifest keeps it. Pure; `query.compare` compares two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.base.codec import converted
from holdfast.base.redact import redacted
from holdfast.pipeline.query.plan_text import stable_hash
from holdfast.pipeline.query.source_options import is_tuning

RECORDED = "description"
"""Its key in the manifest, under `holdfast.runtime`."""
PINNED = (
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.stateStore.compression.codec",
    "spark.sql.streaming.stateStore.encodingFormat",
    "spark.sql.streaming.multipleWatermarkPolicy",
)
"""Settings that Spark takes from its offset log, whatever the session says."""


BETWEEN_SIDES = "|"
"""Stands between the types of the left and of the right side among the values of a join."""


class SourceDescription(msgspec.Struct, frozen=True):
    """One source, at its place in Spark's offset log."""

    name: str
    connector: str
    options: dict[str, str] = {}
    """Without secrets."""
    columns: str = ""

    @property
    def identity(self) -> list[Any]:
        """What it reads, however fast and from whichever broker."""
        options = {key.lower(): value for key, value in self.options.items() if not is_tuning(self.connector, key)}
        return [self.connector.lower(), options, self.columns]


class PlanNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operator of the analysed plan."""

    kind: str
    fingerprint: str
    """Of Spark's text for it, which is not kept: literals may be anybody's secrets."""
    keys: list[str] = []
    """What it groups, joins or deduplicates by."""
    functions: list[str] = []
    """Its aggregates, in order."""
    is_stateful: bool = False
    text: str = ""
    """For people; never recorded."""

    @property
    def identity(self) -> list[Any]:
        return [self.kind, self.fingerprint]


class StatefulOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one operator of the optimised plan keeps in Spark's state, as far as Spark refuses another."""

    kind: str
    detail: str = ""
    """The type of a join, the time mode or timeout of a user's own state."""
    keys: list[str] = []
    """The types of its keys."""
    values: list[str] = []
    """The types of its values, for an aggregation each with the function that they belong to."""
    sides: list[list[str]] = []
    """The names of the columns that a join keeps of its left and its right side. No part of the pipeline hash."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that makes a pipeline this pipeline, and what of it may change."""

    spark: str
    """The version of Spark that the plan was made with."""
    sources: list[SourceDescription]
    plan: list[PlanNode]
    plan_fingerprint: str
    """Of the whole text: which columns of which operator an expression means is not in the text of a line."""
    state: list[StatefulOperator]
    output_mode: str
    columns: str
    """The columns that the sinks get."""
    sinks: dict[str, dict[str, Any]]
    tables: list[str] = []
    operators: list[str] = []
    """The user's own objects on the driver."""
    settings: dict[str, str] = {}
    """The session's values of `PINNED`; in a manifest those that Spark has pinned."""

    def identity_hash(self) -> int:
        """The pipeline hash: the same in every process and on every machine, and for every harmless change."""
        return stable_hash(
            {
                "sources": [[source.name, *source.identity] for source in self.sources],
                "plan": self.plan_fingerprint,
                # Without names: the fingerprint has them, and earlier releases hashed none.
                "state": [msgspec.structs.replace(one, sides=[]) for one in self.state],
                "output_mode": self.output_mode,
                "columns": self.columns,
                "sinks": self.sinks,
                "tables": sorted(self.tables),
                "operators": sorted(self.operators),
            }
        )

    def recorded(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """As the manifest keeps it, with the settings in Spark's offset log."""
        pinned = {key: settings[key] for key in PINNED if key in settings}
        plan = [msgspec.structs.replace(node, text="") for node in self.plan]
        found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, plan=plan, settings=pinned))
        return found


def recorded_description(runtime: Mapping[str, Any]) -> Description | None:
    """The description in a manifest; None if it has none, or one of a release that describes other things."""
    try:
        return converted(runtime.get(RECORDED), Description)
    except msgspec.ValidationError:
        return None


def describe_sinks(sinks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the sinks say of themselves, without secrets that they should not have told."""
    return {name: redacted(dict(said)) for name, said in sinks.items()}
