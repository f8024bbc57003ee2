"""ToolCalls: the tools' part of a run: each call judged, hooked, budgeted, run within its limit, and told."""

import asyncio
import functools
from typing import Any

from msgspec.structs import replace

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.facts import BudgetDenied, NewFact, RecordedCall, ToolResulted
from fanfold.contracts.governance import Blocked, BudgetDenial, Proceed, RetryLater, Skipped
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.policy import Decision
from fanfold.contracts.record import own_copy
from fanfold.contracts.steps import SourceAnchor
from fanfold.foreign import call_foreign, described
from fanfold.kernel.repeats import times_repeated
from fanfold.kernel.state import SessionState
from fanfold.protocols import ToolScope
from fanfold.session.gate import Gate
from fanfold.session.setup import AgentSetup
from fanfold.session.sound import sound_output
from fanfold.session.surroundings import Surroundings, Telling

MAX_ANCHORS = 64
RECENT_TOOLS = 10
"""Names of earlier calls that a hook is told."""
_REPEATED = (
    "Not run: this call was made before in this turn, with the same arguments and the same result. "
    "Change the approach, or answer with what is known."
)


class ToolCalls:
    def __init__(self, setup: AgentSetup, around: Surroundings, telling: Telling, gate: Gate) -> None:
        self._setup = setup
        self._around = around
        self._telling = telling
        self._gate = gate
        self._key_prefix = around.idempotency_prefix or around.session_id
        self._recent: list[str] = []
        self.anchors: dict[tuple[str, str], SourceAnchor] = {}
        """Places that successful tools read, in order, without repeats."""

    async def run(self, state: SessionState, calls: tuple[RecordedCall, ...]) -> list[NewFact]:
        """Run the leading group: the parallel-safe calls together, or the first call alone."""
        group = self._leading_group(calls)
        if len(group) == 1:
            return [await self._run_tool(state, group[0])]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._run_tool(state, call)) for call in group]
        return [task.result() for task in running]

    def _leading_group(self, calls: tuple[RecordedCall, ...]) -> tuple[RecordedCall, ...]:
        size = 0
        for call in calls:
            if self._gate.fault(call) is None and not self._gate.tool(call).spec.is_parallel_safe:
                break
            size += 1
        return calls[: max(1, size)]

    async def _run_tool(self, state: SessionState, call: RecordedCall) -> NewFact:
        output = await self.governed(state, call, is_approved=call.id in state.approved)
        return result_fact(state, call, output)

    async def governed(
        self, state: SessionState, call: RecordedCall, *, is_approved: bool, is_trusted: bool = False
    ) -> ToolOutput:
        self._telling.tell("tool_start", id=call.id, name=call.name)
        refusal = self._gate.refusal(call, is_approved=is_approved) if not is_trusted else self._gate.fault(call)
        if refusal is None and self._is_repeated(state, call):
            refusal = _REPEATED
        if refusal is None and self._around.hooks.hears("pre_tool_use"):
            call, refusal = await self._hooked(call, is_approved=is_approved, is_trusted=is_trusted)
        if refusal is None:
            refusal = await self._tool_denial(call)
        if refusal is None:
            output = await self._execute(state, call, is_trusted=is_trusted)
        else:
            output = ToolOutput(output=refusal, exit_code=1)
            self._telling.tell(
                "permission_denied", tool_id=call.id, tool_name=call.name, args=call.args, reason=refusal
            )
        self._telling.tell(
            "tool_end",
            id=call.id,
            name=call.name,
            output=output.output,
            exit_code=output.exit_code,
            **({"metadata": output.metadata} if output.metadata else {}),
        )
        return output

    def _is_repeated(self, state: SessionState, call: RecordedCall) -> bool:
        threshold = self._setup.duplicate_threshold
        return threshold is not None and times_repeated(state.transcript, call) >= threshold - 1

    async def _hooked(
        self, call: RecordedCall, *, is_approved: bool, is_trusted: bool
    ) -> tuple[RecordedCall, str | None]:
        """The call as the hooks want it, and why it must not run, if so. New arguments are judged anew: what was
        approved were the old ones."""
        payload = {
            "session_id": self._around.session_id,
            "tool": call.name,
            "args": call.args,
            "working_directory": self._around.workspace,
            "recent_tools": list(self._recent),
        }
        verdict = await self._around.hooks.fire("pre_tool_use", payload, self._setup.real_path)
        match verdict:
            case Proceed():
                args: Any = (verdict.modified or {}).get("args", call.args)
                if args == call.args:
                    return call, None
                changed = replace(call, args=args)
                judge = self._gate.fault if is_trusted else functools.partial(self._gate.refusal, is_approved=False)
                return changed, judge(changed)
            case Blocked():
                return call, f"Hook denied {call.name}: {verdict.reason}"
            case Skipped():
                return call, f"Hook skipped {call.name}: it was not run."
            case RetryLater():
                return call, f"Hook denied {call.name}: try again in {verdict.delay_ms} ms"

    async def _execute(self, state: SessionState, call: RecordedCall, *, is_trusted: bool) -> ToolOutput:
        self._telling.tell("tool_execution_start", id=call.id, name=call.name, args=call.args)
        scope = ToolScope(
            session_id=self._around.session_id,
            call_id=call.id,
            idempotency_key=f"{self._key_prefix}:{state.turn}:{state.cycle}:{call.id}",
            emit=self._telling.hear or _nobody,
            workspace=self._around.workspace,
            may_read=_always if is_trusted else self._gate.may_read,
            fetch_decision=_allowed if is_trusted else self._gate.fetch_decision,
        )
        started = self._around.env.clock.monotonic_ms()
        output = await self._within_limit(call, scope)
        self._recent = [*self._recent[1 - RECENT_TOOLS :], call.name]
        if output.exit_code == 0:
            self._note_anchors(call.name, output.source_anchors)
        if self._around.hooks.hears("post_tool_use"):
            took = self._around.env.clock.monotonic_ms() - started
            result = {"success": output.exit_code == 0, "output": output.output, "exit_code": output.exit_code}
            await self._around.hooks.fire(
                "post_tool_use",
                {
                    "session_id": self._around.session_id,
                    "tool": call.name,
                    "args": call.args,
                    "result": {**result, "duration_ms": took},
                },
                self._setup.real_path,
            )
        return output

    async def _within_limit(self, call: RecordedCall, scope: ToolScope) -> ToolOutput:
        args: Any = own_copy(call.args)  # a tool may change them; the call in the transcript stays what the log says
        work = self._gate.tool(call).run(args, scope)
        seconds = self._setup.tool_timeout_seconds
        if seconds is None:
            return sound_output(await call_foreign(work, _failed_tool))
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return sound_output(await call_foreign(work, _failed_tool))
        except TimeoutError:
            if not limit.expired():
                raise
            return ToolOutput(output=f"Tool '{call.name}' did not end within {seconds:g} s; cancelled.", exit_code=1)

    def _note_anchors(self, tool: str, places: tuple[str, ...]) -> None:
        for place in places:
            if len(self.anchors) < MAX_ANCHORS:
                self.anchors.setdefault((tool, place), SourceAnchor(tool=tool, url_or_path=place))

    async def _tool_denial(self, call: RecordedCall) -> str | None:
        ledger = self._around.ledger
        denial = None if ledger is None else ledger.tool_denial()
        if denial is None:
            decision = await self._around.budget.before_tool(self._around.session_id, call.name)
            self._telling.budget(decision)
            return str(decision) if isinstance(decision, BudgetDenial) else None
        self._telling.budget(denial)
        return str(denial)

    def deny(self, state: SessionState, call: RecordedCall) -> NewFact:
        place = f"{state.turn}:{state.cycle}:{call.id}"
        return NewFact(f"budget-denied:{place}", f"budget:{place}", BudgetDenied(call.id))


def _failed_tool(error: BaseException) -> ToolOutput:
    return ToolOutput(output=described(error), exit_code=1)


def result_fact(state: SessionState, call: RecordedCall, output: ToolOutput) -> NewFact:
    ok = output.exit_code == 0
    result = ToolResulted(tool_call_id=call.id, ok=ok, output=output.output, artifact=output.artifact)
    place = f"{state.turn}:{state.cycle}:{call.id}"
    return NewFact(f"tool-result:{place}", f"tool:{place}", result)


def _nobody(_: AgentEvent) -> None:
    return None


def _always(_: str) -> bool:
    return True


def _allowed(_: str) -> Decision:
    return "allow"
