"""What a script costs around its agents: 10,000 `agent()` calls on the scripted model, 64 at once.

* Live: against the same 10,000 steps through `parallel_resumable`, which records them too. A script here, and the same
  text in the sandbox.
* Replayed: a resume of the finished run, which runs nothing, against the bare decoding of its journal's lines with
  the standard library's JSON.
* Launch: how long `launch` takes while eight agents of another run are at work.
"""

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.costs import Variant, in_turns
from benchmarks.opened import durable_session
from benchmarks.stub_model import StubModel
from benchmarks.table import Row, ratio_row
from benchmarks.workload import answer, answers, outputs, prompt, specs
from fanfold import Session
from fanfold.contracts.messages import ModelReply, ModelRequest
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.protocols import DeltaSink
from fanfold.testing.scripted import ScriptedModel, newest_text

CALLS, AT_ONCE, REPETITIONS, LAUNCHES = 10_000, 64, 5, 200
LIMITS = WorkflowLimits(concurrency=AT_ONCE, max_agents=1_000_000, max_items=1_000_000)
SPECS = specs(CALLS)
ANSWERS = answers(SPECS)
WHAT = f"workflow of {CALLS:,} agent() calls"
TEXT = """
META = {"name": "many", "description": "asks what it is given"}

async def main(ctx, args):
    return await ctx.parallel([(lambda each=each: ctx.agent(each, max_steps=2)) for each in args["prompts"]])
"""
ARGS = {"prompts": [prompt(index) for index in range(CALLS)]}


async def many(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([(lambda each=each: ctx.agent(each, max_steps=2)) for each in args["prompts"]])


async def measure() -> list[Row]:
    return [*await _calls(), await _launches()]


async def _calls() -> list[Row]:
    model = ScriptedModel(lambda request: answer(newest_text(request)))
    async with durable_session(model, AT_ONCE, inline_workflows=True) as (session, _):
        session.workflows.register({"name": "host", "description": "the same"}, many)

        async def live(**what: Any) -> str:
            result = await session.workflows.run_async(args=ARGS, limits=LIMITS, **what)
            assert result.status == "completed", result
            assert result.value == ANSWERS
            return result.run_id

        async def host() -> None:
            model.requests.clear()
            await live(name="host")

        async def inline() -> None:
            model.requests.clear()
            await live(script=TEXT)

        async def resumable() -> None:
            model.requests.clear()
            assert outputs(await session.parallel_resumable_async(SPECS, "benchmark")) == ANSWERS

        run_id = await live(name="host")
        path = Path(session.workspace, ".a3s", "workflow-runs", f"{run_id}.journal.jsonl")

        async def replayed() -> None:
            result = await session.workflows.run_async(resume_from_run_id=run_id, limits=LIMITS)
            assert (result.counts.cached, result.counts.launched) == (CALLS, 0)

        async def decoded() -> None:
            for line in path.read_bytes().splitlines():
                json.loads(line)

        variants: dict[str, Variant] = {"host": host, "inline": inline, "resumable": resumable}
        costs = await in_turns(variants, REPETITIONS) | await in_turns(
            {"replayed": replayed, "decoded": decoded}, REPETITIONS
        )
    per = (CALLS, CALLS)
    return [
        ratio_row(f"{WHAT}, per call", costs["host"], costs["resumable"], "`parallel_resumable`", per=per, limit=1.5),
        ratio_row(
            f"{WHAT} in the sandbox, per call",
            costs["inline"],
            costs["resumable"],
            "`parallel_resumable`",
            per=per,
            limit=4.5,
            by_wall=True,
        ),
        ratio_row(
            f"{WHAT}, replayed, per call",
            costs["replayed"],
            costs["decoded"],
            "bare decoding of its journal",
            per=per,
            limit=3,
        ),
    ]


class _SlowModel(StubModel):
    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        await asyncio.sleep(0.02)
        return await super().generate(request, deltas)


async def _launches() -> Row:
    async with durable_session(_SlowModel(), 8) as (session, _):
        running = await _busy(session)
        session.workflows.register({"name": "empty", "description": "does nothing"}, _nothing)
        took: list[float] = []
        for _ in range(LAUNCHES):
            begin = time.perf_counter()
            launch = await session.workflows.launch_async("empty")
            took.append(1000 * (time.perf_counter() - begin))
            await session.workflows.wait_async(launch.run_id)
        await session.workflows.stop_async(running)
    worst = statistics.quantiles(took, n=100)[98]
    return Row(
        what=f"launch of a workflow while 8 agents run, 99th percentile of {LAUNCHES}",
        fanfold=f"{worst:.3g} ms (median {statistics.median(took):.3g} ms)",
        figure=worst,
        unit=" ms",
        limit=20,
    )


async def _busy(session: Session) -> str:
    """A run whose eight agents are at work for as long as it is let."""

    async def busy(ctx: Any, args: Any) -> Any:
        async def lane(number: int) -> None:
            for step in range(100_000):
                await ctx.agent(f"{number} {step}")

        await ctx.parallel([lambda number=number: lane(number) for number in range(8)])

    session.workflows.register({"name": "busy", "description": "works"}, busy)
    launch = await session.workflows.launch_async("busy", limits=WorkflowLimits(max_agents=1_000_000))
    return launch.run_id


async def _nothing(ctx: Any, args: Any) -> Any:
    return None
