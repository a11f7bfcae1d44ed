"""Arguments and options that verbs share: the address and how to open it, the output, and confirmation."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from holdfast.base.addresses import is_local, kv_absolute, kv_address, kv_path, local_path, scheme_of
from holdfast.base.durations import read_duration
from holdfast.checkpoints.manifest import MAX_U64
from holdfast.cli.json_output import JsonOutput
from holdfast.cli.output import Output
from holdfast.cli.terminal import terminal_output
from holdfast.errors import Invalid, NotFound
from holdfast.status.checkpoints import OpenedStore, open_existing

if TYPE_CHECKING:
    from holdfast.storage.kv.store import Kind

LATEST: Literal["latest"] = "latest"
_ID = re.compile(r"[0-9]{1,20}")


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


class LengthOfTime(click.ParamType[float]):
    """A length of time such as `90s`, `15min`, `1h` or `2 days`, in seconds; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip()
        try:
            return read_duration(f"{text}s" if text.isdecimal() else value).seconds
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class Setting(click.ParamType[tuple[str, str]]):
    """`key=value`. The message of an error never repeats the input, because a value may be a secret."""

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


_SETTINGS = click.option(
    "--option",
    "settings",
    multiple=True,
    type=Setting(),
    metavar="KEY=VALUE",
    help="A setting of the object store, such as endpoint=http://localhost:9000; may be repeated. "
    "Without it the environment counts (AWS_..., GOOGLE_..., AZURE_...).",
)


def on_files(verb: Verb) -> Verb:
    """Decorator: add the address of a file sink, and how to open it.

    The verb is called with the address, the settings of its store, the output, and its own parameters.
    """

    @click.argument("url")
    @_JSON
    @_SETTINGS
    @_DEBUG
    @functools.wraps(verb)
    def with_files(
        *, url: str, as_json: bool, settings: tuple[tuple[str, str], ...], debug: bool, **parameters: Any
    ) -> int:
        output = choose_output(click.get_current_context().info_name or "", as_json)
        with log_as_notes(output, debug):
            return verb(url, dict(settings), output, **parameters)

    return with_files


def on_store(verb: Verb) -> Verb:
    """Decorator: add the address of a checkpoint store, and the options that all verbs on checkpoint stores share.

    The verb is called with the opened store, the output, and its own parameters, and returns the exit code.
    """

    @click.argument("url")
    @_JSON
    @_SETTINGS
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
    """A kind of key-value store, and the verb that takes its address."""

    verb: str
    thing: str
    kind: Kind
    """As its error codes begin."""


_INDEX = _KeyValueKind("sources", "an index", "index")
_PROJECTIONS = _KeyValueKind("projections", "a store of events", "store")
_ADDRESSES = (
    "sqlite:///path, rocksdb:///path, redis://host, postgresql://host/database, s3://bucket/path, gs://, az:// or "
    "file:///path (SlateDB)"
)


def on_index(verb: Verb) -> Verb:
    """Decorator: add the address or path of an index, and the options that all verbs on indexes share.

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
    """The full address: a path to a file is SQLite's; a path to a directory is recognised by its content."""
    if "://" in given or not is_local(given):
        return kv_absolute(given)
    path = local_path(given)
    if os.path.isfile(path):
        return kv_address("sqlite", path)
    scheme = _scheme_of_directory(path, kind.kind)
    if scheme is not None:
        return kv_address(scheme, path)
    if os.path.isdir(path):
        raise Invalid(
            f"{path} is a directory that does not hold {kind.thing}.",
            code=f"{kind.kind}.not-ours",
            about=path,
            unchanged="everything",
            next_step=f"give the path or the address of {kind.thing}; the checkpoints of a pipeline are listed by: "
            "holdfast ls URL",
        )
    raise NotFound(
        f"{path} is not there.",
        code=f"{kind.kind}.none",
        about=path,
        unchanged="everything: nothing is created for reading",
        next_step=f"check the path, or write {_ADDRESSES}",
    )


def _scheme_of_directory(path: str, kind: Kind) -> str | None:
    """The scheme of the store in a directory: RocksDB's has a mark of its kind, SlateDB's the same files for both."""
    from holdfast.storage.kv.rocksdb_directory import MARKS  # imported late: few verbs need it

    if os.path.isfile(os.path.join(path, MARKS[kind])):
        return "rocksdb"
    if os.path.isdir(os.path.join(path, "manifest")):
        return "file"
    return None


def envelope_store(address: str) -> str:
    """The `store` of a JSON envelope: a path if the store is on disk, else its address."""
    return kv_path(address) if scheme_of(address) in ("sqlite", "rocksdb", "file") else address


def asks_first(dry_run: str) -> Callable[[Verb], Verb]:
    """Decorator: add `--dry-run`, with the help text `dry_run`, and `--yes` to a verb that shows a plan first."""

    def with_options(verb: Verb) -> Verb:
        return click.option("--dry-run", is_flag=True, help=dry_run)(
            click.option("--yes", is_flag=True, help="Do not ask.")(verb)
        )

    return with_options


class Listing(click.Command):
    """`VERB URL` lists; `VERB NAME URL` runs the subcommand NAME. No option of the list may take a value."""

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
    """The output for a program (JSON) or for a person."""
    if as_json:
        return JsonOutput(command, sys.stdout, sys.stderr)
    return terminal_output()


class _ToNotes(logging.Handler):
    """Writes log records as notes; the output escapes the names that they quote."""

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
