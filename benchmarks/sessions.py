"""What sessions cost: memory of an idle one, CPU to open one, what many leave behind, and an answer that streams."""

import asyncio
import gc
import json
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.costs import Variant, in_turns
from benchmarks.http_client import CHUNKS, server_process
from benchmarks.opened import agent_on
from benchmarks.table import Row, ratio_row
from fanfold import Agent, Session
from fanfold.errors import RunCancelledError
from fanfold.testing import ScriptedModel, echo

IDLE = 1_000
USED = 5_000
STREAMS = 64
INTERRUPTS = 20
REPETITIONS = 7


async def measure() -> list[Row]:
    return [await _idle(), await _opening(), await _left_behind(), await _streaming(), await _interrupting()]


@asynccontextmanager
async def _agent() -> AsyncIterator[tuple[Agent, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        async with await Agent.create_async(models={"bench/echo": ScriptedModel(echo)}) as agent:
            yield agent, Path(directory)


async def _idle() -> Row:
    async with _agent() as (agent, workspace):
        warm = [await agent.session_async(workspace) for _ in range(20)]
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        sessions = [await agent.session_async(workspace) for _ in range(IDLE)]
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / IDLE
        tracemalloc.stop()
        for session in warm + sessions:
            await session.close_async()
    return Row(
        what=f"an idle session, {IDLE:,} of them",
        fanfold=f"{each:,.0f} B",
        figure=round(each / 1024, 2),
        unit=" KiB",
        limit=10,
    )


async def _opening() -> Row:
    async with _agent() as (agent, workspace):
        warm = [await agent.session_async(workspace) for _ in range(20)]
        begin = time.process_time()
        sessions = [await agent.session_async(workspace) for _ in range(IDLE)]
        each = (time.process_time() - begin) / IDLE * 1000
        for session in warm + sessions:
            await session.close_async()
    return Row(what="opening a session", fanfold=f"{each:.3g} ms", figure=each, unit=" ms", limit=0.2)


async def _left_behind() -> Row:
    async def use(agent: Agent, workspace: Path, count: int) -> None:
        for _ in range(count):
            async with await agent.session_async(workspace) as session:
                await session.send_async("hello")

    async with _agent() as (agent, workspace):
        model = agent  # what stays is the agent's: its model keeps no request of this benchmark
        await use(model, workspace, 100)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await use(agent, workspace, USED)
        gc.collect()
        left = (tracemalloc.get_traced_memory()[0] - before) / 2**20
        tracemalloc.stop()
    return Row(
        what=f"left in memory by {USED:,} sessions, opened, used and closed",
        fanfold=f"{left:.3g} MB",
        figure=left,
        unit=" MB",
        limit=5,
    )


async def _streaming() -> Row:
    async with AsyncExitStack() as stack:
        base_url = stack.enter_context(server_process())
        agent, workspace = await stack.enter_async_context(agent_on(base_url))
        sessions = [await agent.session_async(workspace) for _ in range(STREAMS)]
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))

        async def ours() -> None:
            await asyncio.gather(*(_read_stream(session) for session in sessions))

        async def bare() -> None:
            await asyncio.gather(*(_read_bare(client, base_url) for _ in range(STREAMS)))

        variants: dict[str, Variant] = {"ours": ours, "bare": bare}
        costs = await in_turns(variants, REPETITIONS)
    return ratio_row(
        f"session.stream of an answer of {CHUNKS} chunks over HTTP, {STREAMS} at once",
        costs["ours"],
        costs["bare"],
        "bare aiohttp reader",
        per=(STREAMS, STREAMS),
        limit=2,
    )


async def _read_stream(session: Session) -> None:
    deltas = 0
    async for event in await session.stream_async("topic"):
        deltas += event.type == "text_delta"
    assert deltas == CHUNKS


async def _read_bare(client: aiohttp.ClientSession, base_url: str) -> None:
    """The floor: raw chunks, cut into lines, each decoded."""
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "topic"}], "stream": True})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + "x" * 12}
    found, rest = 0, b""
    async with client.post(f"{base_url}/chat/completions", data=body, headers=headers) as response:
        async for chunk in response.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line[6:7] == b"{":
                    msgspec.json.decode(line[6:])
                    found += 1
    assert found == CHUNKS + 1


async def _interrupting() -> Row:
    """From the call of `interrupt` to the end of the run, while the model streams."""

    async def forever(_: object) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    waits: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        async with (
            await Agent.create_async(models={"bench/forever": ScriptedModel(forever)}) as agent,
            await agent.session_async(Path(directory)) as session,
        ):
            for _ in range(INTERRUPTS):
                run = asyncio.create_task(session.send_async("go"))
                await asyncio.sleep(0.01)
                begin = time.perf_counter()
                await session.interrupt_async()
                try:
                    await run
                except RunCancelledError:
                    waits.append(time.perf_counter() - begin)
    assert len(waits) == INTERRUPTS
    worst = max(waits) * 1000
    return Row(
        what=f"interrupt to stop, the longest of {INTERRUPTS}",
        fanfold=f"{worst:.3g} ms",
        figure=worst,
        unit=" ms",
        limit=200,
    )
