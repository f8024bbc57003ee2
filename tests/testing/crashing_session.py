"""One run of a session in which a tool puts two lines into a file: `python -m tests.testing.crashing_session DIR N`.

The process dies by SIGKILL behind the append of its Nth fact; without N it resumes, and prints the answer.
"""

import asyncio
import sys
from pathlib import Path

from fanfold import Agent, HostEnv, SequentialIds, SessionStore
from fanfold.contracts.messages import ModelRequest, ToolMessage, ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.errors import MissingStoreError, StorageError
from fanfold.protocols import ToolScope
from fanfold.testing import CrashPoint, ScriptedModel, calls
from fanfold.testing.scripted import Answer

ANSWER = "It is put."


def answer(request: ModelRequest) -> Answer:
    """By what the conversation holds, so that a model of a later process goes on with it."""
    results = sum(isinstance(message, ToolMessage) for message in request.transcript)
    return ANSWER if results == 2 else calls(("put", {"line": f"line {results + 1}"}))


class Put:
    """Adds a line to a file; the same call again changes nothing."""

    spec = ToolSpec(name="put", description="", parameters={"type": "object"}, is_read_only=True)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: list[str] = []
        self._done: set[str] = set()

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        self.runs.append(scope.idempotency_key)
        line = f"{scope.idempotency_key} {args['line']}"
        kept = self.path.read_text().splitlines() if self.path.exists() else []
        if line not in kept:
            self.path.write_text("\n".join([*kept, line, ""]))
        return ToolOutput(output="done")


async def run(
    workspace: Path, point: CrashPoint, model: ScriptedModel, *, resumes: bool, store: SessionStore | None = None
) -> str:
    tool = Put(workspace / "lines")
    async with await Agent.create_async(
        models={"scripted/model": point.model(model)},
        tools={"put": point.tool(tool)},
        host_env=HostEnv(ids=SequentialIds("id")),
        open_log=point.open_log,
    ) as agent:
        kept = None if store is None else point.store(store)
        session = await agent.session_async(workspace, session_id="s", session_store=kept)
        if resumes:
            try:
                return (await session.resume_run_async()).text
            except (StorageError, MissingStoreError):
                pass  # it had died before anything was written
        return (await session.send_async("put two lines")).text


def lines(workspace: Path) -> list[str]:
    return [line.partition(" ")[2] for line in (workspace / "lines").read_text().splitlines()]


if __name__ == "__main__":
    folder, *number = sys.argv[1:]
    chosen = CrashPoint(after_fact=int(number[0]), how="kill") if number else CrashPoint()
    print(asyncio.run(run(Path(folder), chosen, ScriptedModel(answer), resumes=not number)))
