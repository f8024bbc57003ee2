"""The driver: fold, decide, perform, append, until nothing is enabled."""

from collections.abc import Mapping, Sequence

from fanfold.contracts.facts import NewFact, TextTurn, ToolResulted, UserMessaged
from fanfold.contracts.record import JsonObject
from fanfold.errors import StepLimitError, UsageError
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
from fanfold.kernel.fold import fold
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.state import SessionState
from fanfold.protocols import HeldThread
from fanfold.session.effects import Effects
from fanfold.session.keeper import Keeper
from fanfold.session.setup import AgentSetup


class Driver:
    """Drives one held thread. The state it holds is always what the log says, never more."""

    def __init__(
        self, setup: AgentSetup, effects: Effects, held: HeldThread, state: SessionState, keeper: Keeper | None = None
    ) -> None:
        self._setup = setup
        self._effects = effects
        self._held = held
        self._keeper = keeper
        self.state = state

    async def ask(self, text: str) -> None:
        """Record a prompt. Calls that are unfinished are first recorded as abandoned (decisions 2.5)."""
        if not isinstance(text, str) or not is_plain(text):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("a prompt must be text that can be written as UTF-8, without lone surrogates")
        state = self.state
        facts = [
            NewFact(
                f"tool-result:{state.turn}:{state.cycle}:{call.id}",
                None,
                ToolResulted(tool_call_id=call.id, ok=False, output="abandoned: a new message came first"),
            )
            for call in state.pending
        ]
        facts.append(NewFact(f"m-{self._held.last_seq + len(facts)}", None, UserMessaged(text)))
        await self._append(facts)

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
            await self._append(facts)

    async def drive(self) -> SessionState:
        """Go on until the turn is done.

        Raises:
            StepLimitError, BudgetExhaustedError, ProviderError, ParkedError: the run ended; the log says how far.
            StorageError: the log could not be written.
        """
        effects = self._effects
        while True:
            action = decide(self.state, self._setup.limits)
            match action:
                case Finish() | Idle():
                    return self.state
                case CallModel():
                    facts = [await effects.call_model(self.state, with_tools=action.with_tools)]
                case RunTools():
                    facts = await effects.run_tools(self.state, action.calls)
                case AwaitConfirmation():
                    facts = [await effects.await_confirmation(action.call, self._held.last_seq)]
                case AwaitAnswer():
                    facts = [await effects.await_answer(self.state, action.call, self._held.last_seq)]
                case Compact():
                    facts = [await effects.compact(self.state, action.kept_messages)]
                case Deny():
                    facts = [effects.deny(self.state, action.call)]
                case StopAtLimit():
                    raise StepLimitError(limit=action.limit)
            await self._append(facts)
            stop_if_cancelled()

    async def _append(self, facts: Sequence[NewFact]) -> None:
        added = await self._held.append(facts)
        self.state = fold(added, self.state)
        if self._keeper is not None and self._keeper.is_due(added):
            await self._keeper.keep()


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
