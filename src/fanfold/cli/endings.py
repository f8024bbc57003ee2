"""Endings of a command that are not the library's errors: nothing there, failed steps, a signal."""

from fanfold.contracts.record import JsonObject
from fanfold.errors import FanfoldError


class NotThereError(FanfoldError):
    """There is no such session, thread or checkpoint."""

    code = "NOT_FOUND"


class WaitingError(FanfoldError):
    """The run, or some steps, wait for a person; what they did is kept, and the same work goes on from the answer."""

    code = "PARKED"

    def __init__(self, message: str, details: JsonObject) -> None:
        super().__init__(message)
        self.details = details
        """For `--json`: `waiting` as in the inbox, and how to go on."""


class FailedStepsError(FanfoldError):
    """The command finished, and some of its steps failed; they have been listed already."""

    code = "FAILED_STEPS"


class StoppedBySignal(BaseException):
    """Ctrl-C or SIGTERM; the work was cancelled in order. Not an `Exception`, as with KeyboardInterrupt."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
        self.message = "stopped"
        """One line for the user; a command that knows more replaces it."""
        self.hint: str | None = None
        """How to continue."""
