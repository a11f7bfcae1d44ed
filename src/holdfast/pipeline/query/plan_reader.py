"""Spark's logical plans as plain data: sources, operators, and what the stateful ones keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.base.redact import redacted
from holdfast.pipeline.query.description import BETWEEN_SIDES, PlanNode, StatefulOperator
from holdfast.pipeline.query.plan_text import fingerprint, without_ids, without_literals

ALL_FIELDS = 2**31 - 1
_NAMES_ONLY = ("SubqueryAlias", "View")
"""Operators that only give names to what is below them."""
_WATERMARK = "EventTimeWatermark"
_KINDS = {
    "Aggregate": "aggregation",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication within the watermark",
    "Join": "join",
    "GlobalLimit": "limit",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPandas": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
}
"""The operators that keep state if their input is a stream, under the names that people know."""


class SourceLeaf(msgspec.Struct, frozen=True):
    """A source in a plan."""

    connector: str
    options: dict[str, str]
    columns: str


def streaming_leaves(plan: Any) -> list[Any]:
    """The sources of a plan, Java objects, in the order of Spark's offset log."""
    return [leaf for leaf in _each(plan.collectLeaves()) if leaf.isStreaming()]


def data_source(leaf: Any) -> Any:
    """What a leaf reads: one Java object for every use of one `load()`, although Spark copies the leaf."""
    return leaf.dataSource() if _is_v1(leaf) else leaf.table()


def read_leaf(leaf: Any) -> SourceLeaf:
    """A source with its options, without secrets."""
    if _is_v1(leaf):
        source = leaf.dataSource()
        connector, options = str(source.className()), _pairs(source.options())
    else:
        connector, options = str(leaf.sourceName()), dict(leaf.extraOptions().asCaseSensitiveMap())
    shown = {str(key): str(value) for key, value in options.items() if not str(key).startswith("__")}
    return SourceLeaf(connector, redacted(shown), str(leaf.schema().catalogString()))


def is_deterministic(plan: Any) -> bool:
    """Whether the same input gives the same rows each time, as far as Spark knows."""
    return bool(plan.deterministic())


def plan_lines(node: Any, depth: int = 0) -> list[str]:
    """The plan, line by line. A static part is only its columns: a reference table may be read at any version."""
    indent = "  " * depth
    if not node.isStreaming():
        return [f"{indent}Static {node.schema().simpleString()}"]
    lines = [f"{indent}{node.simpleString(ALL_FIELDS)}"]
    for child in _each(node.children()):
        lines += plan_lines(child, depth + 1)
    return lines


def read_nodes(plan: Any) -> tuple[list[PlanNode], str]:
    """The operators of the analysed plan from the top down, and the fingerprint of the whole."""
    nodes: list[PlanNode] = []
    lines: list[str] = []
    for node, depth in _operators(plan, 0):
        kind, line = _text(node)
        lines.append(f"{depth} {line}")
        is_stateful = _is_stateful(node)
        keys, functions = _keys_and_functions(node) if is_stateful else ([], [])
        nodes.append(PlanNode(kind, fingerprint(line), keys, functions, is_stateful, without_ids(line)))
    return nodes, fingerprint("\n".join(lines))


def read_state(plan: Any) -> list[StatefulOperator]:
    """The stateful operators of the optimised plan, from the top down.

    The optimised one: an aggregate that nothing reads, or a column that a join need not keep, is not in the state.
    """
    return [_state_of(node) for node, _ in _operators(plan, 0) if _is_stateful(node)]


def read_watermarks(plan: Any) -> list[list[int]]:
    """Of each watermark in the analysed plan the sources below it, by their places among `streaming_leaves`."""
    found: list[list[int]] = []
    _places(plan, 0, found)
    return found


def watermark_source(watermarks: list[list[int]]) -> int | None:
    """The only source that any watermark is made of, so that the query's watermark is its own. Pure.

    None if there is none. None, too, if there are several: Spark tells their lowest (or highest), and no source's own.
    """
    sources = {place for below in watermarks for place in below}
    return sources.pop() if len(sources) == 1 else None


def _places(node: Any, first: int, watermarks: list[list[int]]) -> list[int]:
    """The places of the sources below a node, the first of which has the place `first`; notes those of watermarks."""
    if not node.isStreaming():
        return []
    children = _each(node.children())
    below: list[int] = [] if children else [first]
    for child in children:
        below += _places(child, first + len(below), watermarks)
    if _class(node) == _WATERMARK:
        watermarks.append(below)
    return below


def _operators(node: Any, depth: int) -> Iterator[tuple[Any, int]]:
    is_named_only = _class(node) in _NAMES_ONLY
    if not is_named_only:
        yield node, depth
    if node.isStreaming():
        for child in _each(node.children()):
            yield from _operators(child, depth if is_named_only else depth + 1)


