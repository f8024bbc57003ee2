"""Other durable runtimes, each as its users run it on one machine: a fan-out of steps recorded in a SQLite file.

    python benchmarks/peers.py dbos|langgraph STEPS AT_ONCE DIR

They run in a process of their own, in the interpreter that FANFOLD_BENCH_PYTHON names or else in this one's, so this
file asks for nothing but the standard library and the peer. Their steps are the least that a step can be: no agent, no
model, a coroutine that returns a result of the size of ours. What is timed is one fan-out after a small one, without
imports, start-up and the creation of the database.

* dbos: one workflow, each step a `@DBOS.step`.
* langgraph: one `@entrypoint` with a `@task` for each step, `AsyncSqliteSaver`, `durability="sync"`.
"""

import asyncio
import hashlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

INTERPRETER = os.environ.get("FANFOLD_BENCH_PYTHON") or sys.executable
WARM_UP = 50

Step = Callable[[int], Awaitable[Any]]


async def result_of(index: int) -> dict[str, Any]:
    return {
        "task_id": f"t{index}",
        "agent": "general",
        "output": "h:" + hashlib.sha256(str(index).encode()).hexdigest()[:16],
        "success": True,
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        "duration_ms": 0,
    }


def durable_fan_out(peer: str, steps: int, at_once: int, directory: Path) -> tuple[float, str] | None:
    """Seconds that a fan-out of `steps` took, and the peer's version; None where it is not installed."""
    command = [INTERPRETER, __file__, peer, str(steps), str(at_once), str(directory)]
    environment = {**os.environ, "LANGSMITH_TRACING": "false"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    printed = json.loads(done.stdout.splitlines()[-1])
    return None if printed is None else (printed["wall_s"], printed["version"])


async def _dbos(steps: int, at_once: int, directory: str) -> float:
    dbos = importlib.import_module("dbos").DBOS
    step = dbos.step()(result_of)

    async def fan_out(count: int) -> int:
        return await _bounded(step, count, at_once)

    workflow = dbos.workflow()(fan_out)
    dbos(
        config={
            "name": "benchmark",
            "system_database_url": f"sqlite:///{directory}/dbos.sqlite",
            "log_level": "ERROR",
            "console_log_level": "ERROR",
        }
    )
    dbos.launch()
    try:
        return await _timed(workflow, steps)
    finally:
        dbos.destroy()


async def _langgraph(steps: int, at_once: int, directory: str) -> float:
    func = importlib.import_module("langgraph.func")
    saver_class = importlib.import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
    step = func.task(result_of)

    async def fan_out(count: int) -> int:
        return await _bounded(step, count, at_once)

    async with saver_class.from_conn_string(f"{directory}/langgraph.sqlite") as saver:
        await saver.setup()
        flow = func.entrypoint(checkpointer=saver)(fan_out)

        async def run(count: int) -> int:
            config = {"configurable": {"thread_id": f"thread-{count}"}, "max_concurrency": at_once}
            finished: int = await flow.ainvoke(count, config, durability="sync")
            return finished

        return await _timed(run, steps)


async def _bounded(step: Step, count: int, at_once: int) -> int:
    free = asyncio.Semaphore(at_once)

    async def one(index: int) -> Any:
        async with free:
            return await step(index)

    return len(await asyncio.gather(*(one(index) for index in range(count))))


async def _timed(run: Callable[[int], Awaitable[int]], steps: int) -> float:
    await run(WARM_UP)
    started = time.perf_counter()
    finished = await run(steps)
    seconds = time.perf_counter() - started
    assert finished == steps, finished
    return seconds


_PEERS = {"dbos": (_dbos, ("dbos",)), "langgraph": (_langgraph, ("langgraph", "langgraph-checkpoint-sqlite"))}
"""How each runs, and what has to be installed for it."""


def _main(peer: str, steps: int, at_once: int, directory: str) -> None:
    run, distributions = _PEERS[peer]
    try:
        versions = [importlib.metadata.version(name) for name in distributions]
    except importlib.metadata.PackageNotFoundError:
        print("null")
        return
    wall_s = asyncio.run(run(steps, at_once, directory))
    print(json.dumps({"version": versions[0], "wall_s": wall_s}))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
