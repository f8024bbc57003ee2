"""The driver: fold, decide, perform, append, until nothing is enabled."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from fanfold.contracts.facts import Fact, NewFact, TextTurn, ToolResulted, UserMessaged
from fanfold.contracts.messages import Attachment
from fanfold.contracts.record import JsonObject
from fanfold.errors import AppendConflictError, StepLimitError, UsageError
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
from fanfold.kernel.fold import STEER_PREFIX, fold
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.state import SessionState
from fanfold.protocols import HeldThread
from fanfold.session.effects import Effects
from fanfold.session.run_control import RunInbox
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
    ) -> None:
        self._setup = setup
        self._effects = effects
        self._held = held
        self._watcher = watcher
        self._inbox = inbox
        self.state = state

    async def ask(self, text: str, attachments: tuple[Attachment, ...] = (), *, is_aside: bool = False) -> None:
        """Record a prompt. Calls that are unfinished are first recorded as abandoned (decisions 2.5)."""
        if not isinstance(text, str) or not is_plain(text):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("a prompt must be text that can be written as UTF-8, without lone surrogates")
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
            action = decide(self.state, self._setup.limits)
            if self._has_steers() and isinstance(action, (CallModel, Finish)) and await self._apply_steers():
                continue
            match action:
                case Finish() | Idle():
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
                    facts = [await effects.model.compact(self.state, action.kept_messages)]
                case Deny():
                    facts = [effects.tools.deny(self.state, action.call)]
                case StopAtLimit():
                    raise StepLimitError(limit=action.limit)
            await self.append(facts)
            stop_if_cancelled()

    async def append(self, facts: Sequence[NewFact]) -> None:
        added = await self._held.append(facts)
        if added and added[0].seq <= self.state.last_seq:  # the log had them
            raise AppendConflictError(thread=self._effects.around.session_id, key=facts[0].key, seq=added[0].seq)
        self.state = fold(added, self.state)
        if self._watcher is not None:
            await self._watcher.appended(added, self.state)

    def _has_steers(self) -> bool:
        return self._inbox is not None and self._inbox.waits

    async def _apply_steers(self) -> bool:
        """Record the steers that wait (notes 5.5); True when there were some, and so the turn is a new one."""
        if self._inbox is None or not self._inbox.waits:
            return False
        is_new = False
        for request_id, request in self._inbox.waiting():
            if request.operation == "steer":
                is_new |= await self._steer(request_id, request.input)
                self._inbox.turn_began(self.state.turn)
                self._inbox.applied(request_id)
                self._effects.telling.control(self._inbox, request_id, request)
        return is_new

    async def _steer(self, request_id: str, text: str) -> bool:
        """False for a request that this log has already: of an earlier run, which nobody here remembers."""
        try:
            await self.append([NewFact(f"{STEER_PREFIX}{request_id}", None, UserMessaged(text))])
        except AppendConflictError:
            return False
        return True


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