def _text(node: Any) -> tuple[str, str]:
    """An operator's kind and line. A source's options are not in it: they are compared one by one."""
    if not node.isStreaming():
        return "Static", f"Static {node.schema().catalogString()}"
    if node.children().isEmpty():
        return "Source", f"Source [{node.output().mkString(', ')}]"
    return _class(node), str(node.simpleString(ALL_FIELDS))


def _is_stateful(node: Any) -> bool:
    kind = _class(node)
    if kind == "Join":
        return bool(node.left().isStreaming() and node.right().isStreaming())
    return kind in _KINDS and bool(node.isStreaming())


def _keys_and_functions(node: Any) -> tuple[list[str], list[str]]:
    kind = _class(node)
    if kind == "Aggregate":
        functions = [_function(str(one.sql())) for one in _aggregates(node)]
        return [_name(key) for key in _each(node.groupingExpressions())], functions
    if kind == "Join":
        return sorted(_equalities(node)), []
    return [_name(key) for key in _grouping(node)], []


def _function(sql: str) -> str:
    """An aggregate without its literals. They leave a mark: two aggregates that differ in them are told apart."""
    shown = without_literals(sql)
    return shown if shown == sql else f"{shown} #{fingerprint(sql)[:8]}"


def _state_of(node: Any) -> StatefulOperator:
    kind = _class(node)
    if kind == "Aggregate":
        functions = [one.aggregateFunction() for one in _aggregates(node)]
        values = [" ".join([one.prettyName(), *_types(one.aggBufferAttributes())]) for one in functions]
        return StatefulOperator(_KINDS[kind], keys=_types(node.groupingExpressions()), values=values)
    if kind == "Join":
        sides = [node.left().output(), node.right().output()]
        types = [*_types(sides[0]), BETWEEN_SIDES, *_types(sides[1])]
        names = [[_name(column) for column in _each(side)] for side in sides]
        return StatefulOperator(_KINDS[kind], detail=str(node.joinType().sql()), values=types, sides=names)
    keys = [_type(key) for key in _grouping(node)]
    if kind == "FlatMapGroupsInPandasWithState":
        state = str(node.stateType().catalogString())
        return StatefulOperator(_KINDS[kind], detail=str(node.timeout().toString()), keys=keys, values=[state])
    if kind.startswith("TransformWithState"):
        mode = f"{node.timeMode().toString()}, {node.outputMode().toString()}"
        return StatefulOperator(_KINDS[kind], detail=mode, keys=keys)
    return StatefulOperator(_KINDS[kind], keys=keys)


def _grouping(node: Any) -> list[Any]:
    kind = _class(node)
    if kind.startswith("Deduplicate"):
        return _each(node.keys())
    if kind.startswith("TransformWithStateIn"):
        return _each(node.leftAttributes())
    if kind.startswith(("FlatMapGroups", "TransformWithState")):
        return _each(node.groupingAttributes())
    return []


def _aggregates(node: Any) -> list[Any]:
    """The aggregate expressions in the order of their buffers, each once; with DISTINCT and FILTER."""
    found: dict[str, Any] = {}
    for expression in _each(node.aggregateExpressions()):
        for one in _within(expression, "AggregateExpression"):
            found.setdefault(str(one.toString()), one)
    return list(found.values())


def _within(expression: Any, kind: str) -> Iterator[Any]:
    if _class(expression) == kind:
        yield expression
    else:
        for child in _each(expression.children()):
            yield from _within(child, kind)


def _equalities(join: Any) -> Iterator[str]:
    """The columns that a join compares for equality. Spark keeps its state by them."""
    if join.condition().isDefined():
        for one in _conjuncts(join.condition().get()):
            sides = one.left(), one.right()
            if not any(side.references().isEmpty() for side in sides):
                yield " = ".join(_name(side) for side in sides)


def _conjuncts(expression: Any) -> Iterator[Any]:
    kind = _class(expression)
    if kind == "And":
        yield from _conjuncts(expression.left())
        yield from _conjuncts(expression.right())
    elif kind in ("EqualTo", "EqualNullSafe"):
        yield expression


def _name(expression: Any) -> str:
    """A column's name, or what is computed, without texts in it."""
    if _class(expression) == "AttributeReference":
        return str(expression.name())
    return without_literals(str(expression.sql()))


def _types(expressions: Any) -> list[str]:
    return [_type(one) for one in _each(expressions)]


def _type(expression: Any) -> str:
    """Without whether it may be null, which Spark does not mind."""
    return str(expression.dataType().catalogString())


def _is_v1(leaf: Any) -> bool:
    return _class(leaf) == "StreamingRelation"


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(items: Any) -> list[Any]:
    return [items.apply(place) for place in range(items.size())]


def _pairs(options: Any) -> dict[str, str]:
    pairs = options.toSeq()
    return {str(pair._1()): str(pair._2()) for pair in _each(pairs)}
