"""A real process, killed in the middle, and what the next one does."""

import asyncio
import subprocess
import sys
from pathlib import Path

from fanfold.contracts.codec import decode_fact
from fanfold.kernel.fold import fold
from tests.support.chat_server import ChatServer
from tests.support.crashing_run import main

ROOT = Path(__file__).parents[2]


async def killed_inside_its_tool(workspace: Path, base_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.crashing_run", str(workspace), base_url, cwd=ROOT
    )
    runs = workspace / "runs"
    while not (runs.exists() and runs.read_text()):  # the file is there a moment before its first line
        assert process.returncode is None
        await asyncio.sleep(0.01)
    process.kill()
    await process.wait()


def test_a_recorded_model_turn_is_not_sent_again_and_the_missing_result_is_made_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with ChatServer() as server:
            await killed_inside_its_tool(tmp_path, server.base_url)
            assert len(server.requests) == 1
            text = await main(tmp_path, server.base_url, resume=True)
            assert text.startswith("h:")
            assert len(server.requests) == 2
            assert await main(tmp_path, server.base_url, resume=True) == text
            assert len(server.requests) == 2

    asyncio.run(story())
    keys = (tmp_path / "runs").read_text().splitlines()
    assert len(keys) == 2
    assert keys[0] == keys[1]


RIVAL = """
import asyncio, sys
from fanfold import Agent
from fanfold.errors import SessionBusyError, AppendConflictError
from fanfold.testing import Reply, ScriptedModel
async def main():
    async with await Agent.create_async(models={"a/b": ScriptedModel(lambda r: Reply(text="x", delay=0.001))}) as agent:
        done = refused = 0
        while done < 20:
            try:
                session = await agent.session_async(sys.argv[1], session_id="shared")
                await session.send_async("hi")
                done += 1
            except SessionBusyError:
                refused += 1
            await agent.close_session_async("shared")
    print(refused)
asyncio.run(main())
"""


def test_rivals_for_one_thread_are_refused_or_wait_and_never_write_the_same_seq(tmp_path: Path) -> None:
    rivals = [
        subprocess.Popen([sys.executable, "-c", RIVAL, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for rival in rivals:
        assert rival.wait(timeout=25) == 0
        assert rival.stdout is not None
        rival.stdout.close()
    lines = (tmp_path / ".a3s/effect-log/shared.jsonl").read_bytes().splitlines()
    state = fold(decode_fact(line) for line in lines)
    assert len(lines) == 3 * 20 * 2
    assert state.turn == 60
