"""Asking a person on the terminal, without holding up the event loop."""

import asyncio
import os
import sys
import threading

from fanfold.cli.console import Console
from fanfold.cli.safe_text import printable


async def ask(console: Console, question: str) -> str:
    """The line that the person types after `question`; empty when the input has ended."""
    print(printable(question), end=" ", file=console.err, flush=True)
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        # A daemon on the bare descriptor: a thread of the executor, or the lock of sys.stdin, would hold up
        # the exit until the person presses Enter.
        line = os.read(sys.stdin.fileno(), 65_536)
        loop.call_soon_threadsafe(_settle, typed, line)

    threading.Thread(target=read, name="fanfold-ask", daemon=True).start()
    return (await typed).decode(errors="replace").strip()


async def ask_yes_no(console: Console, question: str) -> bool:
    """True only for a clear yes."""
    return (await ask(console, f"{question} [y/N]")).lower() in ("y", "yes")


def _settle(typed: "asyncio.Future[bytes]", line: bytes) -> None:
    if not typed.done():
        typed.set_result(line)
