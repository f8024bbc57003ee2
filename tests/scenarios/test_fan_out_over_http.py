"""Fan-outs against a real server: what is sent, what is not, and how it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, Session
from fanfold.errors import RunCancelledError
from tests.support.chat_server import ChatServer, Http, Say

ACL = """
default_model = "here/fake"
providers "here" {
  base_url = "%s"
  api_key  = "sk-test"
}
"""


@asynccontextmanager
async def opened(workspace: Path, server: ChatServer, **options: Any) -> AsyncIterator[Session]:
    async with await Agent.create_async(ACL % server.base_url) as agent:
        yield await agent.session_async(workspace, **options)


def steps(count: int) -> list[dict[str, Any]]:
    return [{"task_id": f"t{n}", "agent": "answer", "description": "d", "prompt": f"say {n}"} for n in range(count)]


@pytest.mark.parametrize(
    "refusal",
    [
        Http((b'{"error": {"message": "bad key"}}',), status=401),
        Http((b'{"error": {"message": "no credit", "code": "insufficient_quota"}}',), status=429),
    ],
    ids=["auth", "quota"],
)
def test_a_terminal_refusal_stops_further_launches(tmp_path: Path, refusal: Http) -> None:
    async def story() -> None:
        async with (
            ChatServer(lambda asked: refusal) as server,
            opened(tmp_path, server, max_parallel_tasks=4) as session,
        ):
            outcomes = await session.parallel_async(steps(100))
            assert not any(outcome.success for outcome in outcomes)
            assert len(server.requests) <= 4
            message = "bad key" if refusal.status == 401 else "no credit"
            assert message in outcomes[-1].output
            assert "sk-test" not in outcomes[-1].output

    asyncio.run(story())


def test_a_busy_server_is_asked_again_and_every_step_gets_its_own_answer(tmp_path: Path) -> None:
    async def story() -> None:
        busy = iter([Http(status=429, headers={"retry-after-ms": "20"}), Http(status=503)])

        def answer(asked: dict[str, Any]) -> Say | Http:
            return next(busy, None) or Say(text="re: " + asked["messages"][-1]["content"])

        async with ChatServer(answer) as server, opened(tmp_path, server) as session:
            outcomes = await session.parallel_async(steps(20))
            assert [outcome.output for outcome in outcomes] == [f"re: say {n}" for n in range(20)]
            assert len(server.requests) == 22

    asyncio.run(story())


def test_closing_the_session_closes_the_connections_of_its_steps(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            ChatServer(lambda asked: Say(delay_seconds=60)) as server,
            opened(tmp_path, server, max_parallel_tasks=3) as session,
        ):
            run = asyncio.create_task(session.parallel_async(steps(3)))
            await server.request_count(3)
            await session.close_async()
            with pytest.raises(RunCancelledError):
                await run
            await server.disconnects(3)

    asyncio.run(story())
