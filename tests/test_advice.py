"""Advice that can be followed: every command and option that an error or a page names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast.cli.app import VERBS, cli

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"(?<!install )(?<!schema )\bholdfast ([a-z][a-z-]*)((?: [^;,)`\n]*)?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
NO_SUCH_ACTION = re.compile(r"\b(rewind|roll back|fork|replay) the pipeline|\brecover to\b")
"""Actions that a pipeline does not have."""


def command(verb: str, rest: str) -> click.Command:
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    below = getattr(found, "commands", {})
    first = rest.split()[0] if rest.split() else ""
    chosen: click.Command = below.get(first, found)
    return chosen


def options(of: click.Command) -> set[str]:
    return {"--help", *(name for parameter in of.params for name in parameter.opts)}


EVERY_OPTION = {
    name
    for verb in VERBS
    for one in (command(verb, ""), *getattr(command(verb, ""), "commands", {}).values())
    for name in options(one)
}


def problems(text: str) -> Iterator[str]:
    """What a text tells people to use and they cannot."""
    for verb, rest in COMMAND.findall(text):
        if verb not in VERBS:
            yield f"there is no verb {verb}"
            continue
        if verb == "run":
            rest = rest.partition(".py")[0]  # what follows the file is the file's own
        for option in set(OPTION.findall(rest)) - options(command(verb, rest)):
            yield f"holdfast {verb} has no {option}"
    if found := NO_SUCH_ACTION.search(text):
        yield f"nothing can {found[0]}"


def text_of(node: ast.expr) -> str:
    """What an expression says, with … for what is not known before it is evaluated."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(map(text_of, parts))
        case ast.FormattedValue(value):
            return text_of(value)
        case ast.BinOp(left, ast.Add(), right):
            return text_of(left) + text_of(right)
        case ast.BoolOp(values=values):
            return "; ".join(map(text_of, values))
        case ast.IfExp(body=body, orelse=orelse):
            return f"{text_of(body)}; {text_of(orelse)}"
        case ast.Call(func=ast.Attribute(attr="hint"), args=[verb, *rest]):
            return " ".join(["holdfast", text_of(verb), "…", *map(text_of, rest)])
    return "…"


def advice() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.keyword(arg="next_step", value=value):
                    yield where, text_of(value)
                case ast.Assign(targets=[ast.Attribute(attr="next_step")], value=value):
                    yield where, text_of(value)
                case ast.Call(func=ast.Attribute(attr="hint")):
                    yield where, text_of(node)


ADVICE = list(advice())


def test_the_advice_is_found() -> None:
    texts = [text for _, text in ADVICE]
    assert len(texts) > 250
    assert "holdfast ls …" in texts
    assert any("holdfast recover … --dry-run finds" in text for text in texts)


@pytest.mark.parametrize("text", ["holdfast rewind URL", "see: holdfast ls URL --since 1h", "rewind the pipeline"])
def test_wrong_advice_is_noticed(text: str) -> None:
    assert list(problems(text))


def test_errors_name_commands_and_options_that_exist() -> None:
    assert [f"{where}: {problem}" for where, text in ADVICE for problem in problems(text)] == []


def test_errors_name_options_that_some_verb_has() -> None:
    named = {(where, option) for where, text in ADVICE for option in OPTION.findall(text)}
    assert {(where, option) for where, option in named if option not in EVERY_OPTION} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_commands_and_options_that_exist(page: Path) -> None:
    text = page.read_text()
    shown = [line for line in text.splitlines() if line.startswith("$ holdfast")]
    assert [problem for one in (*shown, *re.findall(r"`(holdfast [^`]*)`", text)) for problem in problems(one)] == []


def test_help_names_commands_and_options_that_exist() -> None:
    texts = [command(verb, "").help or "" for verb in VERBS]
    assert [problem for text in texts for problem in problems(text.replace("'", ";"))] == []
