"""What has changed between two descriptions of a pipeline, and what follows from each difference. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.base.shortened import shortened
from holdfast.pipeline.query.change import Difference
from holdfast.pipeline.query.description import (
    Description,
    PlanNode,
    SourceDescription,
    StatefulOperator,
)
from holdfast.pipeline.query.join_sides import are_sides_known, compare_sides
from holdfast.pipeline.query.source_options import FILES, can_read_last_files, have_same_offsets, is_tuning

LONGEST = 120


def compare(before: Description, now: Description) -> list[Difference]:
    """Every difference between the pipeline of a checkpoint and the one to be started, in words.

    Two versions of Spark print and optimise one query in two ways. Between them only what is the same in both is
    compared: sources, keys and types of the state, sinks.
    """
    is_same_spark = before.spark == now.spark
    found = [*_sources(before.sources, now.sources), *_state(before, now, is_same_spark)]
    worst = {one.consequence for one in found}
    if is_same_spark and "reset" not in worst:  # else nothing is kept, and the rest of the plan is no news
        found += _plan(before, now, is_explained="accept" in worst)
    elif not is_same_spark:
        told = f"Spark was {before.spark} and is {now.spark}"
        found.append(Difference(told, "filters and projections cannot be compared across versions", "harmless"))
    if before.output_mode != now.output_mode:
        what = f"the output mode was {before.output_mode} and is {now.output_mode}"
        found.append(Difference(what, "the state is kept, the sinks get other rows from now on", "accept"))
    if before.columns != now.columns:
        what = f"the sinks get {_column_changes(before.columns, now.columns)}"
        found.append(Difference(what, "every sink must take them", "accept"))
    found += _sinks(before.sinks, now.sinks)
    found += _names("reference table", before.tables, now.tables, "it is read from now on")
    found += _names("operator", before.operators, now.operators, "it begins with its initial state")
    if before.state and now.state:
        found += _settings(before.settings, now.settings)
    return found


# Sources: Spark's offset log knows them by place


def _sources(before: Sequence[SourceDescription], now: Sequence[SourceDescription]) -> Iterator[Difference]:
    by_name = list(source_names([source.name for source in before], [source.name for source in now]))
    yield from by_name
    if any(one.consequence == "reset" for one in by_name):
        return
    identities = [one.identity for one in before], [one.identity for one in now]
    if identities[0] != identities[1] and sorted(map(str, identities[0])) == sorted(map(str, identities[1])):
        yield _changed_places([_shown(one) for one in before], [_shown(one) for one in now])
        return
    for one, other in zip(before, now, strict=True):
        yield from _source(one, other)


def source_names(before: Sequence[str], now: Sequence[str]) -> Iterator[Difference]:
    """What the names alone tell: another number of sources, another order, a source under another name."""
    if len(before) != len(now):
        for name in [name for name in now if name not in before]:
            yield _other_number(f"source {name!r} is new", len(before), len(now))
        for name in [name for name in before if name not in now]:
            yield _other_number(f"source {name!r} is gone", len(before), len(now))
        if set(before) == set(now):
            yield _other_number("a source is used another number of times", len(before), len(now))
    elif sorted(before) == sorted(now):
        if list(before) != list(now):
            yield _changed_places(before, now)
    else:
        for one, other in zip(before, now, strict=True):
            if one != other:
                what = f"source {one!r} is gone, and source {other!r} has its place"
                yield Difference(what, "it goes on from the offsets of the one before it", "accept")


def _other_number(what: str, before: int, now: int) -> Difference:
    follows = f"Spark's log has offsets of {_count(before, 'source')}, the query has {now}"
    return Difference(what, follows, "reset", code="pipeline.needs-reset")


def _changed_places(before: Sequence[str], now: Sequence[str]) -> Difference:
    what = f"the sources were {', '.join(before)} in this order, and are {', '.join(now)} now"
    follows = "each would go on from the offsets of the one that had its place"
    return Difference(what, follows, "reset", code="pipeline.source-order")


def _source(before: SourceDescription, now: SourceDescription) -> Iterator[Difference]:
    about = f"source {now.name!r}"
    what = f"{about} was read as {before.connector} and is read as {now.connector}"
    if not have_same_offsets(before.connector, now.connector):
        yield Difference(what, "the one cannot go on from offsets of the other", "reset", code="pipeline.needs-reset")
        return
    if before.connector.lower() != now.connector.lower():
        yield Difference(what, "it goes on from its offsets, with what it reads from now on", "accept")
    for option, old, new in _options(before.options, now.options):
        what = f"{about}: {option} {_was_and_is(old, new)}"
        if is_tuning(now.connector, option):
            yield Difference(what, "not a part of what the query is", "harmless")
        elif option.lower() == "path" and now.connector.lower() in FILES and not can_read_last_files(old, new):
            yield _needs_reset(what, "Spark reads its last files once more, and only below this path")
        else:
            yield Difference(what, "it goes on from its offsets, with what it reads from now on", "accept")
    if before.columns != now.columns:
        what = f"{about} has {_column_changes(before.columns, now.columns)}"
        yield Difference(what, "rows are read with these columns from now on", "accept")


def _options(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str | None, str | None]]:
    """The options that differ, as they are written now; Spark does not tell `a` from `A`."""
    spelled = {name.lower(): name for options in (before, now) for name in options}
    old, new = ({name.lower(): value for name, value in options.items()} for options in (before, now))
    for name in sorted(spelled):
        if old.get(name) != new.get(name):
            yield spelled[name], old.get(name), new.get(name)


# State: what Spark refuses, and what it would silently mix up


def _state(before: Description, now: Description, is_same_spark: bool) -> Iterator[Difference]:
    kinds = [one.kind for one in before.state], [one.kind for one in now.state]
    if kinds[0] != kinds[1]:
        gone, new = _only(*kinds), _only(*reversed(kinds))
        parts = [f"{_a(kind)} is new" for kind in new] + [f"{_a(kind)} is gone" for kind in gone]
        what = "; ".join(parts) or f"the stateful operators were {_listed(kinds[0])} and are {_listed(kinds[1])}"
        yield _needs_reset(what, "Spark's state belongs to the operators that wrote it")
        return
    keys = _stateful_nodes(before), _stateful_nodes(now)
    for place, (one, other) in enumerate(zip(before.state, now.state, strict=True)):
        names = [nodes[place].keys if len(nodes) == len(before.state) else [] for nodes in keys]
        functions = [nodes[place].functions if len(nodes) == len(before.state) else [] for nodes in keys]
        yield from _operator(one, other, names, functions, is_same_spark)


def _operator(
    before: StatefulOperator,
    now: StatefulOperator,
    names: list[list[str]],
    functions: list[list[str]],
    is_same_spark: bool,
) -> Iterator[Difference]:
    the = f"the {now.kind}"
    if before.detail != now.detail:
        yield _needs_reset(f"{the} was {before.detail} and is {now.detail}", "its state is kept in another form")
    if names[0] != names[1]:
        what = f"{the} was by {_listed(names[0])} and is by {_listed(names[1])}"
        yield _needs_reset(what, "its state is kept by the keys before")
    elif before.keys != now.keys:
        what = f"the keys of {the} had the types {_listed(before.keys)} and have {_listed(now.keys)}"
        yield _needs_reset(what, "Spark cannot find its state by them")
    if are_sides_known(before, now):
        yield from compare_sides(before, now, is_same_spark=is_same_spark)
    elif before.values != now.values:
        yield _values(the, before, now, functions, is_same_spark)
    elif functions[0] != functions[1] and sorted(functions[0]) == sorted(functions[1]):
        what = f"{the} computed {_listed(functions[0])} and computes {_listed(functions[1])}"
        yield _needs_reset(what, "Spark knows them by their order and would mix them up")


def _values(
    the: str, before: StatefulOperator, now: StatefulOperator, functions: list[list[str]], is_same_spark: bool
) -> Difference:
    gone, new = _only(*functions), _only(*reversed(functions))
    if gone or new:
        what = "; ".join(
            [f"{the} has {one} in addition" for one in new] + [f"{the} has no {one} any more" for one in gone]
        )
    else:
        what = f"{the} kept {_listed(before.values)} and would keep {_listed(now.values)}"
    if is_same_spark:
        return _needs_reset(what, "the state has other values than it would need")
    return Difference(what, "another version of Spark may keep the same state in another form", "accept")


def _stateful_nodes(description: Description) -> list[PlanNode]:
    """The stateful operators as they were written: as many as are optimised, unless the optimiser removed one."""
    return [node for node in description.plan if node.is_stateful]


def _needs_reset(what: str, follows: str) -> Difference:
    return Difference(what, follows, "reset", code="pipeline.needs-reset")


# The rest of the plan: Spark goes on from the same state


def _plan(before: Description, now: Description, *, is_explained: bool) -> Iterator[Difference]:
    follows = "the state is kept, rows are computed in this way from now on"
    old, new = ([node.identity for node in one.plan] for one in (before, now))
    matcher = difflib.SequenceMatcher(None, [str(one) for one in old], [str(one) for one in new], autojunk=False)
    parts: list[str] = []
    for tag, first, last, start, end in matcher.get_opcodes():
        if tag != "equal":
            parts += _replaced(before.plan[first:last], now.plan[start:end])
    for what in parts:
        yield Difference(what, follows, "accept")
    if not parts and not is_explained and before.plan_fingerprint != now.plan_fingerprint:
        yield Difference("an expression means another column of the same name", follows, "accept")


def _replaced(gone: Sequence[PlanNode], new: Sequence[PlanNode]) -> Iterator[str]:
    left = list(gone)
    for node in new:
        if node.kind == "Source":
            continue
        same = next((one for one in left if one.kind == node.kind), None)
        if same is not None:
            left.remove(same)
        yield f"{shortened(node.text, LONGEST)} is {'new' if same is None else 'not as it was'}"
    for node in left:
        if node.kind != "Source":
            yield f"{_a(node.kind)} is gone"


# Sinks, and what else has a name


def _sinks(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> Iterator[Difference]:
    yield from sink_names(before, now)
    for name in [name for name in now if name in before]:
        for setting in sorted({*before[name], *now[name]}):
            old, new = before[name].get(setting), now[name].get(setting)
            if old != new:
                what = f"sink {name!r}: {setting} {_was_and_is(old, new)}"
                yield Difference(what, "what it has stays where it is", "accept")


def sink_names(before: Any, now: Any) -> Iterator[Difference]:
    """Sinks that are new or gone."""
    for name in sorted({*now} - {*before}):
        yield Difference(f"sink {name!r} is new", "it gets the epochs from now on", "accept")
    for name in sorted({*before} - {*now}):
        yield Difference(f"sink {name!r} is gone", "it gets no more epochs", "accept")


def _names(kind: str, before: Sequence[str], now: Sequence[str], follows: str) -> Iterator[Difference]:
    for name in sorted({*now} - {*before}):
        yield Difference(f"{kind} {name!r} is new", follows, "accept")
    for name in sorted({*before} - {*now}):
        yield Difference(f"{kind} {name!r} is gone", "it has no part in what follows", "accept")


def _settings(pinned: Mapping[str, str], session: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted(pinned.keys() & session.keys()):
        if pinned[name] != session[name]:
            what = f"this session has {name}={session[name]}"
            yield Difference(what, f"Spark goes on with {pinned[name]}, with which its state began", "harmless")


# Words


def _column_changes(before: str, now: str) -> str:
    old, new = _columns(before), _columns(now)
    parts = [f"a new column {name} {new[name]}" for name in new if name not in old]
    parts += [f"no column {name} any more" for name in old if name not in new]
    parts += [f"{name} as {new[name]}, which was {old[name]}" for name in new if name in old and old[name] != new[name]]
    return ", ".join(parts) or "the same columns in another order"


def _columns(struct: str) -> dict[str, str]:
    """The top-level columns of `struct<a:int,b:struct<c:int,d:int>>`."""
    found, depth, start = [], 0, 0
    inner = struct.removeprefix("struct<").removesuffix(">")
    for place, letter in enumerate(inner):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            found.append(inner[start:place])
            start = place + 1
    return dict(_column(text) for text in [*found, inner[start:]] if text)


def _column(text: str) -> tuple[str, str]:
    name, _, kind = text.partition(":")
    return name, kind


def _was_and_is(old: Any, new: Any) -> str:
    if old is None:
        return f"was not set and is {new}"
    return f"was {old} and is not set any more" if new is None else f"was {old} and is {new}"


def _shown(source: SourceDescription) -> str:
    """A source that has no name of its own, by what it reads."""
    options = [f"{name}={value}" for name, value in source.options.items() if not is_tuning(source.connector, name)]
    return " ".join([source.connector, *options])


def _only(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """What the first has and the second has not, as often as it has it more."""
    rest = list(other)
    return [item for item in one if not _taken(rest, item)]


def _taken(rest: list[str], item: str) -> bool:
    if item in rest:
        rest.remove(item)
        return True
    return False


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items) or "nothing"


def _a(kind: str) -> str:
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
