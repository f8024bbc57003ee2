"""One `send` with many tool rounds, on a durable log, against a bare loop that sends the same growing history.

fanfold's side includes what the bare loop does not have: every model turn and every tool result is on the disk before
the next step, two syncs a round. Opening and closing the session is counted too.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks.baselines import bare_tool_loop
from benchmarks.costs import Cost, Variant, in_turns
from benchmarks.fake_server import fake_server
from benchmarks.opened import agent_on
from benchmarks.stub_model import StubModel
from benchmarks.table import Row, ratio_row
from benchmarks.workload import answer, loop_prompt
from fanfold import ModelClient, PermissionPolicy

SHORT, LONG = 20, 200
"""Tool rounds."""
SHORT_LOOPS = 10
"""Short loops of one repetition, so that it does as many rounds as the one long loop."""
REPETITIONS = 7
PER_SHORT, PER_LONG = SHORT_LOOPS * (SHORT + 1), LONG + 1
"""Model calls of one repetition: one more than tool rounds, for the answer."""

Loop = Callable[[int], Awaitable[str]]


async def measure() -> list[Row]:
    async with AsyncExitStack() as stack:
        base_url = stack.enter_context(fake_server())
        ours, bare = await _ours(stack, lambda _: base_url), await bare_tool_loop(stack, base_url)
        over_http = await in_turns({**_both("ours", ours), **_both("bare", bare)}, REPETITIONS)
    async with AsyncExitStack() as stack:
        alone = await in_turns(_both("ours", await _ours(stack, StubModel)), REPETITIONS)
    return [
        ratio_row(
            f"durable tool loop over HTTP, {SHORT} rounds, per round",
            over_http[f"ours {SHORT}"],
            over_http[f"bare {SHORT}"],
            "bare aiohttp",
            per=(PER_SHORT, PER_SHORT),
            limit=2.5,
        ),
        _growth("durable tool loop over HTTP", over_http, limit=2.2, aim=1.3),
        _growth("durable tool loop on a stub model", alone, limit=1.1),
    ]


def _growth(what: str, costs: dict[str, list[Cost]], *, limit: float, aim: float | None = None) -> Row:
    return ratio_row(
        f"{what}, growth {SHORT} to {LONG} rounds, per round",
        costs[f"ours {LONG}"],
        costs[f"ours {SHORT}"],
        f"at {SHORT} rounds",
        per=(PER_LONG, PER_SHORT),
        limit=limit,
        aim=aim,
    )


def _both(name: str, loop: Loop) -> dict[str, Variant]:
    async def repeated(times: int, rounds: int) -> None:
        for _ in range(times):
            assert await loop(rounds) == answer(str(rounds - 1 + 2))

    return {f"{name} {SHORT}": lambda: repeated(SHORT_LOOPS, SHORT), f"{name} {LONG}": lambda: repeated(1, LONG)}


async def _ours(stack: AsyncExitStack, model_for: Callable[[int], str | ModelClient]) -> Loop:
    opened = {rounds: await stack.enter_async_context(agent_on(model_for(rounds))) for rounds in (SHORT, LONG)}
    policy = PermissionPolicy(default_decision="allow")

    async def loop(rounds: int) -> str:
        agent, workspace = opened[rounds]
        async with await agent.session_async(
            workspace, max_tool_rounds=rounds + 5, permission_policy=policy
        ) as session:
            return (await session.send_async(loop_prompt(rounds))).text

    return loop
