"""What refuses a command about workflows or their runs, as errors that have their exit codes."""

from collections.abc import Generator
from contextlib import contextmanager

from fanfold.cli.endings import NotThereError
from fanfold.cli.runs_here import listing
from fanfold.errors import AlreadyActiveError, FanfoldError, WorkflowInputError

_NOT_THERE = frozenset({"run_not_found", "unknown_workflow", "bad_run_id"})
_BROKEN = frozenset({"store_unwritable", "journal_missing", "journal_refused", "wrong_moment"})
_LISTINGS = {"run_not_found": "fanfold runs list", "unknown_workflow": "fanfold workflow list"}
_HINTS = {
    "script_changed": "without --strict only the calls that changed are run; which ones: add --plan",
    "journal_missing": "what it had finished cannot be used any more; begin a new run",
    "store_unwritable": "nothing was started; make room there, or let it be written",
    "args_mismatch": "add --fork for a new run, which begins with what this one has recorded",
}


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
