"""Effects: one coroutine per Action. Each does its piece of the world and returns the facts of what happened."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.facts import (
    BudgetDenied,
    Compacted,
    ConfirmationAnswered,
    ModelTurn,
    NewFact,
    QuestionAnswered,
    QuestionTurn,
    RecordedCall,
    TextTurn,
    ToolResulted,
    ToolTurn,
)
from fanfold.contracts.governance import (
    Blocked,
    BudgetAllowed,
    BudgetDecision,
    BudgetDenial,
    BudgetSoft,
    HookEvent,
    Proceed,
    RetryLater,
    Skipped,
)
from fanfold.contracts.messages import (
    ASK_USER,
    NO_USAGE,
    TASK,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolOutput,
    Usage,
    UserMessage,
    append,
)
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import SourceAnchor
from fanfold.env import Clock, HostEnv
from fanfold.errors import (
    BudgetExhaustedError,
    FanfoldError,
    HookBlockedError,
    InternalError,
    ParkedError,
    ProviderError,
)
from fanfold.foreign import call_foreign, described, logger, tolerant
from fanfold.kernel.fold import denial_text, estimated_tokens, tokens_after
from fanfold.kernel.repeats import times_repeated
from fanfold.kernel.schema import OutputSchema, compile_schema
from fanfold.kernel.state import EMPTY, SessionState
from fanfold.kernel.structured import answer_contract, extract
from fanfold.kernel.transcript import as_plain_text, excerpt
from fanfold.orchestration.ledger import Reservation, TokenLedger
from fanfold.protocols import DeltaSink, EventSink, ToolScope
from fanfold.session.budget import BudgetGate
from fanfold.session.gate import Gate
from fanfold.session.hooks import Hooks
from fanfold.session.inbox import Approval, Inbox, PendingConfirmation, question_of
from fanfold.session.limiter import Slot
from fanfold.session.partials import PartialObjects
from fanfold.session.run_control import ControlRequest, RunInbox
from fanfold.session.setup import AgentSetup
from fanfold.session.sound import no_reply, sound_output, sound_reply

MAX_ANCHORS = 64
MAX_QUESTIONS_PER_RUN = 3
RECENT_TOOLS = 10
"""Names of earlier calls that a hook is told."""
_REPEATED = (
    "Not run: this call was made before in this turn, with the same arguments and the same result. "
    "Change the approach, or answer with what is known."
)
SHOWN_ARGUMENTS = 200
"""Characters of a call's arguments in the message of a parked run."""
_SUMMARY_PROMPT = (
    "Summarise this conversation so that the work can go on from the summary alone: the task, what was found with its "
    "places, what was done, what is left. Keep names, paths and numbers."
)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has around it, apart from the agent itself."""

    session_id: str
    env: HostEnv
    inbox: Inbox
    hooks: Hooks
    budget: BudgetGate
    workspace: str = ""
    approvals: Literal["park", "refuse"] = "park"
    ledger: TokenLedger | None = None
    emit: EventSink | None = None
    streams_text: bool = False
    streams_partials: bool = False
    id_prefix: str = ""
    """Put before call ids in the inbox, so that calls of different children cannot be confused."""
    slot: Slot | None = None
    idempotency_prefix: str = ""
    """Stands before the keys of tool calls; empty: the session id."""
    is_listened_to: bool = True
    """Somebody hears the events, and so that the run waits for a person."""
    memo: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class _Deltas:
    """Passes a streamed reply on as events."""

    def __init__(self, emit: EventSink, turn: int) -> None:
        self._emit = emit
        self._turn = turn

    def text(self, piece: str) -> None:
        self._emit(event("text_delta", text=piece))

    def reasoning(self, piece: str) -> None:
        self._emit(event("reasoning_delta", text=piece))

    def restart(self) -> None:
        self._emit(event("turn_start", turn=self._turn))


class Effects:
    def __init__(self, setup: AgentSetup, around: Surroundings) -> None:
        self._setup = setup
        self._around = around
        self._hear = None if around.emit is None else tolerant(around.emit)
        self._gate = Gate(setup)
        self._turns = 0
        self._key_prefix = around.idempotency_prefix or around.session_id
        self._recent_tools: list[str] = []
        self.extra_usage: Usage = NO_USAGE
        """Of model calls beside the turn's own: planning, goals."""
        self.on_park: Callable[[SessionState], Awaitable[None]] | None = None
        """Told before the run waits for a person: what is folded so far should be found elsewhere too."""
        self.delegate: Callable[[str], JsonObject | None] | None = None
        """Arguments of a `task` call that stands in for the first model call of a prompt, if it is to be delegated."""
        self.cut: Usage = NO_USAGE
        """Of the call that was cut off, if one was: no fact tells of it."""
        self.output_schema: JsonObject | None = None
        """Set while the answer has to be JSON."""
        self.partials: OutputSchema | None = None
        """Set while the answer that is to match it is shown as it streams."""
        self.is_repair = False
        """Set once only the answer's form is at stake: no tools then, which would also keep it from being forced."""
        self.anchors: dict[tuple[str, str], SourceAnchor] = {}
        """Places that successful tools read, in order, without repeats."""

    @property
    def session_id(self) -> str:
        return self._around.session_id

    @property
    def hooks(self) -> Hooks:
        return self._around.hooks

    @property
    def clock(self) -> Clock:
        return self._around.env.clock

    # ---- the model ----

    async def call_model(self, state: SessionState, *, with_tools: bool) -> NewFact:
        """Raises BudgetExhaustedError before the call when it is refused, HookBlockedError, ProviderError."""
        delegated = self._delegated(state)
        if delegated is not None:
            return delegated
        await self._admit(state)
        reservation = await self._reserve(state)
        self._turns += 1
        emit = self._hear
        if emit is not None:
            emit(event("turn_start", turn=self._turns))
        deltas = None if emit is None else self._deltas(emit)
        request = self._request(state, with_tools=with_tools)
        try:
            reply = await self._generate(request, deltas)
        except BaseException as error:
            cut = _cut(state) if isinstance(error, asyncio.CancelledError) else None
            self.cut = cut or self.cut
            _settle(reservation, cut)
            raise
        if isinstance(deltas, PartialObjects):
            deltas.end()
        usage = _usage_of(reply, state)
        _settle(reservation, usage)
        if emit is not None:
            emit(event("turn_end", turn=self._turns, usage=usage.to_dict()))
        await self._generated(reply, usage)
        place = f"{state.turn}:{state.cycle}"
        return NewFact(f"model:{place}", f"infer:{place}", self._as_turn(reply, usage))

    def _delegated(self, state: SessionState) -> NewFact | None:
        message = None if state.transcript is None else state.transcript.message
        if self.delegate is None or state.cycle or not isinstance(message, UserMessage):
            return None
        args = self.delegate(message.text)
        if args is None:
            return None
        place = f"{state.turn}:{state.cycle}"
        call = self._gate.record(ToolCall(f"auto-task-{state.turn}", TASK, args))
        return NewFact(f"model:{place}", f"infer:{place}", ToolTurn(call=call))

    async def _admit(self, state: SessionState) -> None:
        """Ask the host's guard and its hooks whether the model may be called."""
        decision = await self._around.budget.before_llm(self.session_id, state.context_tokens)
        self._hear_budget(decision)
        if isinstance(decision, BudgetDenial):
            raise BudgetExhaustedError(resource=decision.resource, reason=decision.reason)
        if self._around.hooks.hears("generate_start"):
            payload = {"model": self._setup.model_id, "estimated_tokens": state.context_tokens}
            await self.ask_hooks("generate_start", **payload)

    async def _generated(self, reply: ModelReply, usage: Usage) -> None:
        await self._around.budget.after_llm(self.session_id, usage)
        if self._around.hooks.hears("generate_end"):
            await self.ask_hooks("generate_end", text=reply.text, usage=usage.to_dict(), stop_reason=reply.stop_reason)

    async def ask_hooks(self, point: HookEvent, **payload: Any) -> JsonObject:
        """What the hooks made of `payload`.

        Raises:
            HookBlockedError: one of them stopped what comes next; a wish to retry stops it too, here.
        """
        verdict = await self._around.hooks.fire(point, {"session_id": self.session_id, **payload})
        match verdict:
            case Proceed():
                return payload if verdict.modified is None else {**payload, **verdict.modified}
            case Blocked():
                raise HookBlockedError(event=point, reason=verdict.reason)
            case Skipped():
                raise HookBlockedError(event=point, reason="skipped")
            case RetryLater():
                raise HookBlockedError(event=point, reason=f"to be tried again in {verdict.delay_ms} ms")

    async def ask_json(self, system: str, text: str, schema: JsonObject) -> tuple[Any, Usage]:
        """One model call beside the conversation, whose answer has to be JSON of `schema`; None when it is not.

        Raises:
            BudgetExhaustedError, HookBlockedError: it was not made.
        """
        compiled = compile_schema(schema)
        prompt = append(None, UserMessage(f"{text}\n\n{answer_contract(compiled)}"))
        state = replace(EMPTY, transcript=prompt, context_tokens=estimated_tokens(prompt.message))
        await self._admit(state)
        reservation = await self._reserve(state)
        usage: Usage | None = None
        request = ModelRequest(
            model=self._setup.model_id,
            system=system,
            transcript=prompt,
            output_schema=compiled.wire_schema,
            session_id=self.session_id,
        )
        try:
            reply = await self._generate(request)
            usage = _usage_of(reply, state)
            self.extra_usage += usage
        except ProviderError as error:
            logger.warning("session %s: %s", self.session_id, error)
            return None, NO_USAGE
        finally:
            _settle(reservation, usage)
        await self._generated(reply, usage)
        found = extract(reply.text, compiled, reply.reasoning)
        return (found.value if found.is_valid else None), usage

    def _deltas(self, emit: EventSink) -> DeltaSink | None:
        if self.partials is not None and self._around.streams_partials:
            return PartialObjects(emit, self.partials)
        return _Deltas(emit, self._turns) if self._around.streams_text else None

    async def _generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        """Raises ProviderError, `timeout` when the whole call takes longer than the session allows."""
        try:
            async with asyncio.timeout(self._setup.model_timeout_seconds) as limit:
                return sound_reply(await call_foreign(self._setup.model.generate(request, deltas), _no_answer))
        except TimeoutError:
            if not limit.expired():
                raise
            seconds = self._setup.model_timeout_seconds
            raise ProviderError(f"no answer within {seconds:g} s", kind="timeout", retryable=True) from None

    async def _readmit(self, state: SessionState) -> None:
        decision = await self._around.budget.before_llm(self.session_id, state.context_tokens)
        self._hear_budget(decision)
        if isinstance(decision, BudgetDenial):
            raise BudgetExhaustedError(resource=decision.resource, reason=decision.reason)

    def _request(self, state: SessionState, *, with_tools: bool) -> ModelRequest:
        setup = self._setup
        if state.transcript is None:
            raise InternalError("a model call was decided on an empty transcript")
        return ModelRequest(
            model=setup.model_id,
            system=setup.system,
            transcript=state.transcript,
            tools=setup.specs if with_tools and not self.is_repair else (),
            output_schema=self.output_schema,
            max_output_tokens=setup.max_output_tokens,
            temperature=setup.temperature,
            session_id=self._around.session_id,
            before_retry=functools.partial(self._readmit, state) if self._around.budget.is_set else None,
            memo=self._around.memo,
        )

    def _as_turn(self, reply: ModelReply, usage: Usage) -> ModelTurn:
        if not reply.calls:
            return TextTurn(text=reply.text, reasoning=reply.reasoning, usage=usage, stop_reason=reply.stop_reason)
        first = reply.calls[0]
        if len(reply.calls) == 1 and first.name == ASK_USER and self._gate.fault(first) is None:
            asked = question_of(self._gate.record(first), first.id, self._around.session_id)
            return QuestionTurn(
                text=reply.text,
                reasoning=reply.reasoning,
                usage=usage,
                question_id=first.id,
                question=asked.question,
                options=tuple(asked.options),
                allow_free_text=asked.allow_free_text,
            )
        call, *also = (self._gate.record(each) for each in reply.calls)
        return ToolTurn(text=reply.text, reasoning=reply.reasoning, usage=usage, call=call, also=tuple(also))

    async def _reserve(self, state: SessionState) -> Reservation | None:
        """Room for a model call in the shared budget; the step's slot is free while it waits for some."""
        ledger, slot = self._around.ledger, self._around.slot
        if ledger is None:
            return None
        room = await ledger.reserve(state.context_tokens, nullcontext if slot is None else slot.given_back)
        if isinstance(room, BudgetDenial):
            self._hear_budget(room)
            raise BudgetExhaustedError(resource=room.resource, reason=room.reason)
        return room

    async def compact(self, state: SessionState, kept_messages: int, key: str | None = None) -> NewFact:
        """Never fails for the summariser's sake: without a summary the transcript's two ends stand in for it.

        Args:
            key: of a compaction that the host asked for; automatic ones are named by their turn.
        """
        if state.transcript is None:
            raise InternalError("a compaction was decided on an empty transcript")
        messages = list(state.transcript)
        older = as_plain_text(messages[: len(messages) - kept_messages])
        if self._around.hooks.hears("pre_compact"):
            await self.ask_hooks("pre_compact", before_messages=len(messages), kept_messages=kept_messages)
        self._emit(
            "auto_compact",
            phase="started",
            tokens_used=state.context_tokens,
            context_window=self._setup.limits.context_tokens,
        )
        summary, usage = await self._summary(state, older)
        payload = Compacted(
            summary=f"[summary of the conversation so far]\n{summary}", kept_messages=kept_messages, usage=usage
        )
        after = tokens_after(state, payload)
        self._emit(
            "context_compacted",
            session_id=self.session_id,
            before_messages=len(messages),
            after_messages=kept_messages + 1,
            percent_before=self._percent(state.context_tokens),
            summary=summary,
        )
        self._emit("auto_compact", phase="completed", tokens_used=state.context_tokens, tokens_after=after)
        if self._around.hooks.hears("post_compact"):
            await self.ask_hooks("post_compact", summary=summary, tokens_after=after)
        if key is not None:
            return NewFact(key, None, payload)
        return NewFact(f"compaction:auto:{state.turn}", f"compact:{state.turn}", payload)

    async def _summary(self, state: SessionState, older: str) -> tuple[str, Usage | None]:
        summary, usage = excerpt(older), None
        request = ModelRequest(
            model=self._setup.model_id,
            system=_SUMMARY_PROMPT,
            transcript=append(None, UserMessage(summary)),
            session_id=self._around.session_id,
        )
        await self._admit(state)
        reservation = await self._reserve(state)
        try:
            reply = await self._generate(request)
            usage = _usage_of(reply, state)
            # A summary has to be shorter than what it stands for.
            summary = reply.text if 0 < len(reply.text) < len(older) else summary
        except ProviderError:
            return summary, None  # the excerpt stands
        finally:
            _settle(reservation, usage)
        await self._generated(reply, usage)
        return summary, usage

    def _percent(self, tokens: int) -> float | None:
        window = self._setup.limits.context_tokens
        return None if not window else round(100 * tokens / window, 1)

    # ---- tools ----

    async def run_tools(self, state: SessionState, calls: tuple[RecordedCall, ...]) -> list[NewFact]:
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
        output = await self._governed(state, call, is_approved=call.id in state.approved)
        return _result_fact(state, call, output)

    async def run_direct(self, call: RecordedCall, *, is_governed: bool) -> ToolOutput:
        """A call that the host makes itself: with hooks, budget and limits, and, `is_governed`, with the permission
        rules and approvals too."""
        fault = self._gate.fault(call)
        if fault is not None:
            return ToolOutput(output=fault, exit_code=1)
        is_approved = not is_governed
        if is_governed and self._gate.record(call.as_call()).needs_confirmation:
            approval = await self._approval(EMPTY, call)
            if not approval.approved:
                return ToolOutput(output=denial_text(approval.reason), exit_code=1)
            is_approved = True
        return await self._governed(EMPTY, call, is_approved=is_approved, is_trusted=not is_governed)

    async def _governed(
        self, state: SessionState, call: RecordedCall, *, is_approved: bool, is_trusted: bool = False
    ) -> ToolOutput:
        self._emit("tool_start", id=call.id, name=call.name)
        refusal = self._gate.refusal(call, is_approved=is_approved) if not is_trusted else self._gate.fault(call)
        if refusal is None and self._is_repeated(state, call):
            refusal = _REPEATED
        if refusal is None and self._around.hooks.hears("pre_tool_use"):
            call, refusal = await self._hooked(call, is_approved=is_approved, is_trusted=is_trusted)
        if refusal is None:
            refusal = await self._tool_denial(call)
        if refusal is None:
            output = await self._execute(state, call)
        else:
            output = ToolOutput(output=refusal, exit_code=1)
            self._emit("permission_denied", tool_id=call.id, tool_name=call.name, args=call.args, reason=refusal)
        self._emit(
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
            "session_id": self.session_id,
            "tool": call.name,
            "args": call.args,
            "working_directory": self._around.workspace,
            "recent_tools": list(self._recent_tools),
        }
        verdict = await self._around.hooks.fire("pre_tool_use", payload)
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

    async def _execute(self, state: SessionState, call: RecordedCall) -> ToolOutput:
        self._emit("tool_execution_start", id=call.id, name=call.name, args=call.args)
        scope = ToolScope(
            session_id=self._around.session_id,
            call_id=call.id,
            idempotency_key=f"{self._key_prefix}:{state.turn}:{state.cycle}:{call.id}",
            emit=self._hear or _nobody,
            may_read=self._gate.may_read,
        )
        started = self._around.env.clock.monotonic_ms()
        output = await self._within_limit(call, scope)
        self._recent_tools = [*self._recent_tools[1 - RECENT_TOOLS :], call.name]
        if output.exit_code == 0:
            self._note_anchors(call.name, output.source_anchors)
        if self._around.hooks.hears("post_tool_use"):
            took = self._around.env.clock.monotonic_ms() - started
            result = {"success": output.exit_code == 0, "output": output.output, "exit_code": output.exit_code}
            await self._around.hooks.fire(
                "post_tool_use",
                {
                    "session_id": self.session_id,
                    "tool": call.name,
                    "args": call.args,
                    "result": {**result, "duration_ms": took},
                },
            )
        return output

    async def _within_limit(self, call: RecordedCall, scope: ToolScope) -> ToolOutput:
        args: Any = call.args
        work = self._gate.tool(call).run(args, scope)
        seconds = self._setup.tool_timeout_seconds
        if seconds is None:
            return sound_output(await call_foreign(work, _failed_tool))
        try:
            async with asyncio.timeout(seconds) as limit:
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
            decision = await self._around.budget.before_tool(self.session_id, call.name)
            self._hear_budget(decision)
            return str(decision) if isinstance(decision, BudgetDenial) else None
        self._hear_budget(denial)
        return str(denial)

    def deny(self, state: SessionState, call: RecordedCall) -> NewFact:
        place = f"{state.turn}:{state.cycle}:{call.id}"
        return NewFact(f"budget-denied:{place}", f"budget:{place}", BudgetDenied(call.id))

    # ---- people ----

    async def await_confirmation(self, state: SessionState, call: RecordedCall, length: int) -> NewFact:
        if not self._gate.record(call.as_call()).needs_confirmation:
            return confirmation_fact(call.id, Approval(True, "a rule allows it by now"), length)
        return confirmation_fact(call.id, await self._approval(state, call), length)

    async def _approval(self, state: SessionState, call: RecordedCall) -> Approval:
        if (decided := await self._hooked_approval(call)) is not None:
            return decided
        policy = self._setup.confirmation
        tool_id = self._around.inbox.free_id(self._around.id_prefix + call.id)
        timeout_ms = policy.timeout_ms or 0
        self._emit("confirmation_required", tool_id=tool_id, tool_name=call.name, args=call.args, timeout_ms=timeout_ms)
        item = PendingConfirmation(
            tool_id=tool_id, tool_name=call.name, args=call.args, session_id=self._around.session_id
        )
        await self._tell_parked(state)
        self._refuse_if_nobody_answers(tool_id, call, f"approval of {call.name}({_excerpt(call.args)})")
        self._warn_if_nobody_listens(f"approval of {call.name}: session.confirm_tool_use({tool_id!r}, True)")
        try:
            async with asyncio.timeout(None if policy.timeout_ms is None else policy.timeout_ms / 1000) as limit:
                approval: Approval = await self._parked(self._around.inbox.confirmation(item))
        except TimeoutError:
            if not limit.expired():
                raise
            self._emit("confirmation_timeout", tool_id=tool_id, action_taken=policy.timeout_action)
            return Approval(policy.timeout_action == "auto_approve", f"nobody answered within {timeout_ms} ms")
        self._emit("confirmation_received", tool_id=tool_id, approved=approval.approved, reason=approval.reason)
        if self._around.hooks.hears("on_confirmation"):
            await self.ask_hooks("on_confirmation", tool_id=tool_id, tool=call.name, approved=approval.approved)
        return approval

    async def _hooked_approval(self, call: RecordedCall) -> Approval | None:
        """What a hook at `permission_request` decides in a person's stead: it denies by blocking, and approves with
        `{"action": "continue", "modified": {"approved": True}}`."""
        if not self._around.hooks.hears("permission_request"):
            return None
        payload = {"session_id": self.session_id, "tool": call.name, "args": call.args}
        verdict = await self._around.hooks.fire("permission_request", payload)
        match verdict:
            case Proceed():
                return Approval(True, "by a hook") if (verdict.modified or {}).get("approved") is True else None
            case Blocked():
                return Approval(False, verdict.reason)
            case Skipped() | RetryLater():
                return Approval(False, "put off by a hook")

    async def _tell_parked(self, state: SessionState) -> None:
        if self.on_park is not None:
            await self.on_park(state)

    async def await_answer(self, state: SessionState, call: RecordedCall, length: int) -> NewFact:
        refusal = self._gate.fault(call)
        if state.questions >= MAX_QUESTIONS_PER_RUN:
            refusal = "ask_user question cap exceeded"
        if refusal is not None:
            return _result_fact(state, call, ToolOutput(output=refusal, exit_code=1))
        question_id = self._around.inbox.free_id(self._around.id_prefix + call.id)
        item = question_of(call, question_id, self._around.session_id)
        self._emit(
            "user_question",
            question_id=question_id,
            question=item.question,
            options=item.options,
            allow_free_text=item.allow_free_text,
        )
        await self._tell_parked(state)
        self._refuse_if_nobody_answers(question_id, call, f"an answer to: {item.question}")
        self._warn_if_nobody_listens(f"an answer: session.answer_question({question_id!r}, text)")
        text = await self._parked(self._around.inbox.answer(item))
        return answer_fact(call.id, text, length)

    def _refuse_if_nobody_answers(self, item_id: str, call: RecordedCall, what: str) -> None:
        if self._around.approvals == "refuse":
            raise ParkedError(tool_id=item_id, tool_name=call.name, what=what, args_of_call=call.args)

    def _warn_if_nobody_listens(self, what: str) -> None:
        # A run that waits and says nothing looks like one that hangs.
        if self._hear is None or not self._around.is_listened_to:
            logger.warning("session %s waits for %s", self._around.session_id, what)

    async def _parked(self, waiting: Any) -> Any:
        if self._around.slot is None:
            return await waiting
        async with self._around.slot.given_back():
            return await waiting

    # ---- events ----

    def _emit(self, kind: str, /, **payload: Any) -> None:
        if self._hear is not None:
            self._hear(AgentEvent(type=kind, payload=payload))

    def _hear_budget(self, decision: BudgetDecision) -> None:
        match decision:
            case BudgetAllowed():
                return
            case BudgetSoft():
                more = {} if decision.message is None else {"message": decision.message}
                self._emit(
                    "budget_threshold_hit",
                    resource=decision.resource,
                    kind="soft",
                    consumed=decision.consumed,
                    limit=decision.limit,
                    **more,
                )
            case BudgetDenial():
                self._emit(
                    "budget_threshold_hit",
                    resource=decision.resource,
                    kind="hard",
                    consumed=0.0,
                    limit=0.0,
                    message=decision.reason,
                )

    def told_control(self, inbox: RunInbox, request_id: str, request: ControlRequest) -> None:
        """A control of the run has had its effect."""
        now = inbox.snapshot()
        more = {"input": request.input} if request.operation == "steer" else {"reason": request.reason}
        self._emit(
            "run_control_applied",
            request_id=request_id,
            operation=request.operation,
            turn_id=now.turn_id,
            turn_revision=now.turn_revision,
            **more,
        )


