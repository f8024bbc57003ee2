"""What is asked and what must come back, alike for the fake server, the stub model, fanfold and the baselines."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.protocols import ToolScope

SYSTEM = "You are a helper. Answer in one line."
_ROUNDS = re.compile(r"\[\[add\*(\d+)\]\]")


def prompt(index: int) -> str:
    return f"step {index}: say something about topic {index * 7919 % 1000} and keep it to one line"


def answer(asked: str) -> str:
    """The one right answer to `asked`, so that no mixed-up reply goes unseen."""
    return "h:" + hashlib.sha256(asked.encode()).hexdigest()[:16]


def specs(count: int) -> list[AgentStepSpec]:
    """That many one-turn steps."""
    return [
        AgentStepSpec(task_id=f"t{index}", agent="general", description="d", prompt=prompt(index), max_steps=2)
        for index in range(count)
    ]


def answers(asked: Sequence[AgentStepSpec]) -> list[str]:
    return [answer(spec.prompt) for spec in asked]


def outputs(outcomes: Sequence[StepOutcome]) -> list[str]:
    return [outcome.output for outcome in outcomes]


def loop_prompt(rounds: int) -> str:
    """A prompt on which the model asks for `add` in that many rounds, and then answers the last result."""
    return f"add numbers for a while [[add*{rounds}]]"


def rounds_of(asked: str) -> int:
    found = _ROUNDS.search(asked)
    return int(found[1]) if found else 0


class AddTool:
    """The tiny tool of the loops."""

    spec = ToolSpec(
        name="add",
        description="Add two numbers.",
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
        is_read_only=True,
    )

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        return ToolOutput(output=str(args["a"] + args["b"]))


async def bounded(count: int, limit: int, ask: Callable[[str], Awaitable[str]]) -> None:
    """The fan-out that a script writes by hand: every prompt asked, `limit` at once, every answer checked."""
    free = asyncio.Semaphore(limit)

    async def one(index: int) -> None:
        async with free:
            assert await ask(prompt(index)) == answer(prompt(index))

    await asyncio.gather(*(one(index) for index in range(count)))
