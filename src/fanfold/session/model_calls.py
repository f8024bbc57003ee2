"""ModelCalls: the model's part of a run: each call admitted, reserved, made, told and accounted."""

import asyncio
import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
from msgspec.structs import replace

from fanfold.contracts.events import event
from fanfold.contracts.facts import Compacted, ModelTurn, NewFact, QuestionTurn, TextTurn, ToolTurn
from fanfold.contracts.governance import BudgetDenial
from fanfold.contracts.messages import (
    ASK_USER,
    NO_USAGE,
    TASK,
    ModelReply,
    ModelRequest,
    ToolCall,
    Usage,
    UserMessage,
    append,
)
from fanfold.contracts.record import JsonObject
from fanfold.errors import BudgetExhaustedError, FanfoldError, InternalError, ProviderError
from fanfold.foreign import call_foreign
from fanfold.kernel.fold import estimated_tokens, tokens_after
from fanfold.kernel.schema import OutputSchema, compile_schema
from fanfold.kernel.state import EMPTY, SessionState
from fanfold.kernel.structured import answer_contract, extract
from fanfold.kernel.transcript import SUMMARY_EXCERPT, as_plain_text, excerpt
from fanfold.orchestration.ledger import Reservation
from fanfold.protocols import DeltaSink, EventSink
from fanfold.session.gate import Gate
from fanfold.session.inbox import question_of
from fanfold.session.partials import PartialObjects
from fanfold.session.setup import AgentSetup
from fanfold.session.sound import no_reply, sound_reply
from fanfold.session.surroundings import Surroundings, Telling

_SUMMARY_PROMPT = (
    "Summarise this conversation so that the work can go on from the summary alone: the task, what was found with its "
    "places, what was done, what is left. Keep names, paths and numbers."
)


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


