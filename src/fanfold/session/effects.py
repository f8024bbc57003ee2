"""Effects: what a driver can have done. One coroutine per Action; each returns the facts of what happened."""

from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.steps import SourceAnchor
from fanfold.kernel.fold import denial_text
from fanfold.kernel.state import EMPTY
from fanfold.session.gate import Gate
from fanfold.session.model_calls import ModelCalls
from fanfold.session.people import People
from fanfold.session.setup import AgentSetup
from fanfold.session.surroundings import Surroundings, Telling
from fanfold.session.tool_calls import ToolCalls


class Effects:
    def __init__(self, setup: AgentSetup, around: Surroundings) -> None:
        self._setup = setup
        self._gate = Gate(setup)
        self.around = around
        self.telling = Telling(around)
        self.model = ModelCalls(setup, around, self.telling, self._gate)
        self._tools: ToolCalls | None = None
        self._people: People | None = None

    # Most children answer in one turn: they get by without the other two.

    @property
    def tools(self) -> ToolCalls:
        if self._tools is None:
            self._tools = ToolCalls(self._setup, self.around, self.telling, self._gate)
        return self._tools

    @property
    def people(self) -> People:
        if self._people is None:
            self._people = People(self._setup, self.around, self.telling, self._gate)
        return self._people

    def anchors(self) -> tuple[SourceAnchor, ...]:
        """Places that successful tools read, in order, without repeats."""
        return () if self._tools is None else tuple(self._tools.anchors.values())

    async def run_direct(self, call: RecordedCall, *, is_governed: bool) -> ToolOutput:
        """A call that the host makes itself: with hooks, budget and limits, and, `is_governed`, with the permission
        rules and approvals too."""
        fault = self._gate.fault(call)
        if fault is not None:
            return ToolOutput(output=fault, exit_code=1)
        is_approved = not is_governed
        if is_governed and self._gate.record(call.as_call()).needs_confirmation:
            approval = await self.people.approval(EMPTY, call)
            if not approval.approved:
                return ToolOutput(output=denial_text(approval.reason), exit_code=1)
            is_approved = True
        return await self.tools.governed(EMPTY, call, is_approved=is_approved, is_trusted=not is_governed)
