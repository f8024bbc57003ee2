"""Exit codes: what a script may conclude from how fanfold ended."""

import enum
import signal

import click

from fanfold.cli.endings import FailedStepsError, NotThereError, StoppedBySignal, WaitingError
from fanfold.errors import (
    AlreadyActiveError,
    BudgetExhaustedError,
    ConfigError,
    ControlError,
    FencedError,
    MissingExtraError,
    ParkedError,
    SessionBusyError,
    StoreConflictError,
    UsageError,
)


class ExitCode(enum.IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    """The command line or an input file named by it is wrong; nothing was run."""
    CONFIG = 3
    """The configuration is invalid, or names something that is not installed."""
    NOT_FOUND = 4
    PARKED = 5
    """Waits for an approval or an answer; the id was printed."""
    BUDGET = 6
    FAILED_STEPS = 7
    """Finished, but some steps failed (`--allow-failures` makes it 0)."""
    BUSY = 8
    """Another process or operation holds the session or workflow, or took it over."""
    INTERRUPTED = 130
    TERMINATED = 143


_BY_CLASS: tuple[tuple[type[BaseException], ExitCode], ...] = (
    # Special before general: the first match counts.
    (ConfigError, ExitCode.CONFIG),
    (MissingExtraError, ExitCode.CONFIG),
    (UsageError, ExitCode.USAGE),
    (click.UsageError, ExitCode.USAGE),
    (NotThereError, ExitCode.NOT_FOUND),
    (ParkedError, ExitCode.PARKED),
    (WaitingError, ExitCode.PARKED),
    (BudgetExhaustedError, ExitCode.BUDGET),
    (FailedStepsError, ExitCode.FAILED_STEPS),
    (SessionBusyError, ExitCode.BUSY),
    (AlreadyActiveError, ExitCode.BUSY),
    (FencedError, ExitCode.BUSY),
    (StoreConflictError, ExitCode.BUSY),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (click.Abort, ExitCode.INTERRUPTED),
)


_BY_CONTROL_CODE: dict[str, ExitCode] = {
    # What another process's session said no with.
    **dict.fromkeys(("CONTROL_UNAVAILABLE",), ExitCode.CONFIG),
    **dict.fromkeys(("INVALID_REQUEST", "DUPLICATE_REQUEST", "USAGE_ERROR"), ExitCode.USAGE),
    **dict.fromkeys(
        ("NOT_SERVED", "NOT_WAITING", "ALREADY_ANSWERED", "NO_ACTIVE_RUN", "CLOSED", "SESSION_CLOSED"),
        ExitCode.NOT_FOUND,
    ),
    **dict.fromkeys(
        ("SESSION_BUSY", "ALREADY_ACTIVE", "QUEUE_FULL", "HOOK_RETRY", "CONTROL_UNREACHABLE"), ExitCode.BUSY
    ),
}


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of a command that ended with `error`."""
    if isinstance(error, StoppedBySignal):
        return ExitCode.TERMINATED if error.signal_number == signal.SIGTERM else ExitCode.INTERRUPTED
    if isinstance(error, ControlError):
        return _BY_CONTROL_CODE.get(error.code, ExitCode.FAILED)
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED
