"""On a terminal the person is asked, in the middle of the run, and Ctrl-C works while the question stands."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, ServerThread, configure, ended, start
from tests.cli.test_runs_deleting import IDS, NEW, OLD, left, make_runs
from tests.cli.workflow_project import Fanfold
from tests.support.chat_server import Call, Say

pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")

Serve = Callable[..., ServerThread]
WRITE = Call("write", '{"file_path": "made", "content": "x"}')


class OnTerminal:
    """The command with a pseudo-terminal as stdin, stdout and stderr."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._fd, inner = pty.openpty()
        environ = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=cwd,
            env={**environ, "TERM": "xterm", "HOME": str(cwd / "home")},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self.shown = ""

    def wait_for(self, text: str, *, after: str = "") -> None:
        while text not in self.shown.partition(after)[2] if after else text not in self.shown:
            self.shown += os.read(self._fd, 65_536).decode()

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self) -> int:
        try:
            while piece := os.read(self._fd, 65_536):
                self.shown += piece.decode()
        except OSError:
            pass  # Linux says EIO when the other side is closed
        return self.process.wait(timeout=10)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., OnTerminal]]:
    opened: list[OnTerminal] = []

    def open_one(*arguments: str) -> OnTerminal:
        opened.append(OnTerminal(*arguments, cwd=tmp_path))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.mark.parametrize(("typed", "is_made"), [("y\n", True), ("\n", False), ("n\n", False)])
def test_a_tool_call_runs_only_after_a_yes(
    terminal: Callable[..., OnTerminal], serve: Serve, tmp_path: Path, typed: str, is_made: bool
) -> None:
    configure(tmp_path, serve([Say(calls=(WRITE,)), Say("Done as told.")]))
    screen = terminal("run", "Make it.")
    screen.wait_for("[y/N]")
    assert '"file_path":"made"' in screen.shown
    assert not (tmp_path / "made").exists()
    screen.type(typed)
    code = screen.end()
    assert (tmp_path / "made").exists() is is_made
    assert (code == 0) is is_made
    assert ("Done as told." in screen.shown) is is_made


def test_a_question_is_put_to_the_person(terminal: Callable[..., OnTerminal], serve: Serve, tmp_path: Path) -> None:
    server = serve([Say(calls=(Call("ask_user", '{"question": "Which?", "options": ["red", "blue"]}'),)), Say("Fine.")])
    configure(tmp_path, server)
    screen = terminal("run", "Choose.")
    screen.wait_for(">")
    screen.type("green\n")
    screen.wait_for("choose one of the options")
    screen.type("2\n")
    assert screen.end() == 0
    assert "blue" in str(server.server.requests[-1].json["messages"])


def test_a_question_that_is_answered_from_elsewhere_is_taken_back_and_so_is_what_was_typed_for_it(
    terminal: Callable[..., OnTerminal], serve: Serve, tmp_path: Path
) -> None:
    again = Call("write", '{"file_path": "again", "content": "x"}', "call_2")
    configure(tmp_path, serve([Say(calls=(WRITE,)), Say(calls=(again,)), Say("Done as told.")]))
    screen = terminal("run", "Make it.", "--session", "s1")
    screen.wait_for("[y/N]")
    screen.type("y")
    approved = ended(start("approve", "s1/call_1", cwd=tmp_path))
    assert (approved.code, approved.out) == (0, "")
    screen.wait_for("(answered from elsewhere, or given up)")
    screen.wait_for('"file_path":"again"')
    screen.wait_for("[y/N]", after='"file_path":"again"')
    screen.type("\n")
    assert screen.end() != 0
    assert (tmp_path / "made").exists()
    assert not (tmp_path / "again").exists()


def test_after_an_answer_from_elsewhere_the_next_question_is_for_the_person_again(
    terminal: Callable[..., OnTerminal], serve: Serve, tmp_path: Path
) -> None:
    again = Call("write", '{"file_path": "again", "content": "x"}', "call_2")
    configure(tmp_path, serve([Say(calls=(WRITE,)), Say(calls=(again,)), Say("Done as told.")]))
    screen = terminal("run", "Make it.", "--session", "s1")
    screen.wait_for("[y/N]")
    assert ended(start("approve", "s1/call_1", cwd=tmp_path)).code == 0
    screen.wait_for("[y/N]", after='"file_path":"again"')
    screen.type("y\n")
    assert screen.end() == 0
    assert (tmp_path / "again").exists()


def test_ctrl_c_works_while_a_question_stands(
    terminal: Callable[..., OnTerminal], serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve([Say(calls=(WRITE,))]))
    screen = terminal("run", "Make it.", "--session", "s1")
    screen.wait_for("[y/N]")
    screen.process.send_signal(2)
    assert screen.end() == 130
    assert "fanfold run --session s1 --resume" in screen.shown


def test_no_input_parks_on_a_terminal_too(terminal: Callable[..., OnTerminal], serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say(calls=(WRITE,))]))
    assert terminal("run", "Make it.", "--no-input").end() == 5


def test_a_model_cannot_steer_the_terminal(terminal: Callable[..., OnTerminal], serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve([Say("\x1b[2J\x1b]0;owned\x07hello")]))
    screen = terminal("run", "Hello.", "--quiet")
    assert screen.end() == 0
    assert screen.shown == "[2J]0;ownedhello\r\n"


@pytest.mark.parametrize(("typed", "expected"), [("n\n", [0, 1]), ("\n", [0, 1]), ("y\n", [0])])
def test_old_runs_are_deleted_only_after_a_yes_of_who_has_seen_them(
    terminal: Callable[..., OnTerminal], fanfold: Fanfold, tmp_path: Path, typed: str, expected: list[int]
) -> None:
    make_runs(tmp_path, NEW, OLD)
    shown = terminal("runs", "prune", "--keep", "1")
    shown.wait_for(f"Delete {IDS[1]}, with all that its agents have answered? [y/N]")
    assert "completed" in shown.shown
    shown.type(typed)
    assert shown.end() == 0
    assert left(fanfold) == expected
