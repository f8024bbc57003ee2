"""CrashPoint: the process of a run dies at a chosen place, in earnest or as far as its log and stores can tell.

    for point in every_crash_point():
        workspace = new_folder()
        with point:                                  # what the dying process raises stays inside
            with Agent.create(models=..., tools={"put": point.tool(put)}, open_log=point.open_log) as agent:
                agent.session(workspace, session_id="s").send("go")
        ... the same without the point, and resume_run instead of send

A place is one side of one operation that goes through a wrapper: an append of the log, a change of the store, a run of
a tool, a model call. `before`: it was not done. `after`: it was done, and nobody was told. From then on the wrappers do
nothing but raise SimulatedCrashError; what is held is let go, as the system does for a process that ends.
"""

import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from fanfold.contracts.facts import Fact, NewFact
from fanfold.errors import UsageError
from fanfold.live_sessions import LOG_DIRECTORY
from fanfold.protocols import FactLog, ModelClient, SessionStore, Tool
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing.crashing_seams import CrashingLog, CrashingModel, CrashingStore, CrashingTool
from fanfold.testing.faulty_store import SimulatedCrashError

FactRule = int | Callable[[NewFact], bool]
"""The number of a fact among those that are written, 1 for the first; or what tells the fact."""


class CrashPoint:
    """Where a run dies; give one of the arguments, or none for a run that lives and is only counted.

    Args:
        at: the place by its number, 1 for the first of the run.
        before_fact: before the append that would have written that fact (an append is written whole or not at all).
        after_fact: after the append that has written it.
        in_tool: inside the tool of that name: it has done its work, its result is not recorded.
        how: `raise` SimulatedCrashError, or `kill` this very process (SIGKILL).

    The log has to be wrapped for the other places too: a run takes what a tool or a model raises for an answer and
    goes on, until it writes.
    """

    def __init__(
        self,
        *,
        at: int | None = None,
        before_fact: FactRule | None = None,
        after_fact: FactRule | None = None,
        in_tool: str | None = None,
        how: Literal["raise", "kill"] = "raise",
    ) -> None:
        given = [rule for rule in (at, before_fact, after_fact, in_tool) if rule is not None]
        if len(given) > 1:
            raise UsageError("a crash point is one of at, before_fact, after_fact and in_tool")
        if any(isinstance(rule, int) and rule < 1 for rule in given):
            raise UsageError(f"places and facts are counted from 1, got {given[0]}")
        self._at = at
        self._before_fact = before_fact
        self._after_fact = after_fact
        self._in_tool = in_tool
        self._how = how
        self._facts = 0
        self._ends: list[Callable[[], Awaitable[None]]] = []
        self.places = 0
        """How many the run has come past."""
        self.place = ""
        """Where it died, in words; empty while it lives."""

    @property
    def has_crashed(self) -> bool:
        return bool(self.place)

    # ---- wrappers ----

    def open_log(self, workspace: Path) -> FactLog:
        """The log that an agent opens by itself, wrapped: for `Agent.create(open_log=point.open_log)`."""
        return self.log(JsonlFactLog(workspace / LOG_DIRECTORY))

    def log(self, inner: FactLog) -> FactLog:
        return CrashingLog(self, inner)

    def store(self, inner: SessionStore) -> SessionStore:
        return CrashingStore(self, inner)

    def tool(self, inner: Tool) -> Tool:
        return CrashingTool(self, inner)

    def model(self, inner: ModelClient) -> ModelClient:
        return CrashingModel(self, inner)

    # ---- for the wrappers ----

    def require_alive(self) -> None:
        if self.place:
            raise self._error()

    def at_end(self, end: Callable[[], Awaitable[None]]) -> None:
        """Have `end` awaited when the process dies."""
        self._ends.append(end)

    async def reach(self, place: str) -> None:
        """Come to a place, and die there if it is the one."""
        self.require_alive()
        self.places += 1
        if self.places == self._at or place == f"inside the tool {self._in_tool}":
            await self._die(place)

    async def reach_append(self, facts: Sequence[NewFact]) -> None:
        """The same before an append."""
        if self._before_fact is not None and self._holds(self._before_fact, facts, self._facts):
            self.require_alive()
            await self._die(f"before the append of {_described(facts)}")
        await self.reach(f"before the append of {_described(facts)}")

    async def leave_append(self, facts: Sequence[NewFact], written: Sequence[Fact]) -> None:
        """The same after one."""
        before, self._facts = self._facts, self._facts + len(written)
        if self._after_fact is not None and self._holds(self._after_fact, facts, before):
            await self._die(f"after the append of {_described(facts)}")
        await self.reach(f"after the append of {_described(facts)}")

    def _holds(self, rule: FactRule, facts: Sequence[NewFact], before: int) -> bool:
        if isinstance(rule, int):
            return before < rule <= before + len(facts)
        return any(rule(fact) for fact in facts)

    async def _die(self, place: str) -> None:
        if self._how == "kill":
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows the latter is as hard
        self.place = place
        for end in self._ends:
            await end()
        raise self._error()

    def _error(self) -> SimulatedCrashError:
        error = SimulatedCrashError()
        error.add_note(f"it died {self.place}")
        return error

    # ---- the scope of the process ----

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        # Once the process is dead nobody hears what it raises, and that may be anything: a fan-out makes failed steps
        # of the crash, on which the code of the dead process may act.
        return self.has_crashed and isinstance(error, Exception)

    def __repr__(self) -> str:
        rules = {
            "at": self._at,
            "before_fact": self._before_fact,
            "after_fact": self._after_fact,
            "in_tool": self._in_tool,
        }
        given = ", ".join(f"{name}={rule!r}" for name, rule in rules.items() if rule is not None)
        return f"<CrashPoint({given}): {f'died {self.place}' if self.place else f'alive, {self.places} places'}>"


def every_crash_point() -> Iterator[CrashPoint]:
    """A point for each place of a run, in order, and at last one that the run outlives.

    The body of the loop is to do the same run each time, through the wrappers of the point and from the same start (a
    new directory, a new store), and then to resume it without them.

    Raises:
        AssertionError: the first point was never reached: the run does not go through its wrappers.
    """
    for number in itertools.count(1):
        point = CrashPoint(at=number)
        yield point
        if point.has_crashed:
            continue
        if not point.places:
            raise AssertionError("the run wrote nothing through the wrappers of its crash point, so it cannot crash")
        return


def _described(facts: Sequence[NewFact]) -> str:
    return ", ".join(fact.key for fact in facts) or "nothing"
