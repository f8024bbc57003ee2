"""The one gate before every tool call: does it exist, do its arguments fit, is it allowed (decisions 5.2)."""

from fanfold.contracts.agents import ConfirmationInheritance
from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.messages import ToolCall
from fanfold.contracts.policy import Decision
from fanfold.kernel.lanes import asks_person
from fanfold.kernel.permissions import decide_permission, may_read, narrower
from fanfold.kernel.schema import OutputSchema, compile_schema
from fanfold.protocols import Tool
from fanfold.session.setup import AgentSetup

_ASKED: dict[ConfirmationInheritance, Decision] = {
    "inherit_parent": "ask",
    "auto_approve": "allow",
    "deny_on_ask": "deny",
}


class Gate:
    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        self._schemas: dict[str, OutputSchema] = {}
        self._judged: tuple[object, str, str | None] = (None, "", None)
        """Arguments, tool and fault of the call judged last: each is asked about three times on its way."""

    def fault(self, call: ToolCall | RecordedCall) -> str | None:
        """Why the call cannot run at all, told so that the model can do better; None when it can."""
        args, name, fault = self._judged
        if args is not call.args or name != call.name:
            fault = self._fault(call)
            self._judged = (call.args, call.name, fault)
        return fault

    def _fault(self, call: ToolCall | RecordedCall) -> str | None:
        tool = self._setup.tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self._setup.tools)) or "none"
            return f"There is no tool '{call.name}'. Available: {known}."
        if isinstance(call.args, str):
            return f"The arguments of '{call.name}' are not a JSON object: {call.args[:200]}"
        errors = self._schema_of(tool).validate(call.args)
        if errors:
            return f"The arguments of '{call.name}' do not fit its schema: {'; '.join(errors)}"
        return None

    def _schema_of(self, tool: Tool) -> OutputSchema:
        spec = tool.spec
        if spec.name not in self._schemas:
            self._schemas[spec.name] = compile_schema(spec.parameters)
        return self._schemas[spec.name]

    def decision(self, call: ToolCall | RecordedCall) -> Decision:
        """The strictest answer of all policies, for a call without fault."""
        spec = self._setup.tools[call.name].spec
        args = call.args if isinstance(call.args, dict) else {}
        real_path = self._setup.real_path
        own, *narrowing = self._setup.policies
        verdict: Decision = decide_permission(own, spec, args, real_path=real_path)[0]
        for policy in narrowing:
            decided = decide_permission(policy, spec, args, real_path=real_path)[0]
            verdict = narrower(verdict, _ASKED[self._setup.inheritance] if decided == "ask" else decided)
        if verdict == "ask" and not asks_person(self._setup.confirmation, spec):
            return "allow"
        return verdict

    def record(self, call: ToolCall) -> RecordedCall:
        """The call as the log keeps it, with the need for an approval decided now and for good."""
        needs_person = self.fault(call) is None and self.decision(call) == "ask"
        return RecordedCall(id=call.id, name=call.name, args=call.args, needs_confirmation=needs_person)

    def refusal(self, call: RecordedCall, *, is_approved: bool) -> str | None:
        """Why the call must not run now: checked again at execution, for policies change while a call is parked."""
        fault = self.fault(call)
        if fault is not None:
            return fault
        decision = self.decision(call)
        if decision == "allow" or (decision == "ask" and is_approved):
            return None
        return f"Permission denied: Tool '{call.name}' is blocked by permission policy."

    def may_read(self, path: str) -> bool:
        return all(may_read(policy, path) for policy in self._setup.policies)

    def fetch_decision(self, url: str) -> Decision:
        """Whether `web_fetch` may follow a link or redirect to `url`."""
        return self.decision(ToolCall("", "web_fetch", {"url": url}))

    def tool(self, call: RecordedCall) -> Tool:
        return self._setup.tools[call.name]
