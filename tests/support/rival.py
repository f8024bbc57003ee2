"""One of two processes that start the same workflows: `python -m tests.support.rival STORE MARKS`.

Reads `start <workflow>` and `release`; says `running` from inside the first step, then `won` or `told`. Every step that
runs leaves a line in MARKS.
"""

import asyncio
import sys
from pathlib import Path

from fanfold import AgentStepSpec, StepOutcome, execute_steps_parallel_resumable
from fanfold.errors import AlreadyActiveError
from fanfold.protocols import EventSink, SessionStore
from tests.support.resumable_run import open_store

STEPS = 3


class MarkingExecutor:
    def __init__(self, workflow: str, marks: Path, lines: "asyncio.StreamReader") -> None:
        self._workflow = workflow
        self._marks = marks
        self._lines = lines

    def concurrency_hint(self) -> int:
        return 1

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        if spec.task_id == "t0":
            print("running", flush=True)
            assert await self._lines.readline() == b"release\n"
        with self._marks.open("a") as file:
            file.write(f"{self._workflow} {spec.task_id}\n")
        return StepOutcome(task_id=spec.task_id, agent=spec.agent, output="x", success=True)


async def start(store: SessionStore, workflow: str, marks: Path, lines: asyncio.StreamReader) -> str:
    specs = [{"task_id": f"t{number}", "agent": "a", "prompt": "p"} for number in range(STEPS)]
    executor = MarkingExecutor(workflow, marks, lines)
    try:
        await execute_steps_parallel_resumable(executor, specs, workflow, store)
    except AlreadyActiveError as error:
        return f"told {error}"
    return "won"


async def main(store_path: Path, marks: Path) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with open_store(store_path) as store:
        while line := await lines.readline():
            print(await start(store, line.decode().split()[1], marks, lines), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