def _excerpt(args: JsonObject | str) -> str:
    """What a person has to know of a call's arguments, on one line."""
    text = args if isinstance(args, str) else encode_json(args).decode()
    return text if len(text) <= SHOWN_ARGUMENTS else f"{text[:SHOWN_ARGUMENTS]}…"


def _no_answer(error: BaseException) -> ModelReply:
    raise error if isinstance(error, FanfoldError) else no_reply(error)


def _failed_tool(error: BaseException) -> ToolOutput:
    return ToolOutput(output=described(error), exit_code=1)


def _result_fact(state: SessionState, call: RecordedCall, output: ToolOutput) -> NewFact:
    ok = output.exit_code == 0
    result = ToolResulted(tool_call_id=call.id, ok=ok, output=output.output, artifact=output.artifact)
    place = f"{state.turn}:{state.cycle}:{call.id}"
    return NewFact(f"tool-result:{place}", f"tool:{place}", result)


def confirmation_fact(call_id: str, approval: Approval, length: int) -> NewFact:
    payload = ConfirmationAnswered(tool_call_id=call_id, approved=approval.approved, reason=approval.reason)
    return NewFact(f"c-{length}", None, payload)


def answer_fact(call_id: str, text: str, length: int) -> NewFact:
    return NewFact(f"a-{length}", None, QuestionAnswered(question_id=call_id, text=text))


def _cut(state: SessionState) -> Usage:
    """Of a call that was cut off: its prompt was sent, and of what came back nobody tells."""
    return Usage(prompt_tokens=state.context_tokens, total_tokens=state.context_tokens, is_estimated=True)


def _settle(reservation: Reservation | None, usage: Usage | None) -> None:
    if reservation is not None:
        reservation.settle(usage)


def _usage_of(reply: ModelReply, state: SessionState) -> Usage:
    return _estimated(reply, state) if reply.usage is None else reply.usage


def _estimated(reply: ModelReply, state: SessionState) -> Usage:
    size = len(reply.text) + len(reply.reasoning) + sum(len(msgspec.json.encode(call)) for call in reply.calls)
    written = 1 + size // 4
    read = state.context_tokens
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written, is_estimated=True)


def _nobody(_: AgentEvent) -> None:
    return None
