"""A resumable fan-out of steps with worktrees that is killed: `python -m tests.support.isolated_run WORKSPACE STORE`.

Each step writes `one.txt`, then `two.txt`, and answers. With a third argument the process kills itself when each of the
steps has been asked for the second time, so that the first file of each is written and recorded.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fanfold import Agent, FileSessionStore, PermissionPolicy, StepOutcome
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.testing import ScriptedModel, calls

STEPS = [
    {"task_id": name, "agent": "general", "prompt": f"write as {name}", "isolation": "worktree"} for name in ("a", "b")
]
NAMES = ("one.txt", "two.txt")


def writing(request: ModelRequest) -> Any:
    done = sum(isinstance(message, ToolMessage) for message in request.transcript)
    if done == len(NAMES):
        return "written"
    return calls(("write", {"file_path": NAMES[done], "content": f"{request.session_id}\n"}))


async def run(workspace: Path, store_path: Path, *, dies: bool = False) -> tuple[list[StepOutcome], ScriptedModel]:
    waiting: set[str] = set()

    async def answer(request: ModelRequest) -> Any:
        if dies and any(isinstance(message, ToolMessage) for message in request.transcript):
            waiting.add(request.session_id)
            if len(waiting) == len(STEPS):
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.Event().wait()
        return writing(request)

    model = ScriptedModel(answer)
    async with FileSessionStore(store_path) as store, await Agent.create_async(models={"a/b": model}) as agent:
        session = await agent.session_async(
            workspace, session_store=store, permission_policy=PermissionPolicy(default_decision="allow")
        )
        outcomes: list[StepOutcome] = await session.parallel_resumable_async(STEPS, "w")
        return outcomes, model


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), dies=len(sys.argv) > 3))
