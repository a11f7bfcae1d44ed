"""Plans as people see them."""

from __future__ import annotations

from holdfast.operations.plan import Plan


def text(plan: Plan) -> str:
    return "\n".join(str(line) for line in plan.lines())
