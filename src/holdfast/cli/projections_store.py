"""A store of events and projections as `holdfast projections` finds it: by its address, or by its path."""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.options import Verb, choose_output, log_as_notes
from holdfast.cli.output import Output
from holdfast.errors import Invalid, NotFound

VERB = "projections"


def on_projections(verb: Verb) -> Verb:
    """Give a verb the address of a store and the options that all verbs on one share.

    The verb is called with the address, the output, and its own parameters, and returns the exit code.
    """

    @click.argument("url")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
    @click.option("--debug", is_flag=True, help="Log every step, and show a traceback if something unexpected happens.")
    @functools.wraps(verb)
    def with_address(*, url: str, as_json: bool, debug: bool, **parameters: Any) -> int:
        output = choose_output(VERB, as_json)
        with log_as_notes(output, debug):
            return verb(address_of(url), output, **parameters)

    return with_address


def asking_first(verb: Verb) -> Verb:
    """The options of a verb that shows a plan before it changes anything."""
    options: list[Callable[[Verb], Verb]] = [
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    ]
    for option in reversed(options):
        verb = option(verb)
    return verb


def address_of(given: str) -> str:
    """The address that is meant: a plain path is that of a store in SQLite if it is a file, in SlateDB if it is its
    directory."""
    if "://" in given:
        return given
    path = os.path.abspath(os.path.expanduser(given))
    quoted = urllib.parse.quote(os.fsencode(path))
    if os.path.isfile(path):
        return f"sqlite://{quoted}"
    if os.path.isdir(os.path.join(path, "manifest")):
        return f"file://{quoted}"
    if os.path.isdir(path):
        raise Invalid(
            f"{path} is a directory, and not one of a store of events.",
            code="store.not-ours",
            about=path,
            unchanged="everything",
            next_step="give the store's file or address; the checkpoints of a pipeline are listed by: holdfast ls URL",
        )
    raise NotFound(
        f"{path} is not there.",
        code="store.none",
        about=path,
        unchanged="everything: looking makes nothing",
        next_step="check the path, or write sqlite:///path, s3://bucket/path, gs://, az:// or file:///path",
    )


def store_of(address: str) -> str:
    """What an envelope names: on disk a path, as for checkpoints."""
    if address.startswith(("sqlite://", "file://")):
        return urllib.parse.unquote(address.partition("://")[2])
    return address


def warn_of_fencing(output: Output, address: str) -> None:
    """Say what opening the store to write will do to others, where it does something."""
    if not address.startswith(("sqlite://", "memory://")):
        output.note("whoever has this store open will be able to write nothing more to it: it takes one process")
