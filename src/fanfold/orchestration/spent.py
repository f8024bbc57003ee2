"""What a step had used and left when it was cut off, on its way from the executor to whoever cut it.

A cancelled step has no outcome. What goes from it to its caller is the cancellation itself, so that carries the figure.
"""

import msgspec

from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import Worktree


class Spent(msgspec.Struct, frozen=True):
    usage: Usage
    cost_usd: float | None = None
    worktree: Worktree | None = None


def carry_spent(stop: BaseException, spent: Spent) -> None:
    """Have the cancellation `stop` tell it."""
    stop.__dict__["fanfold_spent"] = spent


def spent_by(stop: BaseException | None) -> Spent | None:
    """What it tells, if it does."""
    return None if stop is None else stop.__dict__.get("fanfold_spent")
