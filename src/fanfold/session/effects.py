"""Effects: one coroutine per Action. Each does its piece of the world and returns the facts of what happened."""

import asyncio
from contextlib import nullcontext
from typing import Any, Literal

import msgspec

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
from fanfold.contracts.governance import BudgetDenial
from fanfold.contracts.messages import (
    ASK_USER,
    NO_USAGE,
    ModelReply,
    ModelRequest,
    ToolOutput,
    Usage,
    UserMessage,
    append,
)
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import SourceAnchor
from fanfold.env import HostEnv
from fanfold.errors import BudgetExhaustedError, FanfoldError, InternalError, ParkedError, ProviderError
from fanfold.foreign import call_foreign, described, logger, tolerant
from fanfold.kernel.schema import OutputSchema
from fanfold.kernel.state import SessionState
from fanfold.kernel.transcript import as_plain_text, excerpt
from fanfold.orchestration.ledger import Reservation, TokenLedger
from fanfold.protocols import DeltaSink, EventSink, ToolScope
from fanfold.session.gate import Gate
from fanfold.session.inbox import Approval, Inbox, PendingConfirmation, question_of
from fanfold.session.limiter import Slot
from fanfold.session.partials import PartialObjects
from fanfold.session.setup import AgentSetup
from fanfold.session.sound import no_reply, sound_output, sound_reply

MAX_ANCHORS = 64
MAX_QUESTIONS_PER_RUN = 3
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

    # ---- the model ----

    async def call_model(self, state: SessionState, *, with_tools: bool) -> NewFact:
        """Raises BudgetExhaustedError before the call when the guard refuses, ProviderError when it fails."""
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
        place = f"{state.turn}:{state.cycle}"
        return NewFact(f"model:{place}", f"infer:{place}", self._as_turn(reply, usage))

    def _deltas(self, emit: EventSink) -> DeltaSink | None:
        if self.partials is not None and self._around.streams_partials:
            return PartialObjects(emit, self.partials)
        return _Deltas(emit, self._turns) if self._around.streams_text else None

    async def _generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        return sound_reply(await call_foreign(self._setup.model.generate(request, deltas), _no_answer))

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
            self._emit_denial(room)
            raise BudgetExhaustedError(resource=room.resource, reason=room.reason)
        return room

    async def compact(self, state: SessionState, kept_messages: int) -> NewFact:
        """Never fails for the summariser's sake: without a summary the transcript's two ends stand in for it."""
        if state.transcript is None:
            raise InternalError("a compaction was decided on an empty transcript")
        messages = list(state.transcript)
        older = as_plain_text(messages[: len(messages) - kept_messages])
        summary, usage = excerpt(older), None
        request = ModelRequest(
            model=self._setup.model_id,
            system=_SUMMARY_PROMPT,
            transcript=append(None, UserMessage(summary)),
            session_id=self._around.session_id,
        )
        reservation = await self._reserve(state)
        try:
            reply = await self._generate(request)
            summary, usage = reply.text or summary, _usage_of(reply, state)
        except ProviderError:
            pass  # the excerpt stands
        finally:
            _settle(reservation, usage)
        self._emit("context_compacted", before_messages=len(messages), after_messages=kept_messages + 1)
        payload = Compacted(
            summary=f"[summary of the conversation so far]\n{summary}", kept_messages=kept_messages, usage=usage
        )
        return NewFact(f"compaction:auto:{state.turn}", f"compact:{state.turn}", payload)

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
        self._emit("tool_start", id=call.id, name=call.name)
        refusal = self._gate.refusal(call, is_approved=call.id in state.approved) or self._tool_denial(call)
        if refusal is None:
            output = await self._execute(state, call)
        else:
            output = ToolOutput(output=refusal, exit_code=1)
            self._emit("permission_denied", tool_id=call.id, tool_name=call.name, args=call.args, reason=refusal)
        self._emit("tool_end", id=call.id, name=call.name, output=output.output, exit_code=output.exit_code)
        return _result_fact(state, call, output)

    async def _execute(self, state: SessionState, call: RecordedCall) -> ToolOutput:
        self._emit("tool_execution_start", id=call.id, name=call.name, args=call.args)
        scope = ToolScope(
            session_id=self._around.session_id,
            call_id=call.id,
            idempotency_key=f"{self._key_prefix}:{state.turn}:{state.cycle}:{call.id}",
            emit=self._hear or _nobody,
            may_read=self._gate.may_read,
        )
        args: Any = call.args
        output = sound_output(await call_foreign(self._gate.tool(call).run(args, scope), _failed_tool))
        if output.exit_code == 0:
            self._note_anchors(call.name, output.source_anchors)
        return output

    def _note_anchors(self, tool: str, places: tuple[str, ...]) -> None:
        for place in places:
            if len(self.anchors) < MAX_ANCHORS:
                self.anchors.setdefault((tool, place), SourceAnchor(tool=tool, url_or_path=place))

    def _tool_denial(self, call: RecordedCall) -> str | None:
        ledger = self._around.ledger
        denial = None if ledger is None else ledger.tool_denial()
        if denial is None:
            return None
        self._emit_denial(denial)
        return str(denial)

    def deny(self, state: SessionState, call: RecordedCall) -> NewFact:
        place = f"{state.turn}:{state.cycle}:{call.id}"
        return NewFact(f"budget-denied:{place}", f"budget:{place}", BudgetDenied(call.id))

    # ---- people ----

    async def await_confirmation(self, call: RecordedCall, length: int) -> NewFact:
        if not self._gate.record(call.as_call()).needs_confirmation:
            return confirmation_fact(call.id, Approval(True, "a rule allows it by now"), length)
        tool_id = self._around.inbox.free_id(self._around.id_prefix + call.id)
        self._emit("confirmation_required", tool_id=tool_id, tool_name=call.name, args=call.args, timeout_ms=0)
        item = PendingConfirmation(
            tool_id=tool_id, tool_name=call.name, args=call.args, session_id=self._around.session_id
        )
        self._refuse_if_nobody_answers(tool_id, call, f"approval of {call.name}({_excerpt(call.args)})")
        self._warn_if_nobody_listens(f"approval of {call.name}: session.confirm_tool_use({tool_id!r}, True)")
        approval = await self._parked(self._around.inbox.confirmation(item))
        self._emit("confirmation_received", tool_id=tool_id, approved=approval.approved, reason=approval.reason)
        return confirmation_fact(call.id, approval, length)

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
        self._refuse_if_nobody_answers(question_id, call, f"an answer to: {item.question}")
        self._warn_if_nobody_listens(f"an answer: session.answer_question({question_id!r}, text)")
        text = await self._parked(self._around.inbox.answer(item))
        return answer_fact(call.id, text, length)

    def _refuse_if_nobody_answers(self, item_id: str, call: RecordedCall, what: str) -> None:
        if self._around.approvals == "refuse":
            raise ParkedError(tool_id=item_id, tool_name=call.name, what=what, args_of_call=call.args)

    def _warn_if_nobody_listens(self, what: str) -> None:
        # A run that waits and says nothing looks like one that hangs.
        if self._hear is None:
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

    def _emit_denial(self, denial: BudgetDenial) -> None:
        self._emit("budget_threshold_hit", resource=denial.resource, kind="hard", message=denial.reason)


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
