"""A fan-out that is killed and started again: `python -m tests.support.resumable_run WORKSPACE BASE_URL STORE`.

STORE is a path; one that ends in `.sqlite` is an SqliteSessionStore. For each line on stdin a process of its own is
forked, which runs the fan-out: `<pid>` is said, then `done` by the process itself, then `ended <exit status>`.
"""

import asyncio
import os
import sys
from importlib import import_module
from pathlib import Path

from fanfold import Agent, FileSessionStore, SqliteSessionStore

ACL = 'default_model = "here/fake"\nproviders "here" { base_url = "%s" }\n'
WORKFLOW = "killed"
STEPS = 200
AT_ONCE = 16


def prompt(number: int) -> str:
    """Every fourth step takes two rounds of a tool before it answers."""
    rounds = "[[tool=ls*2 {}]] " if number % 4 == 0 else ""
    return f"{rounds}step {number}"


SPECS = [
    {"task_id": f"t{number}", "agent": "explore" if number % 4 == 0 else "answer", "prompt": prompt(number)}
    for number in range(STEPS)
]


def open_store(path: Path) -> FileSessionStore | SqliteSessionStore:
    return SqliteSessionStore(path) if path.suffix == ".sqlite" else FileSessionStore(path)


async def main(workspace: Path, base_url: str, store_path: Path) -> None:
    async with open_store(store_path) as store, await Agent.create_async(ACL % base_url) as agent:
        session = await agent.session_async(workspace, session_store=store, max_parallel_tasks=AT_ONCE)
        outcomes = await session.parallel_resumable_async(SPECS, WORKFLOW)
        assert [outcome.task_id for outcome in outcomes] == [spec["task_id"] for spec in SPECS]
        assert all(outcome.success for outcome in outcomes), [o.output for o in outcomes if not o.success][:3]
        print("done", flush=True)


def serve(workspace: Path, base_url: str, store_path: Path) -> None:
    # Forked from a process that has imported everything, a life is as long as its work and not as long as its imports.
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(main(workspace, base_url, store_path))
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    for adapter in (
        "fanfold.providers.openai",
        "fanfold.providers.http",
        "fanfold.providers.retry",
        "fanfold.tools.toolset",
    ):
        import_module(adapter)
    serve(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
