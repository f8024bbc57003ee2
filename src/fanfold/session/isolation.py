"""Isolation: a step in a folder of its own, from before its first tool call until what it changed is kept.

A step that begins anew gets a fresh folder. One that goes on from recorded turns goes on in the folder in which those
turns were: where that is not to be had any more it begins anew too, for what it remembers would not be there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, failed
from fanfold.env import Clock
from fanfold.errors import RunCancelledError, UsageError
from fanfold.foreign import logger, stop_if_cancelled
from fanfold.orchestration.spent import Spent, carry_spent, spent_by
from fanfold.protocols import StepFacts, StepFolder, StepFolderEnd, StepFolders
from fanfold.session.keeper import facts_to_go_on
from fanfold.session.setup import AgentSetup

ISOLATION = "ISOLATION"
MAX_TITLE = 72
ISOLATED_PROMPT = (
    "Your tools work in a git worktree of your own: a copy of the workspace as it was last committed. Nobody sees your "
    "changes meanwhile, nor you those of others. Name files by relative paths; other checkouts are out of reach. When "
    "you end, all that you changed is committed to a branch for you: do not commit, and do not switch branches."
)

Work = Callable[[AgentSetup, StepFacts | None, str], Awaitable[StepOutcome]]
"""Runs the step with that setup, from those facts, in that folder."""


async def run_isolated(
    folders: StepFolders | None,
    clock: Clock,
    spec: AgentStepSpec,
    setup: AgentSetup,
    kept: StepFacts | None,
    work: Work,
) -> StepOutcome:
    """The outcome of `work`, with what it left in `worktree`; a failure, and nothing run, where it can have no folder.

    One whose changes could not all be kept has failed, whatever it answered.
    """
    if folders is None:
        return _impossible(spec, "there are no worktrees to be had here (they need a session on a POSIX system)")
    goes_on = kept is not None and bool(facts_to_go_on(kept, setup.limits))
    key = "" if kept is None else kept.key
    try:
        folder = await folders.begin(spec.task_id, key=key, goes_on=goes_on, now_ms=int(clock.now_ms()))
    except UsageError as error:
        return _impossible(spec, str(error))
    except asyncio.CancelledError as stop:
        carry_spent(stop, Spent(NO_USAGE))
        raise
    if kept is not None and not folder.is_taken_up:
        kept = _Anew(kept)
    try:
        outcome = await work(_within(setup, folder), kept, folder.root)
    except BaseException as stop:
        end = await folder.end(message=_message(spec, RunCancelledError.code), now_ms=int(clock.now_ms()))
        _carry(stop, spent_by(stop), end, spec)
        raise
    how = None if outcome.success else outcome.error_code or "failed"
    end = await folder.end(message=_message(spec, how), now_ms=int(clock.now_ms()))
    try:
        stop_if_cancelled()
    except asyncio.CancelledError as stop:
        _carry(stop, Spent(outcome.usage or NO_USAGE, outcome.cost_usd), end, spec)
        raise
    return _kept(outcome, end)


def _carry(stop: BaseException, spent: Spent | None, end: StepFolderEnd, spec: AgentStepSpec) -> None:
    """Have whoever ended the step know what it left."""
    if end.fault is not None:
        logger.warning("step '%s': %s", spec.task_id, end.fault)
    if spent is not None:
        carry_spent(stop, replace(spent, worktree=end.worktree))


def _within(setup: AgentSetup, folder: StepFolder) -> AgentSetup:
    return replace(
        setup,
        tools=folder.bound(setup.tools),
        real_path=folder.real_path,
        system=f"{setup.system}\n\n{ISOLATED_PROMPT}" if setup.tools else setup.system,
    )


def _kept(outcome: StepOutcome, end: StepFolderEnd) -> StepOutcome:
    if end.fault is None:
        return replace(outcome, worktree=end.worktree)
    output = f"{outcome.output}\n\n[{end.fault}]"
    code = ISOLATION if outcome.success else outcome.error_code
    return replace(outcome, worktree=end.worktree, success=False, output=output, error_code=code)


def _impossible(spec: AgentStepSpec, why: str) -> StepOutcome:
    return failed(spec, f"Task failed: isolation='worktree': {why}", code=ISOLATION, usage=NO_USAGE)


def _message(spec: AgentStepSpec, how: str | None) -> str:
    """Of the commit: what it was about, whose it is, and how that ended when it was no success."""
    title = _line(spec.description) or _line(spec.task_id)
    fault = "" if how is None else f"\nIt did not succeed: {how}."
    return f"{title[:MAX_TITLE]}\n\nStep: {_line(spec.task_id)}{fault}"


def _line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


class _Anew(msgspec.Struct):
    """What is kept of a step that begins anew, though there are facts of it."""

    kept: StepFacts
    has_failed: bool = False

    @property
    def key(self) -> str:
        return self.kept.key

    @property
    def recorded(self) -> Sequence[Fact]:
        return ()

    def go_on(self) -> Usage:
        return self.kept.go_on()

    async def record(self, facts: Sequence[Fact]) -> None:
        await self.kept.record(facts)
