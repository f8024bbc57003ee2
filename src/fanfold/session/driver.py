"""The driver: fold, decide, perform, append, until nothing is enabled."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from fanfold.contracts.facts import Fact, NewFact, TextTurn, ToolResulted, UserMessaged
from fanfold.contracts.messages import Attachment
from fanfold.contracts.notices import Notice
from fanfold.contracts.record import JsonObject
from fanfold.errors import AppendConflictError, HookBlockedError, StepLimitError, UsageError
from fanfold.foreign import stop_if_cancelled
from fanfold.kernel.decide import (
    AwaitAnswer,
    AwaitConfirmation,
    CallModel,
    Compact,
    Deny,
    Finish,
    Idle,
    RunTools,
    StopAtLimit,
    decide,
)
from fanfold.kernel.fold import NOTICE_PREFIX, STEER_PREFIX, fold
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.state import SessionState
from fanfold.portal import complete
from fanfold.protocols import HeldThread
from fanfold.runs.control_request import ControlRequest
from fanfold.runs.run_inbox import RunInbox
from fanfold.session.effects import Effects
from fanfold.session.notices import Notices
from fanfold.session.setup import AgentSetup


class Watcher(Protocol):
    async def appended(self, facts: Sequence[Fact], state: SessionState) -> None:
        """They are in the log, and `state` is what it says. Nothing follows from them before this returns."""
        ...


class Driver:
    """Drives one held thread. The state it holds is always what the log says, never more."""

    def __init__(
        self,
        setup: AgentSetup,
        effects: Effects,
        held: HeldThread,
        state: SessionState,
        watcher: Watcher | None = None,
        inbox: RunInbox | None = None,
        notices: Notices | None = None,
    ) -> None:
        self._limits = setup.limits
        self._effects = effects
        self._held = held
        self._watcher = watcher
        self._inbox = inbox
        self._notices = notices
        self.state = state

    async def ask(self, text: str, attachments: tuple[Attachment, ...] = (), *, is_aside: bool = False) -> None:
        """Record a prompt, and in front of it the notices that are known to wait. Calls that are unfinished are first
        recorded as abandoned (decisions 2.5)."""
        if not isinstance(text, str) or not is_plain(text):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("a prompt must be text that can be written as UTF-8, without lone surrogates")
        await self.notify(begins_run=True)
        facts = _abandoned(self.state, "abandoned: a new message came first")
        key = f"{'aside' if is_aside else 'm'}-{self._held.last_seq + len(facts)}"
        facts.append(NewFact(key, None, UserMessaged(text, attachments)))
        await self.append(facts)

    async def interrupt(self, text: str) -> None:
        """End the turn at a person's wish: unfinished calls are recorded as abandoned, `text` stands for the answer."""
        if self.state.phase in ("idle", "done"):
            return
        facts = _abandoned(self.state, "abandoned: the run was interrupted")
        turn = TextTurn(text=text, stop_reason="interrupted")
        facts.append(NewFact(f"model:interrupted:{self._held.last_seq + len(facts)}", None, turn))
        await self.append(facts)

    async def seed(self, history: Sequence[JsonObject]) -> None:
        """Record an explicit history; only an empty log takes one (seed 002)."""
        if self.state.facts:
            return
        if not all(isinstance(message, Mapping) for message in history):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError('history must be a list of {"role": ..., "content": ...}')
        facts: list[NewFact] = []
        for index, (role, text) in enumerate(_spoken(history)):
            if role == "user":
                facts.append(NewFact(f"m-hist-{index}", None, UserMessaged(text)))
            else:
                facts.append(NewFact(f"model:hist:{index}", None, TextTurn(text=text)))
        if facts:
            await self.append(facts)

    async def drive(self) -> SessionState:
        """Go on until the turn is done.

        Raises:
            StepLimitError, BudgetExhaustedError, ProviderError, ParkedError: the run ended; the log says how far.
            StorageError: the log could not be written.
        """
        effects = self._effects
        while True:
            stop_if_cancelled()
            action = decide(self.state, self._limits)
            if self._has_notices() and isinstance(action, (CallModel, Finish)) and await self._notified():
                continue
            if self._has_steers() and isinstance(action, (CallModel, Finish)) and await self._steered():
                continue
            match action:
                case Finish() | Idle():
                    # Nothing is awaited between the last look for steers and this: no accepted one is left over.
                    if self._inbox is not None:
                        self._inbox.refuse_steers()
                    return self.state
                case CallModel():
                    facts = [await effects.model.call(self.state, with_tools=action.with_tools)]
                case RunTools():
                    facts = await effects.tools.run(self.state, action.calls)
                case AwaitConfirmation():
                    facts = [await effects.people.await_confirmation(self.state, action.call, self._held.last_seq)]
                case AwaitAnswer():
                    facts = [await effects.people.await_answer(self.state, action.call, self._held.last_seq)]
                case Compact():
                    facts = await self._compacted(action)
                case Deny():
                    facts = [effects.tools.deny(self.state, action.call)]
                case StopAtLimit():
                    raise StepLimitError(limit=action.limit)
            await self.append(facts)

    async def _compacted(self, action: Compact) -> list[NewFact]:
        try:
            return [await self._effects.model.compact(self.state, action.kept_messages)]
        except HookBlockedError as error:
            if error.event != "pre_compact":
                raise
            # What a hook stops there is the compaction, not the run.
            self._limits = replace(self._limits, compacts=False)
            self._effects.telling.tell("auto_compact", phase="blocked", reason=error.reason)
            return []

    async def append(self, facts: Sequence[NewFact]) -> None:
        if not facts:
            return
        added = await self._held.append(facts)
        if added and added[0].seq <= self.state.last_seq:  # the log had them
            raise AppendConflictError(thread=self._effects.around.session_id, key=facts[0].key, seq=added[0].seq)
        self.state = fold(added, self.state)
        if self._watcher is not None:
            await self._watcher.appended(added, self.state)

    # ---- notices ----

    def _has_notices(self) -> bool:
        return self._notices is not None and self._notices.has_any

    async def _notified(self) -> bool:
        """Record the notices that wait, here or in an outbox; True when there were some, and the turn is a new one."""
        await self.look_for_notices()
        return await self.notify()

    async def look_for_notices(self, *, begins_run: bool = False) -> None:
        """Have those of the outboxes be known too, which are asked once a run and when there is news."""
        if self._notices is not None:
            if begins_run:
                self._notices.expect()
            await self._notices.ask()

    async def notify(self, *, begins_run: bool = False) -> bool:
        """Record the notices that are known to wait; False when the log had all of them.

        Args:
            begins_run: none is under way that they could continue; its steps and its usage are counted from them on.
        """
        before = self.state.turn
        if self._notices is not None:
            for notice in self._notices.waiting():
                is_first = begins_run and self.state.turn == before
                await complete(self._notify(notice, None if is_first else f"turn:{self.state.turn}"))
                await self._notices.delivered(notice)
        return self.state.turn > before

    async def _notify(self, notice: Notice, cause: str | None) -> None:
        facts = _abandoned(self.state, "abandoned: a new message came first")
        facts.append(NewFact(f"{NOTICE_PREFIX}{notice.id}", cause, UserMessaged(notice.text)))
        try:
            await self.append(facts)
        except AppendConflictError:
            pass  # the log has it: from before a crash, or from another process

    # ---- steers (notes 5.5) ----

    def _has_steers(self) -> bool:
        return self._inbox is not None and self._inbox.next("steer") is not None

    async def _steered(self) -> bool:
        """Record the steers that wait; True when there were some, and so the turn is a new one."""
        inbox, before = self._inbox, self.state.turn
        while inbox is not None and (waiting := inbox.next("steer")) is not None:
            await complete(self._steer(inbox, *waiting))  # what is in the log was applied, whatever comes meanwhile
        return self.state.turn > before

    async def _steer(self, inbox: RunInbox, request_id: str, request: ControlRequest) -> None:
        key, message = f"{STEER_PREFIX}{request_id}", UserMessaged(request.input)
        try:
            await self.append([NewFact(key, None, message)])
        except AppendConflictError as error:
            # The log has it from an earlier process, whose receipts nobody here remembers.
            if request.request_id is None:  # ours, from sequential ids that have begun anew
                await self.append([NewFact(f"{key}#{self._held.last_seq}", None, message)])
            elif (await self._held.read(error.seq - 1))[0].payload != message:
                inbox.refused(request_id)
                return
        inbox.applied(request_id)


def _abandoned(state: SessionState, why: str) -> list[NewFact]:
    return [
        NewFact(
            f"tool-result:{state.turn}:{state.cycle}:{call.id}",
            None,
            ToolResulted(tool_call_id=call.id, ok=False, output=why),
        )
        for call in state.pending
    ]


def _spoken(history: Sequence[JsonObject]) -> list[tuple[str, str]]:
    """(role, text) of each message that has text, an assistant's only after a user's."""
    spoken: list[tuple[str, str]] = []
    for message in history:
        content = message.get("content", "")
        parts = [{"text": content}] if isinstance(content, str) else content
        text = "".join(part.get("text", "") for part in parts)
        role = str(message.get("role"))
        if text and (role == "user" or (role == "assistant" and spoken and spoken[-1][0] == "user")):
            spoken.append((role, text))
    return spoken
