"""A thousand one-turn agents through `session.parallel`, against the loop that a script would write for it."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks.baselines import bare_aiohttp, bare_openai_sdk
from benchmarks.costs import Variant, in_turns
from benchmarks.fake_server import fake_server
from benchmarks.opened import agent_on
from benchmarks.stub_model import StubModel
from benchmarks.table import Row, ratio_row
from benchmarks.workload import answer, answers, bounded, outputs, specs
from fanfold import ModelClient

STEPS = 1_000
AT_ONCE = 64
REPETITIONS = 5
REPETITIONS_WITHOUT_NETWORK = 15
SPECS = specs(STEPS)


async def measure() -> list[Row]:
    return [*await _over_http(), await _without_network()]


async def _over_http() -> list[Row]:
    async with AsyncExitStack() as stack:
        base_url = stack.enter_context(fake_server())
        variants = {
            "ours": await _ours(stack, base_url),
            "aiohttp": _bare(await bare_aiohttp(stack, base_url)),
        }
        sdk = await bare_openai_sdk(stack, base_url)
        if sdk is None:
            print("the openai SDK is not installed: its baseline is left out")
        else:
            variants["sdk"] = _bare(sdk)
        costs = await in_turns(variants, REPETITIONS)
    what, per = f"fan-out over HTTP, {AT_ONCE} at once, per step", (STEPS, STEPS)
    rows = [ratio_row(what, costs["ours"], costs["aiohttp"], "bare aiohttp", per=per, limit=2, aim=1.3)]
    if sdk is not None:
        rows.append(ratio_row(what, costs["ours"], costs["sdk"], "bare openai SDK", per=per, limit=0.2))
    return rows


async def _without_network() -> Row:
    async def no_op(asked: str) -> str:
        return answer(asked)

    async with AsyncExitStack() as stack:
        variants = {"ours": await _ours(stack, StubModel()), "no-op": _bare(no_op)}
        costs = await in_turns(variants, REPETITIONS_WITHOUT_NETWORK)
    what = f"fan-out on a stub model, {AT_ONCE} at once, per step"
    return ratio_row(what, costs["ours"], costs["no-op"], "no-op coroutine", per=(STEPS, STEPS), limit=25, aim=12)


async def _ours(stack: AsyncExitStack, model: str | ModelClient) -> Variant:
    agent, workspace = await stack.enter_async_context(agent_on(model))
    session = await agent.session_async(workspace, max_parallel_tasks=AT_ONCE)

    async def run() -> None:
        assert outputs(await session.parallel_async(SPECS)) == answers(SPECS)

    return run


def _bare(ask: Callable[[str], Awaitable[str]]) -> Variant:
    return lambda: bounded(STEPS, AT_ONCE, ask)
