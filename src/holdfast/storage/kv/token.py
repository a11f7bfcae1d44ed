"""How a commit whose reply was lost is settled, and how a rival is noticed: one random token in the index.

Every opening and every commit replaces the token by a new one, on the condition that it is still the one that was put
there last. So one comparison, made in the same atomic step as the commit, answers everything: nobody has opened the
index since, the server has not forgotten a commit, and this commit is not a second try of itself. An opening keeps the
token it replaces in a short list, so that the process before it can still find out what became of its last commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from holdfast.errors import Corrupt, Fenced, HoldfastError, OutcomeUnknown, Unavailable

KEPT = 16
"""So many openings later, a lost commit can still be settled."""

NOTHING_APPLIED = "the index; nothing of this session was applied"


class Finding(NamedTuple):
    """What the token in the index says."""

    standing: Literal["ours", "fenced", "gone", "set-back"]
    """The token is ours; it was when another process opened the index; there is none; it is one that never followed
    ours, so that the index was set back, replaced, or opened very often."""
    applied: bool | None
    """Whether the commit in question took effect; None if that cannot be told."""


def new_token() -> bytes:
    return secrets.token_bytes(16)


def judge(found: bytes | None, earlier: Sequence[bytes], ours: Mapping[bytes, bool]) -> Finding:
    """Judge the token `found`, and those that later openings replaced.

    `ours` are all tokens that we may have left there last, each with whether the commit in question is in force then.
    """
    if found is None:
        return Finding("gone", False)
    if found in ours:
        return Finding("ours", ours[found])
    last = next((token for token in earlier if token in ours), None)
    return Finding("set-back", None) if last is None else Finding("fenced", ours[last])


def refusal(finding: Finding, address: str) -> HoldfastError:
    """The error for a commit that was refused because the token is no longer ours, and that applied nothing."""
    if finding.standing == "fenced":
        return Fenced(
            "Another process has opened the index since; this one may no longer write to it.",
            code="index.fenced",
            about=address,
            unchanged=NOTHING_APPLIED,
            next_step="stop this process; opening the index again would take it from the other one",
        )
    found = "is gone" if finding.standing == "gone" else "is an older one, or another one"
    return Corrupt(
        f"The index on the server {found}: commits that were acknowledged are missing.",
        code="index.lost",
        about=address,
        unchanged=NOTHING_APPLIED,
        next_step="find out whether the server was emptied, restored or restarted without its data; then open the "
        "index again, and let its sources resume from what it holds",
    )


def not_applied(address: str, why: str) -> HoldfastError:
    """The error for a commit whose reply was lost, and that is now known not to have taken effect."""
    return Unavailable(
        f"The connection broke during the commit, which did not take effect: {why}",
        code="index.not-applied",
        about=address,
        unchanged=NOTHING_APPLIED,
        next_step="do the session again",
    )


def unknown(address: str, why: str) -> HoldfastError:
    return OutcomeUnknown(
        f"The commit may or may not have taken effect: {why}",
        code="index.outcome-unknown",
        about=address,
        next_step="once the server answers, read the checkpoints: what they say is in force, results included",
    )
