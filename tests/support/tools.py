"""Tools for tests: real implementations of the seam, in a few lines."""

import asyncio
from collections.abc import Callable
from typing import Any

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import ToolScope

ANY_ARGS: JsonObject = {"type": "object"}


class RecordingTool:
    """Answers with what `answer` makes of its arguments and remembers every call."""

    def __init__(
        self,
        name: str,
        answer: Callable[[JsonObject], Any] = lambda args: "done",
        *,
        is_read_only: bool = True,
        is_parallel_safe: bool = False,
        parameters: JsonObject = ANY_ARGS,
        wait: "asyncio.Event | None" = None,
    ) -> None:
        self._answer = answer
        self._wait = wait
        self._spec = ToolSpec(
            name=name,
            description=f"the test tool {name}",
            parameters=parameters,
            is_read_only=is_read_only,
            is_parallel_safe=is_parallel_safe,
        )
        self.calls: list[tuple[JsonObject, ToolScope]] = []
        self.running = 0
        self.most_running = 0

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        self.calls.append((args, scope))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self._wait is not None:
                await self._wait.wait()
            else:
                await asyncio.sleep(0)
            answer = self._answer(args)
            return answer if isinstance(answer, ToolOutput) else ToolOutput(output=str(answer))
        finally:
            self.running -= 1
