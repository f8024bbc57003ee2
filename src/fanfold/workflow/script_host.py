"""ScriptHost: all that a script may ask of its run, wherever the script itself runs (here or in the sandbox).

`where` are places of `lanes`. What these methods raise is raised at the script's call: `WorkflowAgentError` and
`WorkflowInputError` for what went wrong there, and what `is_ending` knows for what ends the run.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

import msgspec

from fanfold.contracts.record import JsonValue
from fanfold.errors import BudgetExhaustedError, InternalError, StorageError, WorkflowInputError


class RunHaltedError(BaseException):
    """The run ends here: it was stopped or paused, or its breaker opened. No script can go on behind it, so it is no
    `Exception` that one might catch."""


def is_ending(error: BaseException) -> bool:
    """`parallel` and `pipeline` never make a None of it: they wait for what runs, and raise it."""
    is_refusal = isinstance(error, WorkflowInputError) and error.code in ("agent_cap", "nondeterministic")
    return is_refusal or isinstance(error, BudgetExhaustedError | StorageError | InternalError | RunHaltedError)


class SlotFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of `parallel`, or an item of `pipeline`, that became None."""

    where: str
    """Its lane."""
    index: int
    stage: int | None = None
    code: str
    message: str
    label: str | None = None
    """Of the agent that failed, when it was one."""
    line: int | None = None


class ScriptHost(Protocol):
    @property
    def max_items(self) -> int: ...

    def agent(
        self,
        where: str,
        phase: str | None,
        prompt: object,
        options: Mapping[str, Any],
        *,
        settles: bool = False,
    ) -> Awaitable[JsonValue]:
        """The answer of the call that stands at `where`: recorded, or from an agent that runs now. Durable by then,
        unless it `settles`: then nobody may see it before `settled` has returned.

        Options: `schema`, `label`, `phase` (wins over the lane's), `model`, `agent_type`, `max_steps`, `isolation`,
        `timeout_ms`, `retries`, `share`, `repeat`. Anything else is refused as `bad_call`.
        """
        ...

    async def settled(self) -> None:
        """Return when all answers are durable. Raises StorageError."""
        ...

    async def workflow(self, where: str, phase: str | None, name: object, args: object) -> JsonValue:
        """What the nested workflow returns. Raises what goes wrong inside."""
        ...

    def phase(self, title: object) -> str:
        """Announce a phase, once per run and title; returns the title."""
        ...

    def log(self, message: object) -> None: ...

    def slot_failed(self, failure: SlotFailure) -> None: ...

    def check_items(self, verb: str, count: int) -> None:
        """Raises WorkflowInputError, `fanout_limit`, before anything is launched."""
        ...

    def now_ms(self) -> int:
        """When the run was first launched, Unix ms: the same in each attempt."""
        ...

    def random(self, where: str) -> float:
        """0 <= x < 1, by run and place: the same in each attempt."""
        ...

    def uuid(self, where: str) -> str: ...

    def budget(self) -> tuple[int | None, int]:
        """(limit in tokens, spent by all attempts)."""
        ...
