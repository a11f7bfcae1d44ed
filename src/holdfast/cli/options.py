"""Arguments and options that verbs share: the address and how to open it, the output, and confirmation."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import click
import msgspec

from holdfast.base.addresses import kv_address, kv_path, scheme_of
from holdfast.checkpoints.manifest import MAX_U64
from holdfast.cli.json_output import JsonOutput
from holdfast.cli.output import Output
from holdfast.cli.terminal import terminal_output
from holdfast.errors import Invalid, NotFound
from holdfast.status.checkpoints import OpenedStore, open_existing

LATEST: Literal["latest"] = "latest"
_ID = re.compile(r"[0-9]{1,20}")
_DURATION = re.compile(r"([0-9]{1,9})\s*(s|sec|m|min|h|d|days?)?", re.ASCII)
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "day": 86400, "days": 86400}


class CheckpointId(click.ParamType[int | Literal["latest"]]):
    """An id, or `latest`: the checkpoint with the highest id, even if the pointer names another."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["latest"]:
        text = str(value)
        if text == LATEST:
            return LATEST
        if _ID.fullmatch(text) and 0 < int(text) <= MAX_U64:
            return int(text)
        self.fail(f"{text!r} is not a checkpoint id: a whole number from 1, or {LATEST!r}.", param, ctx)


class Duration(click.ParamType[float]):
    """A length of time such as `90s`, `15min`, `1h` or `2d`; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a length of time: write 90s, 15min, 1h or 2d.", param, ctx)
        return float(int(match[1]) * _SECONDS[match[2]])


class Setting(click.ParamType[tuple[str, str]]):
    """`key=value`. A value may be a secret, so a wrong one is never repeated in the message."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, setting = str(value).partition("=")
        if not equals or not key.strip():
            self.fail("it must be key=value, such as endpoint=http://localhost:9000.", param, ctx)
        return key.strip(), setting


Verb = Callable[..., int]
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
_DEBUG = click.option(
    "--debug", is_flag=True, help="Log every step, and show a traceback if something unexpected happens."
)


def on_store(verb: Verb) -> Verb:
    """Give a verb the address of a checkpoint store and the options that all verbs on one share.

    The verb is called with the opened store, the output, and its own parameters, and returns the exit code.
    """

    @click.argument("url")
    @_JSON
    @click.option(
        "--option",
        "settings",
        multiple=True,
        type=Setting(),
        metavar="KEY=VALUE",
        help="A setting of the object store, such as endpoint=http://localhost:9000; may be repeated. "
        "Without it the environment counts (AWS_..., GOOGLE_..., AZURE_...).",
    )
    @click.option(
        "--layout",
        type=click.Choice(["directory", "object"]),
        help="How the store is laid out; by default a path has directories, a bucket has objects.",
    )
    @_DEBUG
    @functools.wraps(verb)
    def with_store(
        *,
        url: str,
        as_json: bool,
        settings: tuple[tuple[str, str], ...],
        layout: Literal["directory", "object"] | None,
        debug: bool,
        **parameters: Any,
    ) -> int:
        output = choose_output(click.get_current_context().info_name or "", as_json)
        with log_as_notes(output, debug):
            opened: OpenedStore = open_existing(url, layout=layout, options=dict(settings))
            return verb(opened, output, **parameters)

    return with_store


class _KeyValueKind(msgspec.Struct, frozen=True):
    """A kind of key-value store that a verb takes, and the backends that a plain path to one may mean."""

    verb: str
    thing: str
    codes: str
    directory_scheme: str
    is_directory_of_one: Callable[[str], bool]
    addresses: str


def _is_rocksdb_index(path: str) -> bool:
    from holdfast.storage.kv.rocksdb_directory import MARKS  # not for every verb

    return os.path.isfile(os.path.join(path, MARKS["index"]))


