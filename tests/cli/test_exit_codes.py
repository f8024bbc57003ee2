"""Exit codes and error messages: what a script sees."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from fanfold.cli import main
from fanfold.cli.endings import FailedStepsError, NotThereError, StoppedBySignal
from fanfold.cli.exit_codes import ExitCode, exit_code_of
from fanfold.cli.hints import hint_of
from fanfold.errors import (
    AlreadyActiveError,
    BudgetExhaustedError,
    CheckpointRefusedError,
    ConfigError,
    ControlError,
    FencedError,
    InvalidSpecError,
    LogWriteError,
    MissingExtraError,
    ParkedError,
    ProviderError,
    SessionBusyError,
    StepChangedError,
    StoreConflictError,
    UsageError,
)
from tests.cli.conftest import COMMAND, Ended, ended, start

Fanfold = Callable[..., Ended]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProviderError("down", kind="connection", retryable=True), 1),
        (OSError("disk full"), 1),
        (UsageError("no"), 2),
        (InvalidSpecError("no"), 2),
        (click.UsageError("no"), 2),
        (ConfigError("no"), 3),
        (MissingExtraError(feature="x", install="y"), 3),
        (NotThereError("no"), 4),
        (ParkedError(tool_id="1", tool_name="bash", what="approval of bash"), 5),
        (BudgetExhaustedError(resource="tokens", reason="spent"), 6),
        (FailedStepsError("2 of 3"), 7),
        (SessionBusyError(session_id="s"), 8),
        (AlreadyActiveError(name="workflow/w", holder="process 1"), 8),
        (FencedError(name="workflow/w", epoch=1), 8),
        (StoreConflictError(name="workflow/w", expected=1, actual=2), 8),
        (ControlError("NOT_SERVED", "process 1 is not there any more"), 4),
        (ControlError("CONTROL_UNREACHABLE", "process 1 did not answer within 5 s"), 8),
        (StepChangedError(workflow_id="w", task_ids=["a"]), 2),
        (CheckpointRefusedError(workflow_id="w", reason="it is of a later version"), 1),
        (LogWriteError(path="p", reason="No space left on device"), 1),
        (KeyboardInterrupt(), 130),
        (StoppedBySignal(signal.SIGINT), 130),
        (StoppedBySignal(signal.SIGTERM), 143),
    ],
)
def test_every_ending_has_its_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (AlreadyActiveError(name="workflow/a b/c"), "what it has so far: fanfold checkpoints show 'a b/c'"),
        (CheckpointRefusedError(workflow_id="w", reason="r"), "to begin anew: fanfold checkpoints delete w"),
        (StepChangedError(workflow_id="w", task_ids=["a"]), "see what changed with --plan"),
        (FencedError(name="workflow/w", epoch=1), "see fanfold checkpoints show w"),
        (StoreConflictError(name="workflow/w", expected=1, actual=2), "somebody else runs it now"),
        (LogWriteError(path="p", reason="r"), "what was recorded before is kept"),
    ],
)
def test_what_stops_resumable_work_says_what_to_do(error: BaseException, hint: str) -> None:
    assert hint in (hint_of(error) or "")


def test_a_hint_of_its_own_wins_over_the_general_one() -> None:
    assert hint_of(AlreadyActiveError(name="workflow/w").with_hint("mine")) == "mine"
    assert hint_of(OSError("disk")) is None


def test_no_code_is_undocumented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [code for code in ExitCode if f"| {int(code)} |" not in page] == []


def test_no_command_is_undocumented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in main.cli.list_commands(click.Context(main.cli)) if f"`fanfold {name}" not in page] == []


def test_an_unknown_command_is_a_usage_error_on_stderr(fanfold: Fanfold) -> None:
    done = fanfold("frobnicate")
    assert (done.code, done.out) == (2, "")
    assert "No such command 'frobnicate'" in done.err


def test_errors_are_one_json_object_when_json_was_asked_for(fanfold: Fanfold) -> None:
    done = fanfold("sessions", "show", "nobody", "--json")
    assert done.code == 4
    assert json.loads(done.err) == {
        "code": "NOT_FOUND",
        "message": "there is no session 'nobody' here; see: fanfold sessions list",
        "hint": None,
    }
    assert json.loads(fanfold("map", "--no-such-option", "--json").err)["code"] == "USAGE"


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize(
    "arguments",
    [
        ("sessions", "show", "\x1b]0;pwned\x07"),
        ("map", "\x1b[2Jpwned\u202e", "--prompt", "x"),
        ("map", "x", "--budget", "\x9bpwned"),
    ],
)
def test_an_error_message_cannot_steer_the_terminal(
    fanfold: Fanfold, arguments: tuple[str, ...], more: tuple[str, ...]
) -> None:
    done = fanfold(*arguments, *more)
    assert "pwned" in done.err
    assert {"\x1b", "\x07", "\x9b", "\u202e"}.isdisjoint(done.err)


def test_a_bad_configuration_names_every_fault_and_exits_with_3(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / "agent.acl").write_text('default_modell = "x/y"\nmax_parallel_tasks = "many"\n')
    done = fanfold("run", "hello")
    assert done.code == 3
    assert "agent.acl:1" in done.err
    assert "agent.acl:2" in done.err
    assert "Traceback" not in done.err


def test_a_missing_key_names_its_variable(fanfold: Fanfold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = fanfold("run", "hello", "--model", "openai/gpt-x")
    assert done.code == 3
    assert "OPENAI_API_KEY is not set" in done.err


def test_debug_shows_the_traceback(fanfold: Fanfold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_DEBUG", "1")
    with pytest.raises(NotThereError):
        fanfold("sessions", "show", "nobody")


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    process = start("models", "list", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    done = ended(process)
    assert (done.code, done.err) == (1, "")


def test_version_needs_no_heavy_import() -> None:
    program = (
        "import sys\nfrom fanfold.cli.main import run\nrun(['--version'])\n"
        "print(sorted({'aiohttp', 'rich', 'jsonschema_rs', 'asyncio', 'fanfold.agent'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    version, loaded = done.stdout.splitlines()
    assert version.startswith("fanfold ")
    assert loaded == "[]"


def test_help_lists_every_command_without_importing_one() -> None:
    program = (
        "import sys\nfrom fanfold.cli.main import run\nrun(['--help'])\n"
        "print(sorted({f'fanfold.cli.{name}' for name in ('map', 'run', 'doctor')} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in ("init", "run", "map", "parallel", "checkpoints", "sessions", "log", "models", "doctor", "version"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(
    "name", ["init", "run", "map", "parallel", "checkpoints", "sessions", "log", "models", "doctor"]
)
def test_every_command_explains_itself(fanfold: Fanfold, name: str) -> None:
    done = fanfold(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: fanfold {name}")


def test_the_installed_command_is_this_one() -> None:
    done = subprocess.run([*COMMAND, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
