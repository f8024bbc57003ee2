"""A leash: the system kills a process at once when ours dies, in whatever way it does.

`PR_SET_PDEATHSIG` is not to be had: a process sets it for itself, and monty starts this one. So it inherits the reading
end of a pipe, and is made the owner of what happens there. Nothing ever does, until the writing end is closed, which we
alone have: of that the system tells the owner by the signal that was asked for.

On other systems than Linux nothing is done, and a script in a loop ends when its time is up.
"""

import os
import signal
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self


class Leash:
    """To be entered before the process is started, and left when it has ended."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        """Of the pipe: to read, until the process is tied and alone has it, and to write."""

    def __enter__(self) -> Self:
        self._ends += _pipe()
        return self

    def tie(self, pid: int) -> None:
        if self._ends:
            inherited = self._ends.pop(0)
            with suppress(OSError):  # it has died already
                _own(inherited, pid)
            os.close(inherited)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self._ends:
            os.close(end)


if sys.platform == "linux":
    import fcntl

    _F_SETSIG = 10
    """Python has no name for it."""

    def _pipe() -> tuple[int, ...]:
        ends = os.pipe()
        os.set_inheritable(ends[0], True)
        return ends

    def _own(end: int, pid: int) -> None:
        fcntl.fcntl(end, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETOWN, pid)
        fcntl.fcntl(end, fcntl.F_SETFL, os.O_ASYNC)

else:

    def _pipe() -> tuple[int, ...]:
        return ()

    def _own(end: int, pid: int) -> None:
        """Never called."""
