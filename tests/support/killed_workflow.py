"""Lives of one workspace, each a process of its own that may be killed: `python -m tests.support.killed_workflow`.

For each line on stdin, `<what> <workspace> <server>`, a process is forked that does one of

    run      goes on with the workflow run of the workspace, or launches it, and waits for its end
    full     the same, where no file can become longer than `FULL_BYTES`
    talk     opens the session `s`, says `go on`, and waits until nothing goes on in it any more
    rival    goes on with the run, if nobody else has it; before it ends it waits for a line of stdin, any

and says `<pid>`, then a line for whatever it came to, then `ended <exit status>`.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fanfold import Agent, Session
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import WorkflowInputError
from fanfold.stores.run_files import open_run_files

ACL = 'default_model = "here/fake"\nproviders "here" {\nbase_url = "%s"\nstructured_output = "json_schema"\n}\n'
NAME = "survey"
SESSION = "s"
SIDES = ("left", "right")
PLACES = 16
VOTERS = 4
LIMITS = WorkflowLimits(concurrency=8)
FULL_BYTES = 16_000
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


async def survey(ctx: Any, args: Any) -> Any:
    """Pipelines inside of parallels, in a workflow inside of a workflow; some agents work with a tool, some are equal,
    some have a schema."""
    ctx.phase("Look")
    seen = await ctx.workflow("sides", {"places": args["places"]})
    ctx.phase("Vote")
    votes = await ctx.parallel([lambda: ctx.agent("is it good?", schema=SCHEMA)] * VOTERS)
    return {"seen": seen, "votes": votes, "sum": await ctx.agent(f"sum up {seen}"), "drawn": ctx.random()}


async def sides(ctx: Any, args: Any) -> Any:
    def look(side: str) -> Callable[[], Awaitable[Any]]:
        async def first(place: int) -> Any:
            # Every third one takes two rounds of a tool before it answers.
            if place % 3 == 0:
                return await ctx.agent(f"[[tool=ls*2 {{}}]] look {side} at {place}", agent_type="explore")
            return await ctx.agent(f"look {side} at {place}")

        async def second(found: Any, place: int) -> Any:
            return await ctx.agent(f"check {found} of {side} {place}")

        return lambda: ctx.pipeline(range(args["places"]), first, second)

    return await ctx.parallel([look(side) for side in SIDES])


async def held(ctx: Any, args: Any) -> Any:
    """The same, once it is let go."""
    say("holds")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return await survey(ctx, args)


async def run(session: Session, workspace: Path) -> str:
    """What a run is damaged by is refused here: no kill may leave any."""
    known = await begun(workspace)
    result = await session.workflows.run_async(
        None if known else NAME,
        None if known else {"places": PLACES},
        resume_from_run_id=known[0] if known else None,
        strict=bool(known),
        limits=LIMITS,
    )
    return result.status


async def full(session: Session, workspace: Path) -> str:
    import resource  # there is none on Windows

    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))
    return await run(session, workspace)


async def begun(workspace: Path) -> list[str]:
    """The runs that one can go on with, newest first. One that was cut off before its first snapshot is none."""
    files = open_run_files(workspace)
    looks = [(run_id, await files.look(run_id)) for run_id in await files.run_ids()]
    return [run_id for run_id, look in looks if look is not None and look.snapshot is not None]


async def talk(session: Session, workspace: Path) -> str:
    await session.send_async("go on")
    await session.settled_async()
    return str(session.history()[-1]["content"])


async def rival(session: Session, workspace: Path) -> str:
    (run_id,) = await begun(workspace)
    try:
        return (await session.workflows.run_async(resume_from_run_id=run_id)).status
    except WorkflowInputError as error:
        return error.code


async def live(what: str, workspace: Path, server: str) -> None:
    async with await Agent.create_async(ACL % server) as agent:
        session = await agent.session_async(workspace, session_id=SESSION if what == "talk" else None)
        script = held if what == "rival" else survey
        session.workflows.register({"name": NAME, "description": "looks everywhere"}, script)
        session.workflows.register({"name": "sides", "description": "looks to one side and the other"}, sides)
        do = {"run": run, "full": full, "talk": talk, "rival": rival}[what]
        say(await do(session, workspace))


def say(line: object) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece, or a kill might come before the end of the line


async def load() -> None:
    """Import all that a life needs: forked from such a process, it is as long as its work and not as its imports."""
    with TemporaryDirectory() as folder:
        async with await Agent.create_async(ACL % "http://127.0.0.1:1/v1") as agent:
            session = await agent.session_async(folder)
            session.workflows.available()
    for each in ("aiohttp", "fanfold.providers.http", "fanfold.providers.openai", "fanfold.providers.retry"):
        import_module(each)


def serve() -> None:
    while line := sys.stdin.readline():
        what, workspace, server = line.split()
        pid = os.fork()
        if pid == 0:
            say(os.getpid())
            try:
                asyncio.run(live(what, Path(workspace), server))
            except BaseException:  # noqa: BLE001  or a child would go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    asyncio.run(load())
    serve()
