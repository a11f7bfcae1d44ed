"""The writer's token: a random value in the store that fences other writers, and settles commits with lost replies.

Every opening replaces the token by a new one. So does every commit, on the condition that the stored token is the one
that this process wrote last. One comparison, in the same atomic step as the commit, thus shows three things: no other
process has opened the store since, the server has not lost a commit, and this commit is not applied a second time. An
opening keeps the token it replaces in a short list, so that the previous process can still find out whether its last
commit took effect.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from holdfast.errors import Corrupt, Fenced, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.storage.kv.errors import nothing_applied
from holdfast.storage.kv.store import Kind

KEPT = 16
"""A lost commit can still be settled after this many later openings."""


class TokenCheck(NamedTuple):
    """The result of comparing the token in the store."""

    owner: Literal["ours", "fenced", "gone", "set-back"]
    """`ours`: the token is ours. `fenced`: it was ours until another process opened the store. `gone`: there is none.
    `set-back`: it never followed ours, so the store was restored from a copy, replaced, or opened very often."""
    applied: bool | None
    """Whether the commit in question took effect; None if unknown."""


def new_token() -> bytes:
    return secrets.token_bytes(16)


def check_token(found: bytes | None, earlier: Sequence[bytes], ours: Mapping[bytes, bool]) -> TokenCheck:
    """Compare the stored token with ours. `earlier` has the tokens that later openings replaced, newest first.

    `ours` maps each token that this process may have written last to a flag: whether the commit in question took effect
    if that token is the one found.
    """
    if found is None:
        return TokenCheck("gone", False)
    if found in ours:
        return TokenCheck("ours", ours[found])
    last = next((token for token in earlier if token in ours), None)
    return TokenCheck("set-back", None) if last is None else TokenCheck("fenced", ours[last])


def refusal(check: TokenCheck, kind: Kind, address: str) -> HoldfastError:
    """The error for a commit that was refused because the token is no longer ours, and that applied nothing."""
    if check.owner == "fenced":
        return Fenced(
            f"Another process has opened the {kind} since; this one may no longer write to it.",
            code=f"{kind}.fenced",
            about=address,
            unchanged=nothing_applied(kind),
            next_step=f"stop this process; opening the {kind} again would take it from the other one",
        )
    found = "is gone" if check.owner == "gone" else "is an older one, or another one"
    return Corrupt(
        f"The {kind} on the server {found}: commits that were acknowledged are missing.",
        code=f"{kind}.lost",
        about=address,
        unchanged=nothing_applied(kind),
        next_step="find out whether the server was emptied, restored or restarted without its data; then open the "
        f"{kind} again, and "
        + ("let its sources resume from what it holds" if kind == "index" else "go on from there"),
    )


def not_applied(kind: Kind, address: str, why: str) -> HoldfastError:
    """The error for a commit whose reply was lost, and that is now known not to have taken effect."""
    return Unavailable(
        f"The connection broke during the commit, which did not take effect: {why}",
        code=f"{kind}.not-applied",
        about=address,
        unchanged=nothing_applied(kind),
        next_step=f"do the {'session' if kind == 'index' else 'transaction'} again",
    )


def unknown(kind: Kind, address: str, why: str) -> HoldfastError:
    return OutcomeUnknown(
        f"The commit may or may not have taken effect: {why}",
        code=f"{kind}.outcome-unknown",
        about=address,
        next_step="once the server answers, "
        + (
            "read the checkpoints: they and the results show what was committed"
            if kind == "index"
            else "read the stream's version or the projection's position"
        ),
    )
