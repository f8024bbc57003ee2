"""How commands about workflows end: what refuses one, and what a run came to, as errors that have their exit codes."""

import re
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

from fanfold.cli.cells import cut, one_line
from fanfold.cli.endings import FailedStepsError, NotThereError, StoppedBySignal, WaitingError
from fanfold.cli.runs_here import counts_text, listing, reason_text
from fanfold.cli.tally import counted
from fanfold.cli.waiting_text import time_text
from fanfold.contracts.workflow_runs import RunSummary, WorkflowResult
from fanfold.errors import AlreadyActiveError, BudgetExhaustedError, FanfoldError, ParkedError, WorkflowInputError
from fanfold.orchestration.ledger import RESOURCE

_NOT_THERE = frozenset({"run_not_found", "unknown_workflow", "bad_run_id"})
_BROKEN = frozenset({"store_unwritable", "journal_missing", "journal_refused", "wrong_moment"})
_LISTINGS = {"run_not_found": "fanfold runs list", "unknown_workflow": "fanfold workflow list"}
_HINTS = {
    "journal_missing": "what it had finished cannot be used any more; begin a new run",
    "store_unwritable": "nothing was started; make room there, or let it be written",
    "args_mismatch": "add --fork for a new run, which begins with what this one has recorded",
}


_LONGEST_REASON = 300


class RunFailedError(FanfoldError):
    """The run, or its files, cannot do what was asked."""

    code = "RUN_FAILED"


@contextmanager
def refusals(run_id: str | None = None, holder: str | None = None) -> Generator[None]:
    """Give what refuses a workflow, or the run `run_id`, the kind that has its exit code; its own code stays.

    Raises:
        NotThereError: there is no such run or workflow.
        AlreadyActiveError: `run_id` runs elsewhere, in `holder`.
        RunFailedError: its files cannot be used.
        WorkflowInputError: everything else, for which the command line has to be changed.
    """
    try:
        yield
    except WorkflowInputError as error:
        raise _ending_of(error, run_id, holder) from error


def _ending_of(error: WorkflowInputError, run_id: str | None, holder: str | None) -> FanfoldError:
    ended: FanfoldError = error
    if error.code == "already_active" and run_id is not None:
        return AlreadyActiveError(name=f"workflow run/{run_id}", holder=holder).with_hint(
            f"follow it with: fanfold logs -f {run_id}\nor stop it with: fanfold workflow stop {run_id}"
        )
    if error.code in _NOT_THERE:
        ended = NotThereError(str(error))
    elif error.code in _BROKEN:
        ended = RunFailedError(str(error))
    ended.code = error.code
    known = _LISTINGS.get(error.code)
    ended.hint = error.hint or (_HINTS.get(error.code) if known is None else listing(known))
    return ended


_REASONS = {
    "auth": "the provider refuses the key",
    "quota": "the provider's limit is reached",
    "requested": "as somebody has asked for",
    "unreachable": "the model's side does not answer",
}
_BUDGET = re.compile(r"Budget exhausted on '(?P<resource>[^']*)': (?P<reason>.*)", re.DOTALL)

Again = Callable[..., str]
"""(verb, run id, further options): the command that goes on with a run."""


def end(result: WorkflowResult, *, allow_failures: bool, again: Again, tools: Collection[str]) -> None:
    """Return when all is well. What the run returned has been printed by then.

    Args:
        tools: that wanted an approval which nobody could give.

    Raises:
        FailedStepsError, BudgetExhaustedError, WaitingError, RunFailedError: it is not.
    """
    resume = f"resume with: {again('resume', result.run_id)}"
    match result.status:
        case "completed":
            return
        case "completed_with_failures":
            if not allow_failures:
                raise FailedStepsError(_failed(result)).with_hint(resume)
        case "paused" if result.reason == "budget_exhausted":
            raise _over_budget(result, again)
        case "paused" if result.reason == "parked":
            raise _parked(result, again, tools)
        case "paused":
            raise _paused(result).with_hint(resume)
        case "failed":
            raise _broken(result).with_hint(resume)
        case _:
            raise _named(f"run {result.run_id} was stopped", "RUN_STOPPED").with_hint(resume)


def stopped(stop: StoppedBySignal, heard: RunSummary | None, run_id: str | None, again: Again) -> None:
    """Say in a stop by Ctrl-C what is kept of the run, and how to go on."""
    if run_id is None:
        stop.message = "stopped before anything was started"
        return
    agents = "" if heard is None or heard.snapshot is None else f"; of its agents {counts_text(heard.snapshot.counts)}"
    stop.message = f"stopped run {run_id}{agents}"
    stop.hint = f"resume with: {again('resume', run_id)}"


def _failed(result: WorkflowResult) -> str:
    counts = result.counts
    parts = [f"{counts.failed} of {counted(counts.launched, 'agent')} failed"] if counts.failed else []
    if counts.null_results:
        parts.append("1 result is None" if counts.null_results == 1 else f"{counts.null_results} results are None")
    return f"run {result.run_id}: {', '.join(parts) or 'something failed'}"


def _over_budget(result: WorkflowResult, again: Again) -> BudgetExhaustedError:
    found = _BUDGET.fullmatch("" if result.error is None else result.error.message)
    resource, reason = (found["resource"], found["reason"]) if found else (RESOURCE, "all of it is spent")
    more = again("resume", result.run_id, "--budget", "TOKENS")
    return BudgetExhaustedError(resource=resource, reason=reason).with_hint(
        f"it covers all attempts of run {result.run_id}, and what is finished is kept; resume with more: {more}"
    )


def _parked(result: WorkflowResult, again: Again, tools: Collection[str]) -> WaitingError:
    waiting = [each for each in result.failures if each.code == ParkedError.code]
    who = "1 agent waits" if len(waiting) == 1 else f"{len(waiting)} agents wait"
    resume = again("resume", result.run_id)
    error = WaitingError(
        f"run {result.run_id}: {who} for an approval or an answer, and nobody can be asked here",
        {
            "run_id": result.run_id,
            "waiting": [{"where": each.where, "label": each.label, "message": each.message} for each in waiting],
            "next_command": resume if "--wait" in resume.split() else f"{resume} --wait",
        },
    )
    rules = " ".join(f"--allow {tool}" for tool in sorted(tools))
    return error.with_hint(
        f"resume with: {again('resume', result.run_id)} {rules or '--allow TOOL'}\n"
        f"or answer from another terminal (fanfold inbox) while it waits: {error.details['next_command']}"
    )


def _paused(result: WorkflowResult) -> RunFailedError:
    why = _REASONS.get(result.reason or "", result.reason or "it is paused")
    until = "" if result.reset_ms is None else f" until {time_text(result.reset_ms)}"
    last = f": {cut(one_line(result.failures[-1].message), _LONGEST_REASON)}" if result.failures else ""
    return _named(f"run {result.run_id} is paused, {why}{until}{last}", "RUN_PAUSED")


def _broken(result: WorkflowResult) -> RunFailedError:
    error = result.error
    if error is None:
        return _named(f"run {result.run_id} failed", RunFailedError.code)
    line = "" if error.line is None else f" (line {error.line} of its script)"
    return _named(f"run {result.run_id} failed: {reason_text(error.code, error.message)}{line}", RunFailedError.code)


def _named(message: str, code: str) -> RunFailedError:
    error = RunFailedError(message)
    error.code = code
    return error
