"""How much of the time that models take is lost around them, on models that take the same time in every run.

* The fan-out: 1,000 steps of 50 ms, 64 at once. No scheduler does better than 16 rounds of 50 ms, since 1,000 / 64 is
  more than 15: that is the ideal. What comes out against the often quoted 1,000 / 64 x 50 ms stands beside it.
* The pipeline: 200 items through 3 stages of 5 to 200 ms, drawn from a seed, all chains at once. Its ideal is the
  longest chain. The stages are `async def`: a plain function would get a thread of its own.

The baselines are bare asyncio with the same waits, and bare aiohttp on the same server, which holds each answer back
for 50 ms.
"""

import asyncio
import math
import random
import re
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from benchmarks.baselines import bare_aiohttp
from benchmarks.costs import Cost, Variant, in_turns
from benchmarks.fake_server import fake_server
from benchmarks.opened import durable_session
from benchmarks.table import Row
from benchmarks.workload import answers, outputs, specs
from fanfold import AgentStepSpec, ModelClient
from fanfold.contracts.messages import ModelRequest
from fanfold.orchestration.pipeline import Stage, StageContext
from fanfold.testing.scripted import Reply, ScriptedModel, newest_text

STEPS, AT_ONCE, STEP_MS = 1_000, 64, 50
SPECS = specs(STEPS)
PROMPTS = [spec.prompt for spec in SPECS]
ANSWERS = answers(SPECS)
"""Of the fake server; the scripted model repeats what it is asked. Known beforehand: to check is not what is timed."""
IDEAL_S = math.ceil(STEPS / AT_ONCE) * STEP_MS / 1000
QUOTED_S = STEPS / AT_ONCE * STEP_MS / 1000
ITEMS, STAGES, SHORTEST_MS, LONGEST_MS, SEED = 200, 3, 5, 200, 20240101
REPETITIONS = 7
_WAIT = re.compile(r"wait (\d+) ms")


async def measure() -> list[Row]:
    return [*await _scripted(), *await _over_http(), await _pipeline()]


# ---- fan-out ----


async def _scripted() -> list[Row]:
    costs = await _fan_outs(slow_model(), _waited, PROMPTS)
    return _rows("on a scripted model", costs, "bare asyncio", least=97)


async def _over_http() -> list[Row]:
    async with AsyncExitStack() as stack:
        base_url = stack.enter_context(fake_server(STEP_MS))
        costs = await _fan_outs(base_url, await bare_aiohttp(stack, base_url), ANSWERS)
    return _rows("over HTTP", costs, "bare aiohttp", least=85)


async def _fan_outs(
    model: str | ModelClient, ask: Callable[[str], Awaitable[str]], expected: Sequence[str]
) -> Mapping[str, Sequence[Cost]]:
    async with durable_session(model, AT_ONCE) as (session, _):

        async def plain() -> None:
            assert outputs(await session.parallel_async(SPECS)) == expected

        async def durable() -> None:
            assert outputs(await session.parallel_resumable_async(SPECS, "benchmark")) == expected

        async def bare() -> None:
            free = asyncio.Semaphore(AT_ONCE)

            async def step(asked: str) -> str:
                async with free:
                    return await ask(asked)

            assert await asyncio.gather(*(step(asked) for asked in PROMPTS)) == expected

        variants: dict[str, Variant] = {"fan-out": plain, "durable fan-out": durable, "bare": bare}
        return await in_turns(variants, REPETITIONS)


def _rows(where: str, costs: Mapping[str, Sequence[Cost]], against: str, *, least: float) -> list[Row]:
    quoted = f"n/{AT_ONCE} x {STEP_MS} ms"
    return [
        _row(
            f"{name} {where}, {STEPS:,} steps of {STEP_MS} ms, {AT_ONCE} at once, of the ideal {IDEAL_S:g} s",
            costs[name],
            costs["bare"],
            against,
            ideal_s=IDEAL_S,
            least=least,
            beside=f" ({_percent(costs[name], QUOTED_S):.3g} % of {quoted})",
        )
        for name in ("fan-out", "durable fan-out")
    ]


def _row(
    what: str,
    ours: Sequence[Cost],
    bare: Sequence[Cost],
    against: str,
    *,
    ideal_s: float,
    least: float,
    beside: str = "",
) -> Row:
    figure = _percent(ours, ideal_s)
    return Row(
        what=what,
        fanfold=f"{figure:.3g} %{beside}",
        baseline=f"{_percent(bare, ideal_s):.3g} % {against}",
        wall=" / ".join(f"{statistics.median(cost.wall_s for cost in costs):.3g} s" for costs in (ours, bare)),
        figure=figure,
        unit=" %",
        limit=least,
        is_floor=True,
    )


def _percent(costs: Sequence[Cost], ideal_s: float) -> float:
    return 100 * ideal_s / statistics.median(cost.wall_s for cost in costs)


# ---- pipeline ----


async def _pipeline() -> Row:
    draw = random.Random(SEED)
    waits = [[draw.randint(SHORTEST_MS, LONGEST_MS) for _ in range(STAGES)] for _ in range(ITEMS)]
    stages = [_stage(number) for number in range(STAGES)]

    async def chain(item: int) -> str:
        answered = ""
        for number in range(STAGES):
            answered = await _waited(_stage_prompt(number, item, waits[item][number], answered))
        return answered

    async with durable_session(slow_model(), ITEMS) as (session, _):
        items = [{"index": index, "waits": waits[index]} for index in range(ITEMS)]

        async def ours() -> None:
            ended = await session.pipeline_async(items, stages)
            assert outputs([outcome for outcome in ended if outcome is not None]) == expected

        async def bare() -> list[str]:
            return await asyncio.gather(*(chain(item) for item in range(ITEMS)))

        expected = await bare()
        costs = await in_turns({"ours": ours, "bare": bare}, REPETITIONS)
    ideal_s = max(map(sum, waits)) / 1000
    what = f"pipeline on a scripted model, {ITEMS} items x {STAGES} stages, of the longest chain's {ideal_s:g} s"
    return _row(what, costs["ours"], costs["bare"], "bare asyncio", ideal_s=ideal_s, least=97)


def _stage(number: int) -> Stage:
    async def stage(context: StageContext) -> AgentStepSpec:
        item, previous = context["item"], context["previous"]
        answered = "" if previous is None else previous.output
        asked = _stage_prompt(number, item["index"], item["waits"][number], answered)
        return AgentStepSpec(task_id=f"{item['index']}-{number}", agent="general", prompt=asked)

    return stage


def _stage_prompt(number: int, item: int, wait_ms: int, answered: str) -> str:
    return f"wait {wait_ms} ms: stage {number} of item {item} after ({answered})"


# ---- waiting ----


def slow_model() -> ScriptedModel:
    """Repeats what it is asked, after `STEP_MS` or what the prompt says."""

    def script(request: ModelRequest) -> Reply:
        asked = newest_text(request)
        return Reply(text=asked, delay=_wait_s(asked))

    return ScriptedModel(script)


async def _waited(asked: str) -> str:
    await asyncio.sleep(_wait_s(asked))
    return asked


def _wait_s(asked: str) -> float:
    found = _WAIT.match(asked)
    return (STEP_MS if found is None else int(found[1])) / 1000
