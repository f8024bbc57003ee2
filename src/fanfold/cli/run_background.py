"""What a turn has left in the background, workflows and tasks: waited for, with what the model says of their end."""

import asyncio

import msgspec
from msgspec.structs import replace

from fanfold.cli.parked import Asking
from fanfold.cli.run_screen import RunScreen
from fanfold.contracts.events import AgentEvent, AgentResult
from fanfold.contracts.messages import UsageSum
from fanfold.session.session import Session

LOOK_SECONDS = 0.2
"""How often it is looked whether an agent in the background waits for a person."""


class Background:
    def __init__(self, session: Session, screen: RunScreen) -> None:
        self._session = session
        self._screen = screen
        self._later: list[AgentResult] = []
        """Of the runs that the ends in the background have begun."""
        session.on_wake(self._hear)

    async def settled(self, result: AgentResult) -> AgentResult:
        """The result of the last run: that of the turn, or of the one in which the model read how the rest ended, with
        what all of them have used."""
        waiting = asyncio.create_task(self._session.settled_async())
        try:
            await asyncio.wait({waiting}, timeout=LOOK_SECONDS)
            if not waiting.done():
                self._screen.say("· waiting for what goes on in the background; fanfold ps and logs tell of it")
            async with Asking(self._session, self._screen.console) as asking:
                while not waiting.done():
                    await asking.look()
                    await asyncio.wait({waiting}, timeout=LOOK_SECONDS)
            await waiting
        except asyncio.CancelledError:
            self._screen.say("· what went on in the background is stopped too; of workflows see: fanfold runs list")
            raise
        finally:
            waiting.cancel()
        runs = [result, *self._later]
        usage, calls = UsageSum(), 0
        for each in runs:
            usage.add(each.usage)
            calls += each.tool_calls_count
        return replace(runs[-1], usage=usage.usage(), tool_calls_count=calls)

    def _hear(self, event: AgentEvent) -> None:
        self._screen.show(event)
        if event.type == "agent_end":
            self._later.append(msgspec.convert(event.payload, AgentResult))