class ModelCalls:
    def __init__(self, setup: AgentSetup, around: Surroundings, telling: Telling, gate: Gate) -> None:
        self._setup = setup
        self._around = around
        self._telling = telling
        self._gate = gate
        self._session_id = around.session_id
        self._turns = 0
        self.extra_usage: Usage = NO_USAGE
        """Of calls beside the turn's own: planning, goals."""
        self.delegate: Callable[[str], JsonObject | None] | None = None
        """Arguments of a `task` call that stands in for the first call of a prompt, if it is to be delegated."""
        self.cut: Usage = NO_USAGE
        """Of the call that was cut off, if one was: no fact tells of it."""
        self.output_schema: JsonObject | None = None
        """Set while the answer has to be JSON."""
        self.partials: OutputSchema | None = None
        """Set while the answer that is to match it is shown as it streams."""
        self.is_repair = False
        """Set once only the answer's form is at stake: no tools then, which would also keep it from being forced."""

    async def call(self, state: SessionState, *, with_tools: bool) -> NewFact:
        """Raises BudgetExhaustedError before the call when it is refused, HookBlockedError, ProviderError."""
        delegated = self._delegated(state) if with_tools else None
        if delegated is not None:
            return delegated
        if self._is_governed():
            await self._admit(state)
        reservation = None if self._around.ledger is None else await self._reserve(state)
        self._turns += 1
        emit = self._telling.hear
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
            emit(event("turn_end", turn=self._turns, usage=msgspec.to_builtins(usage)))
        if self._is_governed():
            await self._generated(reply, usage)
        place = f"{state.turn}:{state.cycle}"
        return NewFact(f"model:{place}", f"infer:{place}", self._as_turn(reply, usage))

    def _delegated(self, state: SessionState) -> NewFact | None:
        message = None if state.transcript is None else state.transcript.message
        if self.delegate is None or state.cycle or state.is_notice or not isinstance(message, UserMessage):
            return None
        # An agent without the tool has nobody to hand work to, and what is attached only the model itself can see.
        if message.attachments or not any(spec.name == TASK for spec in self._setup.specs):
            return None
        args = self.delegate(message.text)
        if args is None:
            return None
        place = f"{state.turn}:{state.cycle}"
        call = self._gate.record(ToolCall(f"auto-task-{state.turn}", TASK, args))
        return NewFact(f"model:{place}", f"infer:{place}", ToolTurn(call=call))

    def _is_governed(self) -> bool:
        """Somebody is to be asked, or told."""
        return self._around.budget.is_set or not self._around.hooks.is_empty

    async def _admit(self, state: SessionState) -> None:
        """Ask the host's guard and its hooks whether the model may be called."""
        await self._readmit(state)
        if self._around.hooks.hears("generate_start"):
            payload = {"model": self._setup.model_id, "estimated_tokens": state.context_tokens}
            await self._telling.ask_hooks("generate_start", **payload)

    async def _generated(self, reply: ModelReply, usage: Usage) -> None:
        await self._around.budget.after_llm(self._session_id, usage)
        if self._around.hooks.hears("generate_end"):
            await self._telling.ask_hooks(
                "generate_end", text=reply.text, usage=usage.to_dict(), stop_reason=reply.stop_reason
            )

    async def ask_json(self, system: str, text: str, schema: JsonObject) -> tuple[Any, Usage]:
        """One model call beside the conversation, whose answer has to be JSON of `schema`; None when it is not.

        Raises:
            BudgetExhaustedError, HookBlockedError: it was not made.
            ProviderError: it failed.
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
            session_id=self._session_id,
            before_retry=functools.partial(self._readmit, state),
        )
        try:
            reply = await self._generate(request)
            spent = usage = _usage_of(reply, state)
        finally:
            _settle(reservation, usage)
        self.extra_usage += spent
        self._around.beside.add(spent)
        await self._generated(reply, spent)
        found = extract(reply.text, compiled, reply.reasoning)
        return (found.value if found.is_valid else None), spent

    def _deltas(self, emit: EventSink) -> DeltaSink | None:
        if self.partials is not None and self._around.streams_partials:
            return PartialObjects(emit, self.partials)
        return _Deltas(emit, self._turns) if self._around.streams_text else None

    async def _generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        """Raises ProviderError, `timeout` when the whole call takes longer than the session allows."""
        work = call_foreign(self._setup.model.generate(request, deltas), _no_answer)
        seconds = self._setup.model_timeout_seconds
        if seconds is None:
            return sound_reply(await work)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return sound_reply(await work)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ProviderError(f"no answer within {seconds:g} s", kind="timeout", retryable=True) from None

    async def _readmit(self, state: SessionState) -> None:
        """Ask the guard alone: before each attempt, where hooks are asked once a call."""
        decision = await self._around.budget.before_llm(self._session_id, state.context_tokens)
        self._telling.budget(decision)
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
            before_retry=functools.partial(self._readmit, state),
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
            self._telling.budget(room)
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
            await self._telling.ask_hooks("pre_compact", before_messages=len(messages), kept_messages=kept_messages)
        self._telling.tell(
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
        self._telling.tell(
            "context_compacted",
            session_id=self._session_id,
            before_messages=len(messages),
            after_messages=kept_messages + 1,
            percent_before=self._percent(state.context_tokens),
            summary=summary,
        )
        self._telling.tell("auto_compact", phase="completed", tokens_used=state.context_tokens, tokens_after=after)
        if self._around.hooks.hears("post_compact"):
            await self._telling.ask_hooks("post_compact", summary=summary, tokens_after=after)
        if key is not None:
            return NewFact(key, None, payload)
        return NewFact(f"compaction:auto:{state.turn}", f"compact:{state.turn}", payload)

    async def _summary(self, state: SessionState, older: str) -> tuple[str, Usage | None]:
        window = self._setup.limits.context_tokens
        # Of a small window all of it together takes half.
        end = SUMMARY_EXCERPT if window is None else min(SUMMARY_EXCERPT, window // 2)
        summary = excerpt(older, end)
        usage: Usage | None = None
        request = ModelRequest(
            model=self._setup.model_id,
            system=_SUMMARY_PROMPT,
            transcript=append(None, UserMessage(summary)),
            session_id=self._around.session_id,
            before_retry=functools.partial(self._readmit, state),
        )
        await self._admit(state)
        reservation = await self._reserve(state)
        try:
            reply = await self._generate(request)
            spent = usage = _usage_of(reply, state)
            # A summary has to be shorter than what it stands for.
            summary = reply.text if 0 < len(reply.text) < len(older) else summary
        except ProviderError:
            return summary, None  # the excerpt stands
        finally:
            _settle(reservation, usage)
        await self._generated(reply, spent)
        return summary, spent

    def _percent(self, tokens: int) -> float | None:
        window = self._setup.limits.context_tokens
        return None if not window else round(100 * tokens / window, 1)


def _no_answer(error: BaseException) -> ModelReply:
    raise error if isinstance(error, FanfoldError) else no_reply(error)


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
