"""Every error Holdfast raises, sorted by what the caller does next.

`Conflict` re-read and try again · `Fenced` stop · `OutcomeUnknown` read back · `Unavailable` back off ·
`Corrupt` quarantine and walk back · `Invalid` fix the input · `NotFound` look elsewhere.
"""

from __future__ import annotations

from typing import ClassVar, Self


class HoldfastError(Exception):
    """An error with everything a person at a terminal needs.

    `code` is stable and machine-readable, `about` names the object, `unchanged` says what the failure
    left as it was, `next_step` is what to run or do now. `str()` joins them into plain sentences.
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
        """The same error, told of the larger thing in which it happened. Raise it from this one."""
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
    """Somebody else changed the object first. Re-read it and try again."""

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
    """The medium did not do its part: full, read-only, denied, timed out. Back off and try again."""

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
