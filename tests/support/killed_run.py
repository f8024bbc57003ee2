"""Lives of one session, each a process of its own that may be killed: `python -m tests.support.killed_run`.

For each line on stdin, `<folder> <store> <place> <what>`, a process is forked that works in the folder: `<what>` is
`send` or the id of a run to resume. It dies by SIGKILL when it has come to its `<place>`th place (see CrashPoint), 0
for none. On stdout: `ended <exit status>`.

The model leaves a line in `<folder>/asked` for each call, and the tool one in `<folder>/ran` for each run of its work.
A life that ends well leaves what came of it in `<folder>/result`.
"""

import asyncio
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

import msgspec

from fanfold import Agent, HostEnv, SequentialIds, ToolOutput, ToolSpec
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.contracts.record import JsonObject
from fanfold.errors import CheckpointNotFoundError
from fanfold.protocols import ToolScope
from fanfold.testing import CrashPoint, ScriptedModel, calls
from fanfold.testing.scripted import Answer
from tests.support.resumable_run import open_store

ROUNDS = 2
ANSWER = "both are put"
RUN = "run-send-0"


class Places(CrashPoint):
    """Notes the names of the places that a run comes past."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__(at=at, how="kill")
        self.names: list[str] = []

    async def reach(self, place: str) -> None:
        self.names.append(place)
        await super().reach(place)


class Put:
    """Each run of its work leaves a line, with the key by which the world could tell a repetition."""

    spec = ToolSpec(name="put", description="", parameters={"type": "object"}, is_read_only=True)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        note(self._folder / "ran", scope.idempotency_key)
        return ToolOutput(output=f"put {args['number']}")


def note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def script(folder: Path, request: ModelRequest) -> Answer:
    results = sum(isinstance(message, ToolMessage) for message in request.transcript)
    note(folder / "asked", str(results))
    return calls(("put", {"number": results})) if results < ROUNDS else ANSWER


async def live(folder: Path, store_path: Path, place: int, what: str) -> None:
    folder.mkdir(exist_ok=True)
    places = Places(place or None)
    async with (
        open_store(store_path) as store,
        await Agent.create_async(
            models={"scripted/model": places.model(ScriptedModel(lambda request: script(folder, request)))},
            tools={"put": places.tool(Put(folder))},
            host_env=HostEnv(ids=SequentialIds("send" if what == "send" else "resume")),
            open_log=places.open_log,
        ) as agent,
    ):
        session = await agent.session_async(folder, session_id="s", session_store=places.store(store))
        try:
            result = await (session.send_async("go") if what == "send" else session.resume_run_async(what))
        except CheckpointNotFoundError:  # it died before it had recorded anything that this node can see
            result = await session.send_async("go")
        told = {**result.to_dict(), "history": session.history(), "places": places.names}
        (folder / "result").write_bytes(msgspec.json.encode(told))


def serve() -> None:
    # Forked from a process that has imported everything, a life is as long as its work and not as long as its imports.
    for line in sys.stdin:
        folder, store, place, what = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(live(Path(folder), Path(store), int(place), what))
            except BaseException:  # noqa: BLE001  or a child would go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    import_module("fanfold.tools.toolset")
    serve()
