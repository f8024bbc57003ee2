"""Session: an agent bound to a workspace and one log. A wide, shallow face over what it delegates to."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from fanfold.contracts.attachments import parse_attachments
from fanfold.contracts.events import AgentResult
from fanfold.contracts.facts import NewFact, RecordedCall
from fanfold.contracts.messages import Attachment
from fanfold.contracts.record import JsonObject, own_copy
from fanfold.errors import UsageError
from fanfold.foreign import logger
from fanfold.kernel.counted import counted
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.transcript import as_history
from fanfold.options import SessionOptions
from fanfold.portal import blocking, on_loop
from fanfold.protocols import EventSink, ToolServer
from fanfold.runs.runs import Run
from fanfold.runs.stream import EventBuffer, EventStream
from fanfold.session.closing import Closing, close_all
from fanfold.session.commands import CommandContext
from fanfold.session.compacting import clear, compact
from fanfold.session.conversation import Begin, RunScope
from fanfold.session.hosted import Hosted
from fanfold.session.inbox import Approval, Inbox, PendingConfirmation, PendingQuestion, is_question, question_of
from fanfold.session.people import answer_fact, confirmation_fact
from fanfold.session.prompting import answered
from fanfold.session.setup import Composer
from fanfold.session.toolbox import Toolbox
from fanfold.session.workflows import Workflows

if TYPE_CHECKING:
    from fanfold.workflow.runtime import WorkflowRuntime

END_HOOK_MS = 5_000
Prompt = str | Mapping[str, Any]
"""A text, or `{"prompt": ..., "history": ..., "attachments": ...}`."""


class Session(Hosted):
    """Made by `Agent.session`. Every operation exists as `x_async` and as blocking `x`."""

    __slots__ = (
        "_answering",
        "_closing",
        "_inbox",
        "_on_close",
        "_options",
        "_warnings",
        "_workflow_source",
        "_workspace",
    )

    def __init__(
        self,
        *,
        workspace: str,
        options: SessionOptions,
        inbox: Inbox,
        workflows: Workflows,
        on_close: Callable[["Session"], Coroutine[Any, Any, None]],
        warnings: Sequence[str] = (),
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self._workspace = workspace
        self._options = options
        self._inbox = inbox
        self._workflow_source = workflows
        self._on_close = on_close
        self._warnings = tuple(warnings)
        self._closing = Closing(self.portal)
        self._answering = asyncio.Lock()
        self._conversation.owned_by(self)

    # ---- identity ----

    @property
    def workspace(self) -> str:
        return self._workspace

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

    @property
    def model(self) -> str:
        """`provider/model-id` that the next prompt goes to."""
        return self._composer.model

    @property
    def init_warning(self) -> str | None:
        """What did not work when the session was opened, and was left out; None when all did."""
        return "\n".join(self._warnings) or None

    @property
    def workflows(self) -> "WorkflowRuntime":
        """Scripts that direct many agents: launch, resume, plan, stop, and their runs (seed 004)."""
        return self._workflow_source.runtime()

    # ---- conversation ----

    @on_loop
    async def send_async(self, prompt: Prompt, history: Sequence[JsonObject] | None = None) -> AgentResult:
        """Ask, and run until the turn is done. The prompt is a fact: a crash loses nothing that was answered.

        `history` seeds an empty log; on a log that has facts it is ignored. With it, `history()` stays as it is, though
        later prompts see what was said (seed 002). A prompt that is a slash command is answered without a model.

        Raises:
            SessionBusyError, SessionClosedError: before anything was recorded.
            RunError: the run ended without an answer; what it did stays in the log.
        """
        return await self._join(await self._start(prompt, history, None, None))

    send = blocking(send_async)

    @on_loop
    async def send_with_attachments_async(
        self, prompt: str, attachments: Sequence[Any], history: Sequence[JsonObject] | None = None
    ) -> AgentResult:
        """`send` with pictures or texts beside the prompt: `{"data": bytes, "media_type": "image/png"}`."""
        return await self._join(await self._start(prompt, history, attachments, None))

    send_with_attachments = blocking(send_with_attachments_async)

    @on_loop
    async def stream_async(self, prompt: Prompt, history: Sequence[JsonObject] | None = None) -> EventStream:
        """Like `send`, as a stream of events; text arrives as the model writes it. Refuses at once when busy."""
        return await self._streamed(prompt, history, None)

    stream = blocking(stream_async)

    @on_loop
    async def stream_with_attachments_async(
        self, prompt: str, attachments: Sequence[Any], history: Sequence[JsonObject] | None = None
    ) -> EventStream:
        return await self._streamed(prompt, history, attachments)

    stream_with_attachments = blocking(stream_with_attachments_async)

    @on_loop
    async def resume_run_async(
        self, run_id: str | None = None, *, events: EventSink | None = None, wait: bool = True
    ) -> AgentResult:
        """Go on where a run stopped, as a new run: recorded model turns are not sent again, a call without a result
        runs once, a finished log answers in zero steps (decisions 2.10).

        With a session store the run may have been another node's: its checkpoint gives the facts that this session's
        own log lacks. `events` hears what `stream` would tell. A run that waits for a person waits on; with
        `wait=False` it raises `ParkedError` instead.

        Raises:
            MissingStoreError, CheckpointNotFoundError: there is nothing to go on from.
            RunCheckpointRefusedError: the checkpoint is not this session's, or of a later version.
        """
        return await self._join(await self._conversation.resume(run_id, events, waits=wait))

    resume_run = blocking(resume_run_async)

    @on_loop
    async def resume_stream_async(self, run_id: str | None = None) -> EventStream:
        """`resume_run` as a stream of events."""
        buffer = EventBuffer()
        return self._stream_of(await self._conversation.resume(run_id, buffer.put), buffer)

    resume_stream = blocking(resume_stream_async)

    def history(self) -> list[JsonObject]:
        """The conversation up to its last finished turn, as `[{"role", "content": [...]}, ...]`; a copy, safe to call
        at any time. What was asked with an explicit history is no part of it."""
        return as_history(self._conversation.state.history)

    @on_loop
    async def compact_async(self) -> bool:
        """Replace the older messages by a summary, now; False when there was nothing to gain. One model call."""
        is_done = False

        async def run(scope: RunScope) -> str:
            nonlocal is_done
            done = await compact(scope.driver, scope.effects, scope.held.last_seq)
            is_done = done.after < done.before
            return f"{counted(done.before, 'message')} became {done.after}"

        async with self._conversation.notices.held_off():
            started = self._conversation.start("/compact", answered(run), takes_steers=False)
        await self._join(started)
        return is_done

    compact = blocking(compact_async)

    @on_loop
    async def save_async(self) -> None:
        """Write the session to its store, as one new generation: conversation, runs, children, tags and options. Does
        nothing without a store.

        Raises:
            AlreadyActiveError, StoreConflictError: another node is at work on this session.
        """
        if self._saved is not None:
            async with self._conversation.notices.held_off():
                await self._operations.run(self._conversation.save(), is_exclusive=True)

    save = blocking(save_async)

    async def _start(
        self,
        prompt: Prompt,
        history: Sequence[JsonObject] | None,
        attachments: Sequence[Any] | None,
        listener: EventSink | None,
    ) -> Run:
        async with self._conversation.notices.held_off(is_prompt=True):
            return self._started(prompt, history, attachments, listener)

    def _started(
        self,
        prompt: Prompt,
        history: Sequence[JsonObject] | None,
        attachments: Sequence[Any] | None,
        listener: EventSink | None,
    ) -> Run:
        self._operations.require(is_exclusive=True)  # before anything is looked at
        if isinstance(prompt, Mapping):
            prompt, history, attachments = _request(prompt, history, attachments)
        if not isinstance(prompt, str) or not is_plain(prompt):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("a prompt must be text that can be written as UTF-8, without lone surrogates")
        command = self._commands.parse(prompt) if attachments is None else None
        if command is not None:
            begin: Begin = answered(lambda scope: self._commands.run(*command, self._command_context(scope)))
        else:
            checked: tuple[Attachment, ...] = () if attachments is None else parse_attachments(attachments)
            begin = self._prompting.prompt(prompt, history, checked)
        return self._conversation.start(prompt, begin, listener=listener, takes_steers=command is None)

    async def _join(self, run: Run) -> AgentResult:
        return await self._operations.join(run.task)

    async def _streamed(
        self, prompt: Prompt, history: Sequence[JsonObject] | None, attachments: Sequence[Any] | None
    ) -> EventStream:
        buffer = EventBuffer()
        return self._stream_of(await self._start(prompt, history, attachments, buffer.put), buffer)

    def _stream_of(self, run: Run, buffer: EventBuffer) -> EventStream:
        return EventStream(self.portal, self._session_id, buffer, run)

    def _command_context(self, scope: RunScope) -> CommandContext:
        usage = self._conversation.usage
        prices = self._composer.for_session().prices
        return CommandContext(
            session_id=self._session_id,
            workspace=self._workspace,
            model=self._composer.model,
            history_len=len(self.history()),
            total_tokens=usage.total_tokens,
            total_cost=None if prices is None else prices.of(usage),
            tool_names=tuple(self.tool_names()),
            actions=_Actions(scope, self._composer, self._toolbox, self.history),
        )

    # ---- runs that nobody asked for ----

    def on_wake(self, listener: EventSink | None) -> None:
        """Have `listener` hear the events of each run that this session starts by itself, from the next one on, because
        work in the background has ended; None: nobody. Without one such a run is found in `runs()`."""
        self._operations.require(is_exclusive=False)
        if listener is not None and not callable(listener):
            raise UsageError(f"listener must be a function of one event, got {listener!r}")
        self._conversation.notices.listener = listener

    @on_loop
    async def settled_async(self) -> None:
        """Return when nothing goes on and nothing will by itself: no run, no work in the background, and no notice of
        such work that would start a run. What only the next prompt is told of is not waited for.

        Raises:
            SessionBusyError: called by a run of this session, which would wait for itself.
            RunCancelledError, SessionClosedError: the session was closed.
        """
        await self._operations.run(self._conversation.notices.settled(), is_exclusive=False)

    settled = blocking(settled_async)

    # ---- people ----

    def pending_confirmations(self) -> list[PendingConfirmation]:
        """Calls that wait for an approval: this session's, its children's, and what a log left parked."""
        waiting = self._inbox.confirmations()
        parked = [
            PendingConfirmation(
                tool_id=call.id, tool_name=call.name, args=own_copy(call.args), session_id=self._session_id
            )
            for call in self._left_parked()
            if call.needs_confirmation
        ]
        return waiting + [each for each in parked if each.tool_id not in {one.tool_id for one in waiting}]

    def pending_questions(self) -> list[PendingQuestion]:
        """Questions that wait for an answer, likewise."""
        waiting = self._inbox.questions()
        parked = [question_of(call, call.id, self._session_id) for call in self._left_parked() if is_question(call)]
        return waiting + [each for each in parked if each.question_id not in {one.question_id for one in waiting}]

    def _left_parked(self) -> list[RecordedCall]:
        # While a run is under way all that waits is in the inbox: what its log had before is taken up, or given up.
        return [] if self._runs.active is not None else self._conversation.parked_calls()

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
        """Answer a question of the model; otherwise as `confirm_tool_use`.

        Raises:
            UsageError: the question has options, allows no other answer, and `text` is none of them.
        """
        _require_text("text", text)
        for asked in self.pending_questions():
            if asked.question_id == question_id and not asked.allow_free_text and text not in asked.options:
                raise UsageError(f"question '{question_id}' takes one of {', '.join(asked.options)}, got {text!r}")
        return self._inbox.reply(question_id, text) or await self._record_answer(
            lambda call: call.id == question_id and is_question(call),
            lambda length: answer_fact(question_id, text, length),
        )

    answer_question = blocking(answer_question_async)

    async def _record_answer(self, waits: Callable[[RecordedCall], bool], make: Callable[[int], NewFact]) -> bool:
        record = self._conversation.record_answer
        async with self._answering:  # for answers to two calls are no overlap
            if self._operations.is_busy:
                return False
            return await self._operations.run(record(waits, make), is_exclusive=True)

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
        servers = [server.close for server in self._toolbox.own_servers]
        await close_all(
            [
                self._operations.close,
                self.abandon_workflows,
                *servers,
                self._tell_end,
                self._hooks.close,
                lambda: self._on_close(self),
            ]
        )

    async def _tell_end(self) -> None:
        if not self._hooks.hears("session_end"):
            return
        try:
            async with asyncio.timeout(END_HOOK_MS / 1000):
                await self._hooks.fire("session_end", {"session_id": self._session_id})
        except TimeoutError:
            logger.warning("session %s: its session_end hooks took longer than %d ms", self._session_id, END_HOOK_MS)

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

    # ---- for the agent that makes it ----

    async def load(self) -> None:
        """Fold what the log already holds. Called once by the agent, when the session takes up an existing thread.

        Raises:
            SessionBusyError: another process runs this thread just now.
        """
        await self._operations.run(self._conversation.load(), is_exclusive=True)

    async def take_up(self) -> None:
        """Be the session that was saved under this id. Called once by the agent, before anybody else has it."""
        await self._operations.run(self._conversation.restore(), is_exclusive=True)


class _Actions:
    """What built-in commands do to their session, inside of the run that answers the command."""

    def __init__(
        self, scope: RunScope, composer: Composer, toolbox: Toolbox, history: Callable[[], list[JsonObject]]
    ) -> None:
        self._scope = scope
        self._composer = composer
        self._toolbox = toolbox
        self.history = history

    async def compact(self) -> tuple[int, int]:
        scope = self._scope
        done = await compact(scope.driver, scope.effects, scope.held.last_seq)
        return done.before, done.after

    async def clear(self) -> None:
        await clear(self._scope.driver, self._scope.held.last_seq)

    async def set_model(self, reference: str) -> None:
        self._composer.change_model(reference)

    def servers(self) -> list[ToolServer]:
        return list(self._toolbox.servers.values())


def _request(
    given: Mapping[str, Any], history: Sequence[JsonObject] | None, attachments: Sequence[Any] | None
) -> tuple[str, Sequence[JsonObject] | None, Sequence[Any] | None]:
    known = ("prompt", "history", "attachments")
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"a request has no key '{unknown[0]}'; there are: {', '.join(known)}")
    if "prompt" not in given:
        raise UsageError("a request needs a prompt: {'prompt': ..., 'history': ..., 'attachments': ...}")
    return given["prompt"], given.get("history", history), given.get("attachments", attachments)


def _require_text(argument: str, value: object) -> None:
    if not isinstance(value, str) or not is_plain(value):
        raise UsageError(f"{argument} must be text that can be written as UTF-8, got {value!r}")
