"""FileTool: a tool whose whole work is one blocking function.

The rule of this package: disk work is done in a worker thread, one hop per call, never on the event loop.
(`bash` alone writes the pieces of a long output where they arrive.) A cancelled call stops waiting at once; a
write that had begun in its thread still ends whole or not at all.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import ToolScope
from fanfold.tools.artifacts import bounded
from fanfold.tools.refusal import ToolRefusal, failed_output
from fanfold.tools.workspace import Workspace


@dataclass(frozen=True, slots=True)
class FileTool:
    spec: ToolSpec
    workspace: Workspace
    work: Callable[[Workspace, JsonObject], ToolOutput]

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        return await asyncio.to_thread(self._answer, args)

    def _answer(self, args: JsonObject) -> ToolOutput:
        try:
            return bounded(self.workspace, self.spec.name, self.work(self.workspace, args))
        except (ToolRefusal, OSError) as error:
            path = args.get("file_path") or args.get("path") or "."
            return failed_output(f"{self.spec.name} {path}", error)
