"""Asking a person on the terminal, without holding up the event loop."""

import asyncio
import os
import sys
import threading

from fanfold.cli.console import Console
from fanfold.cli.safe_text import printable

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]


async def ask(console: Console, question: str) -> str:
    """The line that the person types after `question`; empty when the input has ended.

    Cancelled, it leaves what is typed to nobody: the next question gets only what is typed behind it.
    """
    print(printable(question), end=" ", file=console.err, flush=True)
    typed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    _lines.want(typed)
    return (await typed).decode(errors="replace").strip()


async def ask_yes_no(console: Console, question: str) -> bool:
    """True only for a clear yes."""
    return (await ask(console, f"{question} [y/N]")).lower() in ("y", "yes")


class _Lines:
    """The lines of stdin, each for whoever asked last. At most one thread reads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._wanted: asyncio.Future[bytes] | None = None
        self._is_reading = False

    def want(self, typed: "asyncio.Future[bytes]") -> None:
        with self._turn:
            self._wanted = typed
            if self._is_reading:  # for a question that was given up: what was typed so far was meant for that one
                _forget_typed()
                return
            self._is_reading = True
        # A daemon on the bare descriptor: a thread of the executor, or the lock of sys.stdin, would hold up the exit
        # until the person presses Enter.
        threading.Thread(target=self._read, name="fanfold-ask", daemon=True).start()

    def _read(self) -> None:
        try:
            line = os.read(sys.stdin.fileno(), 65_536)
        except OSError:
            line = b""  # the terminal has gone
        with self._turn:
            self._is_reading = False
            typed, self._wanted = self._wanted, None
        if typed is None:
            return
        try:
            typed.get_loop().call_soon_threadsafe(_settle, typed, line)
        except RuntimeError:
            pass  # its loop has ended


_lines = _Lines()


def _forget_typed() -> None:
    if termios is not None:
        try:
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        except (OSError, termios.error):
            pass  # no terminal: then nobody types ahead


def _settle(typed: "asyncio.Future[bytes]", line: bytes) -> None:
    if not typed.done():
        typed.set_result(line)
