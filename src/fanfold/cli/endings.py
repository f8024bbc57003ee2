"""Endings of a command that are not the library's errors: nothing there, failed steps, a signal."""

from fanfold.errors import FanfoldError


class NotThereError(FanfoldError):
    """There is no such session, thread or checkpoint."""

    code = "NOT_FOUND"


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
