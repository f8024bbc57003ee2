"""Lives of one session whose model launches a workflow: `python -m tests.support.killed_launch`.

For each line on stdin, `<workspace> <place> <what>`, a process is forked that opens the session `s` there, sends `go`,
or goes on with its run where `<what>` is `resume`, and waits until nothing goes on any more. From the moment the model
has asked for the launch until it reads the answer, each change of the disk and the end of the tool are places: at the
`<place>`th one the process dies by SIGKILL, 0 for none. On stdout: `ended <exit status>`.

The model leaves a line in `<workspace>/asked` for each agent that it answers.
"""

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fanfold.contracts.messages import ModelRequest, ToolMessage, UserMessage
from fanfold.errors import CheckpointNotFoundError, MissingStoreError
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support.open_session import opened

META = {"name": "survey", "description": "asks two agents"}
PLACES = ("a", "b")
_CHANGES = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.utime"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


async def survey(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(f"look at {each}") for each in args["places"]])


class Launching:
    """Counts the changes of the disk, while the launch is under way, and ends the process at one of them."""

    def __init__(self, at: int) -> None:
        self.is_under_way = False
        self._at = at
        self._came = 0
        sys.addaudithook(self._hear)

    def _hear(self, name: str, args: tuple[Any, ...]) -> None:
        is_write = name == "open" and isinstance(args[2], int) and args[2] & _WRITES
        if self.is_under_way and (is_write or name in _CHANGES) and ".a3s" in str(args[0]):
            self.reach()

    def reach(self) -> None:
        self._came += 1
        if self._came == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


class Director:
    def __init__(self, workspace: Path, launching: Launching) -> None:
        self._asked = workspace / "asked"
        self._launching = launching

    def __call__(self, request: ModelRequest) -> Reply:
        assert request.transcript is not None
        newest = request.transcript.message
        if isinstance(newest, UserMessage) and newest.text == "go":
            self._launching.is_under_way = True
            return calls(("Workflow", {"name": "survey", "args": {"places": list(PLACES)}}))
        if isinstance(newest, UserMessage) and newest.text.startswith("look at"):
            with self._asked.open("a") as file:
                file.write(f"{newest.text}\n")
            return Reply(text=f"saw {newest.text}")
        if isinstance(newest, ToolMessage):
            self._launching.is_under_way = False
        return Reply(text="read")


async def live(workspace: Path, place: int, what: str) -> None:
    launching = Launching(place)
    async with opened(workspace, ScriptedModel(Director(workspace, launching))) as session:
        session.workflows.register(META, survey)
        session.register_hook("places", "post_tool_use", handler=lambda _: launching.reach())
        try:
            if what == "resume":
                launching.is_under_way = True
                await session.resume_run_async()
            else:
                await session.send_async("go")
        except (CheckpointNotFoundError, MissingStoreError):  # it died before it had recorded anything
            await session.send_async("go")
        await session.settled_async()


def serve() -> None:
    for line in sys.stdin:
        workspace, place, what = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(live(Path(workspace), int(place), what))
            except BaseException:  # noqa: BLE001  or a child would go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


def load() -> None:
    """Import all that a life needs: forked from such a process, it is as long as its work and not as its imports."""
    with TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder), 0, "send"))


if __name__ == "__main__":
    load()
    serve()
