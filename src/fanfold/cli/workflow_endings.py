"""What a run came to, as errors that have their exit codes."""

from collections.abc import Callable, Collection, Sequence
from typing import get_args

from fanfold.cli.cells import cut, one_line
from fanfold.cli.endings import FailedStepsError, StoppedBySignal, WaitingError
from fanfold.cli.runs_here import counts_text, decisions_text, fault_text, first_of, must_be_mended
from fanfold.cli.waiting_here import parked_in_run
from fanfold.cli.waiting_text import commands_for, time_text, waiting_json
from fanfold.cli.workflow_refusals import RunFailedError
from fanfold.contracts.workflow_runs import REPEAT_UNDECIDED, RepeatDecision, RunSummary, WorkflowResult
from fanfold.control.waiting import Waiting
from fanfold.errors import BudgetExhaustedError, ParkedError
from fanfold.kernel.counted import counted
from fanfold.orchestration.ledger import RESOURCE

_LONGEST_REASON = 300
_LONGEST_NAME = 60
_MOST_ANSWERS = 10


_REASONS = {
    "auth": "the provider refuses the key",
    "quota": "the provider's limit is reached",
    "requested": "as somebody has asked for",
    "unreachable": "the model's side does not answer",
}
Again = Callable[..., str]
"""(verb, run id, further options): the command that goes on with a run."""


def end(
    result: WorkflowResult,
    *,
    allow_failures: bool,
    again: Again,
    tools: Collection[str],
    mended: Sequence[str] | None = None,
) -> None:
    """Return when all is well. What the run returned has been printed by then.

    Args:
        tools: that wanted an approval which nobody could give.
        mended: the options with which a resume takes the script once that is mended; None: it is nobody's to mend.

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
            raise _paused(result).with_hint(f"{first_of(result.reason)}{resume}")
        case "failed" if mended is not None and must_be_mended(result.status, result.error, result.failures):
            resume = f"resume with: {again('resume', result.run_id, *mended)}"
            raise _broken(result).with_hint(f"mend the script, then {resume}")
        case "failed":
            raise _broken(result).with_hint(resume)
        case _:
            raise _named(f"run {result.run_id} was stopped", "RUN_STOPPED").with_hint(resume)


def told_by(result: WorkflowResult) -> str:
    """The end of what `end` says of a run that has failed or is paused; empty for any other."""
    if result.status == "failed":
        return "" if result.error is None else result.error.message
    is_paused = result.status == "paused" and result.reason not in ("budget_exhausted", "parked")
    return result.failures[-1].message if is_paused and result.failures else ""


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
    said = "all of it is spent" if result.error is None else result.error.message
    more = again("resume", result.run_id, "--budget", "TOKENS")
    return BudgetExhaustedError.saying(said, resource=RESOURCE).with_hint(
        f"it covers all attempts of run {result.run_id}, and what is finished is kept; resume with more: {more}"
    )


def _parked(result: WorkflowResult, again: Again, tools: Collection[str]) -> WaitingError:
    undecided = sum(each.code == REPEAT_UNDECIDED for each in result.failures)
    agents = sum(each.code == ParkedError.code for each in result.failures)
    decisions = [again("resume", result.run_id, "--repeat", how) for how in get_args(RepeatDecision)]
    if undecided and not agents:
        return WaitingError(
            f"run {result.run_id}: {_agents_wait(undecided)} for a decision; begun before, and not simply run again",
            {"run_id": result.run_id, "waiting": [], "next_commands": decisions},
        ).with_hint(decisions_text(decisions))
    error = _unanswered(result, again, tools, _agents_wait(agents))
    if undecided:
        error.details["next_commands"] = decisions
        error.hint = f"{error.hint}\nand for those that were begun before: {decisions_text(decisions)}"
    return error


def _agents_wait(count: int) -> str:
    return "1 agent waits" if count == 1 else f"{count} agents wait"


def _unanswered(result: WorkflowResult, again: Again, tools: Collection[str], who: str) -> WaitingError:
    resume, waiting = again("resume", result.run_id), parked_in_run(result.run_id)
    error = WaitingError(
        f"run {result.run_id}: {who} for an approval or an answer; without --wait nobody is asked",
        {
            "run_id": result.run_id,
            "waiting": [waiting_json(each) for each in waiting],
            "next_command": resume,
        },
    )
    rules = [word for tool in sorted(tools) for word in ("--allow", tool)]
    lines = ["see what waits with: fanfold inbox"]
    lines += [f"answer {_who(each)}with: {' or '.join(commands_for(each))}" for each in waiting[:_MOST_ANSWERS]]
    lines += [f"then go on with: {resume}"]
    lines += [f"or allow it: {again('resume', result.run_id, *rules)}"] if rules else []
    return error.with_hint("\n".join(lines))


def _who(waiting: Waiting) -> str:
    return "" if waiting.about is None else f"{cut(one_line(waiting.about), _LONGEST_NAME)} "


def _paused(result: WorkflowResult) -> RunFailedError:
    why = _REASONS.get(result.reason or "", result.reason or "it is paused")
    until = "" if result.reset_ms is None else f" until {time_text(result.reset_ms)}"
    last = f": {cut(one_line(result.failures[-1].message), _LONGEST_REASON)}" if result.failures else ""
    return _named(f"run {result.run_id} is paused, {why}{until}{last}", "RUN_PAUSED")


def _broken(result: WorkflowResult) -> RunFailedError:
    error = result.error
    if error is None:
        return _named(f"run {result.run_id} failed", RunFailedError.code)
    return _named(f"run {result.run_id} failed: {fault_text(error, ' of its script')}", RunFailedError.code)


def _named(message: str, code: str) -> RunFailedError:
    error = RunFailedError(message)
    error.code = code
    return error
