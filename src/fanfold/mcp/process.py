"""The process of a stdio server: in a group of its own, heard when it dies, and gone with all it has started.

A process that moves itself into another session leaves the group, and outlives it. On systems without process groups
only the server itself is ended.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Of one line of output. Longer ones end the connection: nothing could be done with them."""
EOF_GRACE_SECONDS = 1.0
"""Between the end of its input and SIGTERM."""
TERM_GRACE_SECONDS = 0.5
"""Between SIGTERM and SIGKILL."""
_KILL_SECONDS = 5.0
"""For a killed process to be gone; only one that hangs in the kernel takes so long."""
_DRAIN_SECONDS = 0.25
"""For what a dead process has still written: only one outside of its group can keep a pipe open longer."""
_MAX_ERROR_BYTES = 4096
_LAST_LINES = 5
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PASSED_ON = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES",
    "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
}  # fmt: skip
"""And `LC_*`. All else, keys of providers above all, is the server's only if its settings say so."""


def minimal_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of `environment` without which programs do not work, and that holds no secret."""
    return {name: value for name, value in environment.items() if name.upper() in _PASSED_ON or name.startswith("LC_")}


class ServerProcess(asyncio.SubprocessProtocol):
    """Made by `launch`. What it writes to stderr is read at once, and the end of it kept."""

    def __init__(self) -> None:
        self.output = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
        self._errors = b""
        self._transport: asyncio.SubprocessTransport | None = None
        self._is_output_over = False
        self._is_ending = False
        self._exited = asyncio.Event()
        self._closed = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def send(self, line: bytes) -> None:
        """Write it, and wait while the server reads too slowly.

        Raises:
            BrokenPipeError: it does not read any more.
        """
        pipe = self._input
        if pipe is None or pipe.is_closing():
            raise BrokenPipeError
        pipe.write(line)
        await self._may_write.wait()

    @property
    def is_over(self) -> bool:
        return self._exited.is_set()

    async def ending(self) -> str:
        """How it ended by itself, for messages, when its output has; empty if it has not."""
        await _wait(self._exited, _DRAIN_SECONDS)
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None or self._is_ending:
            return ""
        return f"it was ended by signal {-code}" if code < 0 else f"it exited with code {code}"

    def last_words(self) -> str:
        """The last lines of stderr in one, for messages."""
        text = _COLOUR.sub("", self._errors.decode("utf-8", "replace"))
        lines = ["".join(c if c.isprintable() else " " for c in line).strip() for line in text.splitlines()]
        return " | ".join([line for line in lines if line][-_LAST_LINES:])

    async def end(self) -> None:
        """End it and whatever is left of its group: politely for up to 1.5 s, then not. Cancelled, at once."""
        self._is_ending = True
        try:
            if self._input is not None:
                self._input.close()
            if not await _wait(self._exited, EOF_GRACE_SECONDS):
                self._signal(signal.SIGTERM)
                await _wait(self._exited, TERM_GRACE_SECONDS)
        finally:
            self._kill()
        try:
            await _wait(self._exited, _KILL_SECONDS)
        finally:
            self._close()
        await _wait(self._closed, _DRAIN_SECONDS)

    # ---- what asyncio tells -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        pipe = self._transport.get_pipe_transport(1)
        if pipe is not None:
            self.output.set_transport(pipe)  # so that it pauses a server that writes faster than we read

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self._errors = (self._errors + data)[-_MAX_ERROR_BYTES:]
        elif not self._is_output_over:
            self.output.feed_data(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self._may_write.set()
        elif fd == 1:
            self._finish_output()

    def process_exited(self) -> None:
        self._kill()  # its children serve nobody now, and keep its pipes open
        self._exited.set()
        asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._finish_output)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # -----------------------------------------------------------------------------------------------------------------

    @property
    def _input(self) -> asyncio.WriteTransport | None:
        pipe = None if self._transport is None else self._transport.get_pipe_transport(0)
        return cast("asyncio.WriteTransport | None", pipe)

    def _finish_output(self) -> None:
        if not self._is_output_over:
            self._is_output_over = True
            self.output.feed_eof()

    def _kill(self) -> None:
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _signal(self, number: signal.Signals) -> None:
        if self._transport is None or self._exited.is_set():
            return  # the number may be another group's by now
        try:
            if hasattr(os, "killpg"):
                os.killpg(self._transport.get_pid(), number)
            else:
                self._transport.send_signal(number)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left in it, or only who has changed its user

    def _close(self) -> None:
        if self._input is not None and self._input.get_write_buffer_size():
            self._input.abort()  # what it has not read nobody will; without that it closes by itself
        if self._transport is not None:
            self._transport.close()


async def launch(argv: Sequence[str], *, folder: Path | None, environment: Mapping[str, str]) -> ServerProcess:
    """The running process.

    Raises:
        OSError: it could not be started.
    """
    pipe = asyncio.subprocess.PIPE
    _, process = await asyncio.get_running_loop().subprocess_exec(
        ServerProcess, *argv,
        stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, env=environment, start_new_session=True,
    )  # fmt: skip
    return process


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Whether it has come in that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
