"""A program that is killed while its tool runs: `python -m tests.support.crashing_run WORKSPACE BASE_URL`."""

import asyncio
import sys
from pathlib import Path

from fanfold import Agent, ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import ToolScope

ACL = 'default_model = "here/fake"\nproviders "here" { base_url = "%s" }\npermissions { default = "allow" }\n'
SESSION = "crashing"


class MarkingTool:
    """Leaves one line per execution in `runs`; the first never ends."""

    spec = ToolSpec(name="mark", description="leaves a mark", parameters={"type": "object"})

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        is_first = not self._runs.exists()
        with self._runs.open("a") as file:
            file.write(scope.idempotency_key + "\n")
        if is_first:
            await asyncio.Event().wait()
        return ToolOutput(output="marked")


async def main(workspace: Path, base_url: str, *, resume: bool = False) -> str:
    tools = {"mark": MarkingTool(workspace / "runs")}
    async with await Agent.create_async(ACL % base_url, tools=tools) as agent:
        session = await agent.session_async(workspace, session_id=SESSION)
        if resume:
            return (await session.resume_run_async()).text
        return (await session.send_async("[[tool=mark*1 {}]] please")).text


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
