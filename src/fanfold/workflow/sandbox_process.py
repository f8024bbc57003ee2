"""One sandbox process, and the thread that drives it. Neither outlives the coroutine that waits for them.

The client is the synchronous one, since the asyncio client of pydantic-monty 1.4 sometimes aborts a Python that exits
right behind it. It is driven from a thread of its own: a default executor has few, and joins them at exit.
"""

import asyncio
import atexit
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from fanfold.errors import MissingExtraError, SandboxError
from fanfold.portal import complete
from fanfold.workflow.sandbox_leash import Leash

R = TypeVar("R")
Session = Any
"""`pydantic_monty.MontySession`; the extra is not there for every type checker."""
EXIT_SECONDS = 5.0
"""How long Python's exit waits for a sandbox that was killed for it."""


def load_monty(load: Callable[[str], Any] = importlib.import_module) -> Any:
    """The module `pydantic_monty`, when it is needed and not before: it is an extra, and slow to import.

    Raises:
        MissingExtraError
    """
    try:
        return load("pydantic_monty")
    except ImportError as error:
        raise _missing(str(error)) from error


def _missing(reason: str) -> MissingExtraError:
    return MissingExtraError(
        feature="the sandbox of inline workflow scripts (pydantic-monty)",
        install="pip install '.[sandbox]' in the checkout",
        reason=reason,
    )


_starting = threading.Lock()
"""To find its program the client asks `sysconfig`, which two threads must not do for the first time at once."""


class SandboxProcess(Generic[R]):
    """Runs `work(monty, session)` for a session in a process of its own."""

    def __init__(
        self,
        work: Callable[[Any, Session], R],
        *,
        name: str,
        wake: Callable[[], None] = lambda: None,
        close: Callable[[], Awaitable[None]] | None = None,
        **checkout: Any,
    ) -> None:
        """Args:
        wake: Called when it is killed, for a `work` that waits for something else than its session.
        close: Awaited when it has ended in any way.
        checkout: For the session, see `pydantic_monty.Monty.checkout`.
        """
        self._work = work
        self._wake = wake
        self._close = close
        self._checkout = checkout
        self._thread = threading.Thread(target=self._drive, name=f"sandbox {name}", daemon=True)
        self._lock = threading.Lock()
        """Guards the two below."""
        self._process: _Process | None = None
        self._is_killed = False
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[R] = self._loop.create_future()

    async def run(self) -> R:
        """What `work` returns, or what it raises. When this is cancelled the process is killed at once.

        Raises:
            MissingExtraError
            SandboxError: the process could not be started.
        """
        self._thread.start()
        atexit.register(self._abandon)
        try:
            await asyncio.wait({self._outcome})
        except asyncio.CancelledError:
            self.kill()
            await complete(self._ended())
            raise
        await complete(self._ended())
        return self._outcome.result()

    def kill(self) -> None:
        """From any thread, at any time. `work` then gets an error from its session."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()
        self._wake()

    async def _ended(self) -> None:
        await asyncio.wait({self._outcome})
        self._thread.join()
        atexit.unregister(self._abandon)
        if self._close is not None:
            await self._close()

    def _abandon(self) -> None:
        # Python exits and nobody has cancelled the script: a thread must not come back from native code into that.
        self.kill()
        self._thread.join(EXIT_SECONDS)

    # ---- in the thread ----

    def _drive(self) -> None:
        try:
            result = self._worked()
        except Exception as error:  # noqa: BLE001  raised again by `run`
            self._tell(self._fail, error)
        except BaseException as error:  # noqa: BLE001  a panic of the native client: no reason to end this process
            self._tell(self._fail, SandboxError(reason=f"its client failed: {error}"))
        else:
            self._tell(self._outcome.set_result, result)

    def _worked(self) -> R:
        if sys.platform != "win32":
            # The process inherits it. A Ctrl-C reaches both of us, and it is for us to end the script in good order.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        monty = load_monty()
        with contextlib.ExitStack() as started:
            try:
                leash = started.enter_context(Leash())
                with _starting:
                    pool = started.enter_context(monty.Monty(min_processes=1, max_processes=1))
                session = started.enter_context(pool.checkout(**self._checkout))
                leash.tie(session.worker_pid)
                process = _Process(session.worker_pid)
            except FileNotFoundError as error:
                raise _missing(str(error)) from error
            except Exception as error:
                raise SandboxError(reason=f"its process could not be started: {error}") from error
            started.callback(process.close)
            with self._lock:
                self._process = process
                if self._is_killed:
                    process.kill()
            try:
                return self._work(monty, session)
            finally:
                with self._lock:
                    self._process = None

    def _tell(self, hear: Callable[[Any], None], what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(hear, what)
        except RuntimeError:
            pass  # the loop was closed, and nobody waits any more

    def _fail(self, error: Exception) -> None:
        self._outcome.set_exception(error)
        self._outcome.exception()  # nobody asks for it when `run` was cancelled


class _Process:
    """The process of a session, and no later one that has its number, where the system can tell them apart."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor: int | None = None
        if sys.platform == "linux":
            try:
                self._descriptor = os.pidfd_open(pid)
            except OSError:
                pass  # an old kernel, or it has died already

    def kill(self) -> None:
        try:
            if sys.platform == "linux" and self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            else:
                os.kill(self._pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        except OSError:
            pass  # it is gone

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
