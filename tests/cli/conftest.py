"""A model server in this process, a workspace that is configured for it, and the command to run there."""

import asyncio
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from fanfold.cli import main
from tests.support.chat_server import ChatServer, Script

COMMAND = (sys.executable, "-c", "from fanfold.cli.main import main; main()")


class ServerThread:
    """A `ChatServer` on a loop of its own."""

    def __init__(self, script: Script) -> None:
        self.server = ChatServer(script)
        self._loop = asyncio.new_event_loop()
        self._is_up: Future[None] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)
        self._thread.start()
        self._is_up.result(timeout=10)

    async def _serve(self) -> None:
        async with self.server:
            self._is_up.set_result(None)
            await self._stop.wait()

    @property
    def prompts(self) -> list[str]:
        """What the newest user message of each request said."""
        return [request.json["messages"][-1]["content"] for request in self.server.requests]

    def wait_for_requests(self, count: int) -> None:
        asyncio.run_coroutine_threadsafe(self.server.request_count(count), self._loop).result(timeout=10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)
        self._loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Script], ServerThread]]:
    started: list[ServerThread] = []

    def start(script: Script = ()) -> ServerThread:
        started.append(ServerThread(script))
        return started[-1]

    yield start
    for each in started:
        each.close()


def configure(workspace: Path, server: ServerThread, more: str = "", max_attempts: int = 5) -> None:
    (workspace / "agent.acl").write_text(
        f"""
        default_model = "fake/m1"
        providers "fake" {{
          base_url          = "{server.server.base_url}"
          structured_output = "json_schema"
          max_attempts      = {max_attempts}
        }}
        {more}
        """
    )


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def fanfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs one command line in `tmp_path`, in this process."""
    monkeypatch.chdir(tmp_path)
    for name in ("FANFOLD_CONFIG", "FANFOLD_MODEL", "FANFOLD_DEBUG", "CI", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def run(*arguments: str, stdin: str = "") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capfd.readouterr()
        code = main.run(arguments)
        out, err = capfd.readouterr()
        return Ended(int(code), out, err)

    return run


def start(*arguments: str, cwd: Path, **environ: str) -> subprocess.Popen[str]:
    """The command as a process of its own, outside of any terminal."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, "HOME": str(cwd / "home"), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def ended(process: "subprocess.Popen[str]") -> Ended:
    out, err = process.communicate(timeout=20)
    return Ended(process.returncode, out, err)
