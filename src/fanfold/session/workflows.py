"""The workflows of a session: made when they are first wanted, for most sessions never do.

What a runtime is made of is loaded then too (`workflow_runtime`): here stands only what each session needs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.notices import Notice
from fanfold.contracts.policy import PermissionPolicy
from fanfold.env import HostEnv
from fanfold.options import SessionOptions
from fanfold.portal import Portal
from fanfold.protocols import AgentExecutor, WorkflowFiles
from fanfold.session.notices import Notices
from fanfold.session.setup import Composer

if TYPE_CHECKING:
    from fanfold.workflow.registry import ScriptFolder
    from fanfold.workflow.run_notices import RunNotices
    from fanfold.workflow.runtime import WorkflowRuntime


class WorkflowParts(msgspec.Struct, frozen=True, kw_only=True):
    portal: Portal
    session_id: str
    options: SessionOptions
    policy: PermissionPolicy
    agents: Mapping[str, AgentDefinition]
    composer: Composer
    executor: AgentExecutor
    env: HostEnv
    notices: Notices
    files: Callable[[], WorkflowFiles]
    folder: "Callable[[], ScriptFolder]"


class Workflows:
    """Also the `Outbox` of the session's runs."""

    __slots__ = ("_is_connected", "_parts", "_run_notices", "_runtime")

    def __init__(self, parts: WorkflowParts) -> None:
        self._parts = parts
        self._runtime: WorkflowRuntime | None = None
        self._run_notices: RunNotices | None = None
        self._is_connected = False
        if parts.options.session_id is not None:  # an earlier session of that id may have left something to be told
            self._connect()

    def runtime(self) -> "WorkflowRuntime":
        if self._runtime is None:
            from fanfold.session.workflow_runtime import make_runtime

            self._runtime = make_runtime(self._parts, self._told())
        return self._runtime

    def _told(self) -> "RunNotices":
        if self._run_notices is None:
            from fanfold.workflow.run_notices import RunNotices

            parts = self._parts
            self._run_notices = RunNotices(parts.files, parts.session_id, first=self._connect, look=parts.notices.look)
        return self._run_notices

    def _connect(self) -> None:
        if not self._is_connected:
            self._is_connected = True
            self._parts.notices.connect(self)

    # ---- outbox ----

    async def pending(self) -> Sequence[Notice]:
        """What the conversation has not been told of its runs, oldest first."""
        if not await self._parts.files().notices(self._parts.session_id):
            return ()
        return await self._told().pending()

    async def delivered(self, id: str) -> None:
        await self._told().delivered(id)
