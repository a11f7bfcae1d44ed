"""Every error Holdfast raises, sorted by what the caller does next.

`Conflict` re-read and try again · `Fenced` stop · `OutcomeUnknown` read back · `Unavailable` back off ·
`Corrupt` quarantine and walk back · `Invalid` fix the input · `NotFound` look elsewhere.
"""

from __future__ import annotations

import re
from typing import ClassVar, Self


class HoldfastError(Exception):
    """An error with everything a person at a terminal needs.

    `code` is stable and machine-readable, `about` names the object, `unchanged` lists what the failure did not
    change, `next_step` is the command to run or the thing to do now. `str()` joins them into plain sentences.
    """

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "unexpected"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        about: str | None = None,
        unchanged: str | None = None,
        next_step: str | None = None,
    ) -> None:
        self.message = message
        self.code = code or self.default_code
        self.about = about
        self.unchanged = unchanged
        self.next_step = next_step
        super().__init__(self._sentence())

    def within(self, where: str, *, unchanged: str | None = None) -> Self:
        """The same error with its message prefixed by `where`. Raise it `from` this one."""
        return type(self)(
            f"{where}: {self.message}",
            code=self.code,
            about=self.about,
            unchanged="; ".join(filter(None, (unchanged, self.unchanged))) or None,
            next_step=self.next_step,
        )

    def _sentence(self) -> str:
        text = self.message
        if self.about and self.about not in text:
            text = f"{self.about}: {text}"
        if self.unchanged:
            text += f" Unchanged: {self.unchanged}."
        if self.next_step:
            text += f" Next: {self.next_step}."
        return text


class Conflict(HoldfastError):
    """Another process changed the object first. Re-read it and try again."""

    exit_code = 4
    default_code = "conflict"


class Fenced(HoldfastError):
    """Another writer owns this pipeline or this checkpoint id. Stop: trying again cannot succeed."""

    exit_code = 5
    default_code = "fenced"


class OutcomeUnknown(HoldfastError):
    """The request may or may not have taken effect. Read back before doing anything else."""

    exit_code = 7
    default_code = "outcome-unknown"


class Unavailable(HoldfastError):
    """A disk, server or service did not do its part: full, read-only, denied, timed out. Back off and try again."""

    exit_code = 8
    default_code = "unavailable"


class Corrupt(HoldfastError):
    """Stored bytes are not what was written. Quarantine them and walk back to the checkpoint before."""

    exit_code = 6
    default_code = "corrupt"


class Invalid(HoldfastError):
    """The request itself is wrong; nothing was tried. Fix the input."""

    exit_code = 2
    default_code = "invalid"


class NotFound(HoldfastError):
    """There is no such object."""

    exit_code = 3
    default_code = "not-found"


def code_of(error: BaseException) -> str:
    """The stable code of an error of ours; for any other the name of its class."""
    return error.code if isinstance(error, HoldfastError) else type(error).__name__


QUOTED = 300
"""At most so many characters of a foreign error are quoted in a message of ours."""

_PY4J = "An error occurred while calling "
_JAVA_FRAME = re.compile(r"at [\w.$/<>]+\(.*\)$|\.\.\. \d+ more$|Caused by: ")
_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s]*@|\b(password=)(?:'[^']*'|\S+)", re.IGNORECASE)


def one_line(error: BaseException | str, limit: int = QUOTED, *, kind: bool = False) -> str:
    """The one line of a foreign error that says what went wrong, safe to quote in a message of ours.

    For a Python traceback it is the last line, for a Java stack trace the exception, for Py4J's report the line after
    "An error occurred while calling", otherwise the first line; the name of the class if the error has no message.
    `kind` prefixes the name of the class.
    Guarantees: one line of at most `limit` characters, and "…" if it was cut; control characters escaped; no
    credentials of an address and no `password=`. Does not guarantee that it contains no other secret: the errors of
    libraries that quote rows need a rule of their own, as in `holdfast.base.postgres`.
    """
    name = "" if isinstance(error, str) else type(error).__name__
    lines = [line for line in map(str.strip, str(error).splitlines()) if line]
    message = " ".join(_message_line(lines).split())
    message = _CREDENTIALS.sub(lambda found: f"{found[1]}" if found[1] else f"{found[2]}…", message)
    if not message:
        text = name or "no message"
    elif kind and name:
        text = f"{name}: {message}"
    else:
        text = message
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "…"


def _message_line(lines: list[str]) -> str:
    if not lines:
        return ""
    if any(line.startswith("Traceback") or "Traceback (most recent call last)" in line for line in lines[:3]):
        return next((line for line in reversed(lines) if not _JAVA_FRAME.match(line)), lines[0])
    if lines[0].startswith(_PY4J) and len(lines) > 1:
        return lines[1].removeprefix(": ")
    found = next((line for line in lines if "Exception: " in line), lines[0])
    if found.endswith(":"):  # "Exception thrown in awaitResult:": the message is that of its cause
        found = next((line for line in lines if line.startswith("Caused by: ")), found)
    return found.removeprefix("Caused by: ")