_INDEX = _KeyValueKind(
    "sources",
    "an index",
    "index",
    "rocksdb",
    _is_rocksdb_index,
    "sqlite:///path, rocksdb:///path, redis://host or postgresql://host/database",
)
_PROJECTIONS = _KeyValueKind(
    "projections",
    "a store of events",
    "store",
    "file",
    lambda path: os.path.isdir(os.path.join(path, "manifest")),  # SlateDB's
    "sqlite:///path, s3://bucket/path, gs://, az:// or file:///path",
)


def on_index(verb: Verb) -> Verb:
    """Give a verb the address of an index, or of the one at a plain path, and the options that all verbs on one share.

    The verb is called with the address, the output, and its own parameters, and returns the exit code.
    """
    return _on_address(verb, _INDEX)


def on_projections(verb: Verb) -> Verb:
    """As `on_index`, for a store of events and projections."""
    return _on_address(verb, _PROJECTIONS)


def _on_address(verb: Verb, kind: _KeyValueKind) -> Verb:
    @click.argument("url")
    @_JSON
    @_DEBUG
    @functools.wraps(verb)
    def with_address(*, url: str, as_json: bool, debug: bool, **parameters: Any) -> int:
        output = choose_output(kind.verb, as_json)
        with log_as_notes(output, debug):
            return verb(_address_of(url, kind), output, **parameters)

    return with_address


def _address_of(given: str, kind: _KeyValueKind) -> str:
    """The full address: a plain path to a file is SQLite's; for a directory, its content decides."""
    if "://" in given:
        return given
    path = os.path.abspath(os.path.expanduser(given))
    if os.path.isfile(path):
        return kv_address("sqlite", path)
    if kind.is_directory_of_one(path):
        return kv_address(kind.directory_scheme, path)
    if os.path.isdir(path):
        file = f"the {kind.thing.split()[1]}'s file or address"
        raise Invalid(
            f"{path} is a directory, and not one of {kind.thing}.",
            code=f"{kind.codes}.not-ours",
            about=path,
            unchanged="everything",
            next_step=f"give {file}; the checkpoints of a pipeline are listed by: holdfast ls URL",
        )
    raise NotFound(
        f"{path} is not there.",
        code=f"{kind.codes}.none",
        about=path,
        unchanged="everything: looking makes nothing",
        next_step=f"check the path, or write {kind.addresses}",
    )


def index_address(given: str) -> str:
    """The address of the index that is meant: given as an address, or by its path."""
    return _address_of(given, _INDEX)


def envelope_store(address: str) -> str:
    """What the JSON envelope names: a path if the store is on disk, else its address."""
    return kv_path(address) if scheme_of(address) in ("sqlite", "rocksdb", "file") else address


def asks_first(dry_run: str) -> Callable[[Verb], Verb]:
    """The options of a verb that shows a plan before it changes anything; `dry_run` is the help of that option."""

    def with_options(verb: Verb) -> Verb:
        return click.option("--dry-run", is_flag=True, help=dry_run)(
            click.option("--yes", is_flag=True, help="Do not ask.")(verb)
        )

    return with_options


class Listing(click.Command):
    """`VERB URL` lists; `VERB NAME URL` is a command of its own. No option of the list takes a value."""

    def __init__(self, *args: Any, commands: Mapping[str, click.Command], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = commands

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        first = next((word for word in args if not word.startswith("-")), None)
        if first is not None and first in self.commands:
            args.remove(first)
            return self.commands[first].make_context(f"{info_name} {first}", args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def choose_output(command: str, as_json: bool) -> Output:
    """The output a person or a program gets."""
    if as_json:
        return JsonOutput(command, sys.stdout, sys.stderr)
    return terminal_output()


class _ToNotes(logging.Handler):
    """Log records as notes, with the text they quote escaped."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.note(record.getMessage())


@contextlib.contextmanager
def log_as_notes(output: Output, debug: bool) -> Iterator[None]:
    log = logging.getLogger("holdfast")
    handler = _ToNotes(output)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
