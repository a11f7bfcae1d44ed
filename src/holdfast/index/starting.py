"""How to begin with an index that may hold the results of another configuration. Carried out by `Index`."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from holdfast.errors import Invalid
from holdfast.index.arguments import check_u64, refused

OnChange = Literal["fail", "reset", "accept"]
Action = Literal["first", "resume", "accept", "reset", "refuse"]


class Start(Struct, frozen=True):
    """What a start does with an index."""

    action: Action
    """`first`: there is nothing; `resume`: the same configuration; the others as the policy for a change says."""
    resumes: bool
    """Whether sources go on from their checkpoints; if not, they begin at their beginning."""
    writes_hash: bool
    why: str


def decide_start(
    *, stored: int | None, wanted: int, has_anything: bool, policy: OnChange, is_persistent: bool
) -> Start:
    """What to do, given the hash that is stored, the one that is wanted, and whether there is anything to lose.

    Results without a hash are taken for those of another configuration: nobody knows what they were made with. A reset
    that was cut short is finished by opening the index, before anybody comes here.
    """
    check_u64("config_hash", wanted)
    if policy not in get_args(OnChange):
        raise refused("on_change", f"{policy!r} is none of 'fail', 'reset' and 'accept'")
    if not has_anything:
        return Start("first", False, stored != wanted, "the index is empty")
    if not is_persistent:
        return Start("reset", False, True, "the index is volatile, so sources start over, and so does it")
    if stored == wanted:
        return Start("resume", True, False, "the configuration is the one it was")
    if stored is None:
        why = "the index holds data, and no record of the configuration it was made with"
    else:
        why = f"the configuration has changed: its hash was {stored:016x} and is {wanted:016x} now"
    if policy == "accept":
        return Start("accept", True, True, why)
    return Start("reset" if policy == "reset" else "refuse", False, policy == "reset", why)


def refuse(start: Start, address: str) -> Invalid:
    return Invalid(
        f"{address}: {start.why}.",
        code="config.changed",
        about=address,
        unchanged="the index",
        next_step='start with the old configuration, with on_change="reset" to empty the index and compute it anew, '
        'or with on_change="accept" if the results are right for both',
    )
