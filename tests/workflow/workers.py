"""A run that has everything in it that a crash can hit, and agents that tell what they were asked, and when."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fanfold.contracts.codec import encode_json
from fanfold.contracts.facts import Fact, UserMessaged
from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.errors import FanfoldError
from fanfold.kernel.run_journal import read_run_journal
from fanfold.protocols import AgentExecutor, EventSink, StepFacts, WorkflowFiles
from fanfold.workflow.agents import BLOB_BYTES
from tests.workflow.rig import META, TOKENS, Rig, Team, failure

ROUNDS = 2
"""Turns of a worker before the one that answers."""

Script = Callable[[Any, Any], Awaitable[Any]]
Asked = tuple[str, int]
"""A prompt, as it is whoever answered before it, and which turn of its agent."""


class Workers(Team):
    """An executor whose answers tell in which life they were given; prompts that begin with `work` take more turns,
    each of which is kept."""

    def __init__(self, life: str, fails: Callable[[str], bool] = lambda prompt: False, pace: float = 0) -> None:
        super().__init__()
        self.life = life
        self.pace = pace
        self.turns: Counter[Asked] = Counter()
        self._fails = fails

    def within(self, facts: StepFacts) -> AgentExecutor:
        return _Kept(self, facts)

    async def answered(self, spec: AgentStepSpec, kept: StepFacts | None) -> StepOutcome:
        prompt, known = whoever(spec.prompt), 0
        rounds = ROUNDS if prompt.startswith("work") else 0
        if kept is not None and kept.recorded and not kept.has_failed:
            kept.go_on()
            known = len(kept.recorded)
        for turn in range(known, rounds):
            self.turns[prompt, turn] += 1
            await asyncio.sleep(self.pace)
            assert kept is not None
            await kept.record([Fact(turn + 1, f"m-{turn}", None, UserMessaged(f"turn {turn} of {prompt}"))])
        self.turns[prompt, rounds] += 1
        if self._fails(prompt):
            return failure(spec)
        tag = f"|{self.life}.{self.turns.total()}"
        text = "x" * (BLOB_BYTES if prompt == "long" else 0) + spec.prompt + tag
        usage = Usage(prompt_tokens=TOKENS, total_tokens=TOKENS)
        structured = None if spec.output_schema is None else {"text": text}
        return StepOutcome(
            task_id=spec.task_id, agent=spec.agent, output=text, success=True, structured=structured, usage=usage
        )


class _Kept:
    def __init__(self, workers: Workers, facts: StepFacts) -> None:
        self._workers = workers
        self._facts = facts

    def concurrency_hint(self) -> int:
        return self._workers.hint

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        try:
            return await self._workers.answered(spec, self._facts)
        except FanfoldError as error:  # as a session's executor does: its caller has to know better
            return failure(spec, str(error), error_code=error.code)


def whoever(text: str) -> str:
    """Without the tags that tell who has answered."""
    return re.sub(r"\|\w+\.\d+", "", text)


def tags(value: object) -> set[str]:
    return set(re.findall(r"\|\w+\.\d+", encode_json(value).decode()))


# ---- the run --------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "required": ["text"]}


async def inner(ctx: Any, args: Any) -> Any:
    def side(name: str) -> Callable[[], Awaitable[Any]]:
        return lambda: ctx.pipeline(
            [1, 2],
            lambda place: ctx.agent(f"work {name} {place}"),
            lambda found, place: ctx.agent(f"check {place}: {found}", schema=SCHEMA),
        )

    return await ctx.parallel([side("left"), side("right")])


def edition(number: int) -> Script:
    """In the second one everything stands at another place."""

    async def outer(ctx: Any, args: Any) -> Any:
        if number == 2:
            await ctx.parallel([])
        seen = await ctx.workflow("inner", {})
        votes = await ctx.parallel([lambda: ctx.agent("vote")] * 3)
        long = await ctx.agent("long")
        return {
            "seen": seen,
            "votes": votes,
            "long": [len(whoever(long)), long.strip("x")],
            "sum": await ctx.agent("sum"),
        }

    return outer


def opened(place: Path, team: Team, number: int = 2, files: WorkflowFiles | None = None) -> Rig:
    rig = Rig(place, team, files=files, limits=WorkflowLimits(concurrency=4))
    rig.register(edition(number))
    rig.register(inner, name="inner")
    return rig


async def finished_run(place: Path, files: WorkflowFiles | None = None) -> WorkflowResult:
    """A run of two attempts: in the first one some agents failed, for the second one its script was edited."""
    first = Workers("a", lambda prompt: prompt in ("work left 2", "sum"))
    earlier = await opened(place, first, 1, files).workflows.run_async(META["name"])
    assert earlier.status == "failed"  # by `sum`, that nobody caught
    result, _ = await gone_on(place, earlier.run_id, "b", files)
    assert result.status == "completed", result
    return result


async def gone_on(
    place: Path, run_id: str, life: str, files: WorkflowFiles | None = None, **more: Any
) -> tuple[WorkflowResult, Workers]:
    workers = Workers(life)
    result = await opened(place, workers, files=files).workflows.run_async(resume_from_run_id=run_id, **more)
    return result, workers


def journal_of(place: Path, run_id: str) -> Path:
    return place / ".a3s/workflow-runs" / f"{run_id}.journal.jsonl"


def recorded(journal: bytes, run_id: str) -> tuple[Counter[Asked], list[str]]:
    """(The turns that it has, the answers that it has)."""
    lines = journal.split(b"\n")[:-1]
    view = read_run_journal(lines, run_id)
    turns: Counter[Asked] = Counter()
    answers: list[str] = []
    for entry in view.entries.values():
        if entry.is_superseded:
            continue
        prompt = whoever(json.loads(bytes(entry.call))["prompt"])
        rounds = ROUNDS if prompt.startswith("work") else 0
        known = rounds + 1 if entry.is_answer else 0 if entry.has_ended else len(entry.turns)
        turns.update((prompt, turn) for turn in range(known))
        if entry.is_answer:
            assert entry.result is not None
            answers += re.findall(r"\|\w+\.\d+", bytes(entry.result.value).decode())
    return turns, answers


ALL: Counter[Asked] = Counter(
    [
        *(
            (f"work {side} {place}", turn)
            for side in ("left", "right")
            for place in (1, 2)
            for turn in range(ROUNDS + 1)
        ),
        *((f"check {place}: work {side} {place}", 0) for side in ("left", "right") for place in (1, 2)),
        *[("vote", 0)] * 3,
        ("long", 0),
        ("sum", 0),
    ]
)
