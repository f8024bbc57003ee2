"""Effects: what a driver can have done. One coroutine per Action; each returns the facts of what happened."""

from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.messages import ToolOutput
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
        gate = Gate(setup)
        self._gate = gate
        self.around = around
        self.telling = telling = Telling(around)
        self.model = ModelCalls(setup, around, telling, gate)
        self.tools = ToolCalls(setup, around, telling, gate)
        self.people = People(setup, around, telling, gate)

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
