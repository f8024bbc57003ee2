"""Session: an agent bound to a workspace and one log. A wide, shallow face over what it delegates to."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.events import AgentResult, event
from fanfold.contracts.facts import NewFact, RecordedCall
from fanfold.contracts.record import JsonObject
from fanfold.env import HostEnv
from fanfold.errors import CorruptLogError, StorageError, UsageError
from fanfold.kernel.fold import fold
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.state import EMPTY, SessionState
from fanfold.kernel.transcript import as_history
from fanfold.options import SessionOptions
from fanfold.portal import Portal, blocking, on_loop
from fanfold.protocols import EventSink, FactLog, HeldThread
from fanfold.session.child import TaskExecutor
from fanfold.session.closing import Closing, close_all
from fanfold.session.driver import Driver
from fanfold.session.effects import Effects, Surroundings, answer_fact, confirmation_fact
from fanfold.session.fan_outs import FanOuts
from fanfold.session.inbox import Approval, Inbox, PendingConfirmation, PendingQuestion, is_question, question_of
from fanfold.session.limiter import Limiter
from fanfold.session.operations import Operations
from fanfold.session.setup import Composer
from fanfold.session.stream import EventBuffer, EventStream


class Session(FanOuts):
    """Made by `Agent.session`. Every operation exists as `x_async` and as blocking `x`."""

    def __init__(
        self,
        *,
        portal: Portal,
        session_id: str,
        workspace: Path,
        options: SessionOptions,
        env: HostEnv,
        log: FactLog,
        composer: Composer,
        agents: Mapping[str, AgentDefinition],
        new_child_log: Callable[[], FactLog],
        max_parallel_tasks: int,
        on_close: Callable[["Session"], Coroutine[Any, Any, None]],
    ) -> None:
        operations, inbox = Operations(session_id), Inbox()
        executor = TaskExecutor(
            agents=agents,
            setup_for=composer.for_step,
            new_log=new_child_log,
            limiter=Limiter(max_parallel_tasks),
            inbox=inbox,
            env=env,
            approvals=options.approvals or "park",
            streams_partials=bool(options.stream_partials),
            parent_session_id=session_id,
        )
        super().__init__(
            portal=portal,
            session_id=session_id,
            is_named=options.session_id is not None,
            executor=executor,
            store=options.session_store,
            env=env,
            operations=operations,
        )
        self._workspace = workspace
        self._options = options
        self._log = log
        self._composer = composer
        self._on_close = on_close
        self._closing = Closing(portal)
        self._answering = asyncio.Lock()
        self._inbox = inbox
        self._state: SessionState = EMPTY
        self._lineage: object = None
        self._memo: dict[str, Any] = {}

    # ---- identity ----

    @property
    def workspace(self) -> str:
        return str(self._workspace)

    @property
    def tenant_id(self) -> str | None:
        return self._options.tenant_id

    @property
    def principal(self) -> str | None:
        return self._options.principal

    @property
    def agent_template_id(self) -> str | None:
        return self._options.agent_template_id

    @property
    def correlation_id(self) -> str | None:
        return self._options.correlation_id

    # ---- conversation ----

    @on_loop
    async def send_async(self, prompt: str, history: Sequence[JsonObject] | None = None) -> AgentResult:
        """Ask, and run until the turn is done. The prompt is a fact: a crash loses nothing that was answered.

        `history` seeds an empty log; on a log that has facts it is ignored (seed 002).

        Raises:
            SessionBusyError, SessionClosedError: before anything was recorded.
            RunError: the run ended without an answer; what it did stays in the log.
        """
        return await self._operations.run(self._converse(prompt, history, None), is_exclusive=True)

    send = blocking(send_async)

    @on_loop
    async def stream_async(self, prompt: str, history: Sequence[JsonObject] | None = None) -> EventStream:
        """Like `send`, as a stream of events; text arrives as the model writes it. Refuses at once when busy."""
        buffer = EventBuffer()
        run = self._operations.start(self._converse(prompt, history, buffer.put), is_exclusive=True)
        return EventStream(self.portal, self._session_id, buffer, run)

    stream = blocking(stream_async)

    @on_loop
    async def resume_run_async(self, run_id: str | None = None, *, events: EventSink | None = None) -> AgentResult:
        """Go on where the log stands: recorded model turns are not sent again, a call without a result runs once, a
        finished log answers in zero steps. `events` hears what `stream` would tell.

        Raises:
            StorageError: the log is empty, there is nothing to resume.
        """
        return await self._operations.run(self._resume(run_id, events), is_exclusive=True)

    resume_run = blocking(resume_run_async)

    def history(self) -> list[JsonObject]:
        """The transcript as `[{"role", "content": [...]}, ...]`; a copy, safe to call at any time."""
        return as_history(self._state.transcript)

    @on_loop
    async def cancel_async(self) -> bool:
        """Cancel the running `send`, `stream` or `resume_run` and wait until it has stopped; False when idle."""
        return await self._operations.cancel()

    cancel = blocking(cancel_async)

    # ---- people ----

    def pending_confirmations(self) -> list[PendingConfirmation]:
        """Calls that wait for an approval: this session's, its children's, and what a log left parked."""
        waiting = self._inbox.confirmations()
        parked = [
            PendingConfirmation(tool_id=call.id, tool_name=call.name, args=call.args, session_id=self._session_id)
            for call in self._parked_calls()
            if call.needs_confirmation
        ]
        return waiting + [each for each in parked if each.tool_id not in {one.tool_id for one in waiting}]

    def pending_questions(self) -> list[PendingQuestion]:
        """Questions that wait for an answer, likewise."""
        waiting = self._inbox.questions()
        parked = [question_of(call, call.id, self._session_id) for call in self._parked_calls() if is_question(call)]
        return waiting + [each for each in parked if each.question_id not in {one.question_id for one in waiting}]

    def _parked_calls(self) -> list[RecordedCall]:
        return [call for call in self._state.pending if call.id not in self._state.approved]

    @on_loop
    async def confirm_tool_use_async(self, tool_id: str, approved: bool, reason: str | None = None) -> bool:
        """Answer a call that waits for approval. With no run active the answer is recorded as a fact, and
        `resume_run` goes on from it. False when no call of that id waits."""
        if not isinstance(approved, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"approved must be True or False, got {approved!r}")
        _require_text("reason", reason or "")
        approval = Approval(approved, reason or "")
        return self._inbox.confirm(tool_id, approval) or await self._record_answer(
            lambda call: call.id == tool_id and call.needs_confirmation,
            lambda length: confirmation_fact(tool_id, approval, length),
        )

    confirm_tool_use = blocking(confirm_tool_use_async)

    @on_loop
    async def answer_question_async(self, question_id: str, text: str) -> bool:
        """Answer a question of the model; otherwise as `confirm_tool_use`."""
        _require_text("text", text)
        return self._inbox.reply(question_id, text) or await self._record_answer(
            lambda call: call.id == question_id and is_question(call),
            lambda length: answer_fact(question_id, text, length),
        )

    answer_question = blocking(answer_question_async)

    # ---- end ----

    async def close_async(self) -> None:
        """Refuse new work, cancel what runs, wait until it has stopped. Closing twice does nothing more.

        Called from within one of the session's own operations, by a tool say, it cancels that operation too: such a
        caller is not waited for, and gets no further than this.
        """
        await self._closing.wait(self._shut_down)

    def close(self) -> None:
        """Blocking form of `close_async`."""
        self._closing.block(self._shut_down)

    async def _shut_down(self) -> None:
        await close_all([self._operations.close, self.abandon_workflows, lambda: self._on_close(self)])

    def is_closed(self) -> bool:
        return self._closing.is_begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_async()

    # ---- inside ----

    async def load(self) -> None:
        """Fold what the log already holds. Called once by the agent, when the session takes up an existing thread.

        Raises:
            SessionBusyError: another process runs this thread just now.
        """

        async def read() -> None:
            async with self._held():
                pass

        await self._operations.run(read(), is_exclusive=True)

    @asynccontextmanager
    async def _held(self) -> AsyncGenerator[HeldThread]:
        """The thread for one operation, with everything in it folded."""
        held = await self._log.hold(self._session_id)
        try:
            await self._catch_up(held)
            yield held
        finally:
            await asyncio.shield(held.release())

    async def _catch_up(self, held: HeldThread) -> None:
        # What was folded counts only for the log that it came from: one that was cut or replaced is folded anew.
        known = self._state if held.lineage is self._lineage else EMPTY
        try:
            self._state = fold(await held.read(known.last_seq), known)
        except CorruptLogError as error:
            raise CorruptLogError(thread=self._session_id, line=error.line, reason=error.reason) from None
        self._lineage = held.lineage

    async def _converse(self, prompt: str, history: Sequence[JsonObject] | None, emit: EventSink | None) -> AgentResult:
        async def begin(driver: Driver) -> None:
            await driver.seed(history or ())
            await driver.ask(prompt)

        return await self._run(begin, emit, prompt)

    async def _resume(self, run_id: str | None, emit: EventSink | None) -> AgentResult:
        async def begin(driver: Driver) -> None:
            if not driver.state.facts:
                raise StorageError(f"no loop checkpoint found for run '{run_id or self._session_id}'")

        return await self._run(begin, emit, None)

    async def _run(self, begin: Callable[[Driver], Any], emit: EventSink | None, prompt: str | None) -> AgentResult:
        run_id = self._env.ids.new_id()
        setup = self._composer.for_session()
        effects = Effects(setup, self._surroundings(emit))
        async with self._held() as held:
            driver = Driver(setup, effects, held, self._state)
            if emit is not None:
                emit(event("agent_start", prompt=prompt, run_id=run_id))
            try:
                await begin(driver)
                await driver.drive()
            finally:
                self._state = driver.state
                await self._catch_up(held)  # an append that was cancelled may have landed all the same
        return _result(self._state, run_id)

    def _surroundings(self, emit: EventSink | None) -> Surroundings:
        return Surroundings(
            session_id=self._session_id,
            env=self._env,
            inbox=self._inbox,
            approvals=self._options.approvals or "park",
            emit=emit,
            streams_text=emit is not None,
            memo=self._memo,
        )

    async def _record_answer(self, waits: Callable[[RecordedCall], bool], make: Callable[[int], NewFact]) -> bool:
        """Record the answer to a parked call for `resume_run`; False when by now the log has no call that waits."""

        async def record() -> bool:
            async with self._held() as held:
                if not any(waits(call) for call in self._parked_calls()):
                    return False
                self._state = fold(await held.append([make(held.last_seq)]), self._state)
                return True

        async with self._answering:  # for answers to two calls are no overlap
            return not self._operations.is_busy and await self._operations.run(record(), is_exclusive=True)


def _result(state: SessionState, run_id: str) -> AgentResult:
    return AgentResult(
        text=state.text,
        usage=state.usage,
        tool_calls_count=state.tool_results,
        stop_reason=state.stop_reason,
        run_id=run_id,
    )


def _require_text(argument: str, value: object) -> None:
    if not isinstance(value, str) or not is_plain(value):
        raise UsageError(f"{argument} must be text that can be written as UTF-8, got {value!r}")
