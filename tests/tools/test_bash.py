"""bash: refused without a sandbox, confined in one, and nothing that it starts outlives the call."""

import asyncio
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.messages import ToolOutput
from fanfold.protocols import ToolScope
from fanfold.tools.artifacts import MAX_OUTPUT_BYTES, artifact_path
from fanfold.tools.sandbox import plain_environment, sandbox_fault, sandboxed
from fanfold.tools.shell import BashTool
from fanfold.tools.workspace import Workspace

Call = Callable[..., ToolOutput]
Processes = Callable[[str], list[int]]

NO_BWRAP = "no-such-program"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="bash needs a POSIX system")
needs_bwrap = pytest.mark.skipif(sandbox_fault() is not None, reason=f"no sandbox: {sandbox_fault()}")
both = pytest.mark.parametrize(
    "bwrap", [NO_BWRAP, pytest.param("bwrap", marks=needs_bwrap)], ids=["direct", "sandboxed"]
)


@pytest.fixture
def sandbox(workspace: Workspace) -> BashTool:
    return BashTool(workspace, allow_unsandboxed=False)


def test_without_a_sandbox_it_is_refused_and_says_how_to_opt_in(workspace: Workspace, call: Call) -> None:
    answer = call(BashTool(workspace, False, NO_BWRAP), command="touch ran")
    assert answer.exit_code == 1
    assert "no sandbox (bubblewrap (bwrap) is not installed)" in answer.output
    assert "allow_unsandboxed_bash = true" in answer.output
    assert not (workspace.root / "ran").exists()


def test_a_sandbox_that_does_not_work_is_no_sandbox(workspace: Workspace, call: Call) -> None:
    answer = call(BashTool(workspace, False, "false"), command="touch ran")
    assert "bubblewrap does not work here" in answer.output
    assert not (workspace.root / "ran").exists()


@both
def test_output_and_errors_come_together_with_the_exit_code(workspace: Workspace, call: Call, bwrap: str) -> None:
    tool = BashTool(workspace, True, bwrap)
    answer = call(tool, command="echo out; echo err >&2; pwd; exit 7")
    assert (answer.output, answer.exit_code) == (f"out\nerr\n{workspace.root}\n[exit code 7]", 7)
    assert call(tool, command="true").output == "[no output]"
    assert call(tool, command="kill -9 $$").exit_code == 137
    assert call(tool, command="cat").exit_code == 0  # its stdin is empty


@both
def test_a_timeout_ends_it_and_keeps_what_was_said(workspace: Workspace, call: Call, bwrap: str) -> None:
    answer = call(BashTool(workspace, True, bwrap), command="echo begun; sleep 300", timeout=1_500)
    assert (answer.output, answer.exit_code) == ("begun\n[Command timed out after 1500ms]", 124)


STUBBORN = "trap '' TERM; touch ready; sleep 300; sleep 300"
NESTED = "bash -c \"bash -c 'touch ready; sleep 300' TOKEN & wait\" TOKEN & wait"
DOUBLE_FORK = "(trap '' TERM HUP; (touch ready; sleep 300; : TOKEN) >/dev/null 2>&1 &) ; sleep 300"
DAEMON = "(setsid bash -c 'trap \"\" TERM HUP; touch ready; sleep 300; : TOKEN' >/dev/null 2>&1 &); sleep 300"


@pytest.mark.parametrize(
    ("bwrap", "command"),
    [
        (NO_BWRAP, STUBBORN),
        (NO_BWRAP, NESTED),
        (NO_BWRAP, DOUBLE_FORK),
        pytest.param("bwrap", STUBBORN, marks=needs_bwrap),
        pytest.param("bwrap", NESTED, marks=needs_bwrap),
        pytest.param("bwrap", DOUBLE_FORK, marks=needs_bwrap),
        pytest.param("bwrap", DAEMON, marks=needs_bwrap),
    ],
)
def test_cancellation_kills_every_descendant(
    workspace: Workspace, scope: ToolScope, processes_with: Processes, bwrap: str, command: str
) -> None:
    token = uuid.uuid4().hex
    command = command.replace("TOKEN", token) + f"; : {token}"

    async def cancelled() -> None:
        tool = BashTool(workspace, True, bwrap)
        task = asyncio.create_task(tool.run({"command": command}, scope))
        while not (workspace.root / "ready").exists():
            await asyncio.sleep(0.01)
        assert processes_with(token)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert gone(processes_with, token)


@both
def test_what_runs_in_the_background_ends_with_the_command(
    workspace: Workspace, call: Call, processes_with: Processes, bwrap: str
) -> None:
    token = uuid.uuid4().hex
    began = time.monotonic()
    answer = call(BashTool(workspace, True, bwrap), command=f"bash -c 'sleep 300; : {token}' & echo started")
    assert answer.output == "started\n"
    assert time.monotonic() - began < 10
    assert gone(processes_with, token)


@both
def test_long_output_is_cut_and_kept_whole(workspace: Workspace, call: Call, bwrap: str) -> None:
    answer = call(BashTool(workspace, True, bwrap), command="seq 1 200000")
    whole = "".join(f"{n}\n" for n in range(1, 200_001)).encode()
    assert len(answer.output.encode()) <= MAX_OUTPUT_BYTES
    assert answer.output.startswith("1\n2\n")
    assert answer.output.endswith("199999\n200000\n")
    assert answer.artifact is not None
    path = artifact_path(workspace, answer.artifact)
    assert path is not None
    assert path.read_bytes() == whole


def test_a_flood_of_output_is_bounded_and_the_loop_stays_awake(workspace: Workspace, scope: ToolScope) -> None:
    async def flooded() -> tuple[ToolOutput, int]:
        tool = BashTool(workspace, True, NO_BWRAP)
        task = asyncio.create_task(tool.run({"command": "yes", "timeout": 1_000}, scope))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return task.result(), ticks

    answer, ticks = asyncio.run(flooded())
    assert answer.output.endswith("[Command timed out after 1000ms]")
    assert len(answer.output.encode()) <= MAX_OUTPUT_BYTES
    assert "holds the first 16777216 bytes" in answer.output
    assert ticks > 10


@pytest.mark.parametrize(("command", "reason"), [("echo \0", "NUL byte"), (": " + "x" * 300_000, "too long")])
def test_a_command_that_cannot_start_is_answered(workspace: Workspace, call: Call, command: str, reason: str) -> None:
    answer = call(BashTool(workspace, True, NO_BWRAP), command=command)
    assert answer.exit_code == 1
    assert reason in answer.output


# ---- inside the sandbox ------------------------------------------------------------------------------------


@needs_bwrap
@pytest.mark.parametrize(
    "command",
    [
        "touch /etc/fanfold-was-here",
        "touch /usr/fanfold-was-here",
        "mount -o remount,rw /",
        "umount /proc",
        "echo x > .git/config",
        "echo x > .git/hooks/pre-commit",
        "mv .git elsewhere",
        "rm -rf .git",
        "touch .a3s/x",
        "mv .a3s elsewhere",
        "echo x > agent.toml",
        "rm agent.toml",
        "mv agent.toml elsewhere",
        "ln -sf elsewhere agent.toml",
    ],
)
def test_only_the_unprotected_workspace_can_be_written(sandbox: BashTool, call: Call, command: str) -> None:
    root = sandbox.workspace.root
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").write_text("mine")
    (root / "agent.toml").write_text("mine")
    answer = call(sandbox, command=command)
    assert answer.exit_code != 0
    assert (root / ".git" / "config").read_text() == "mine"
    assert (root / "agent.toml").read_text() == "mine"
    assert list((root / ".git" / "hooks").iterdir()) == []
    assert call(sandbox, command="mkdir src && echo x > src/a && mv src/a b && cat b").output == "x\n"
    assert (root / "b").read_text() == "x\n"


@needs_bwrap
def test_there_is_no_network(sandbox: BashTool, call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        assert call(BashTool(sandbox.workspace, True, NO_BWRAP), command=command).exit_code == 0
        assert call(sandbox, command=command).exit_code != 0


@needs_bwrap
def test_tmp_is_private_and_other_processes_are_not_seen(sandbox: BashTool, call: Call, tmp_path: Path) -> None:
    answer = call(sandbox, command=f"echo x > /tmp/{tmp_path.name}; cat /tmp/{tmp_path.name}; echo $TMPDIR; ls /run")
    assert answer.output == "x\n/tmp\n"
    assert not Path("/tmp", tmp_path.name).exists()
    assert int(call(sandbox, command="ls -d /proc/[0-9]* | wc -l").output) < 10


@needs_bwrap
def test_secrets_of_the_environment_do_not_reach_the_command(
    sandbox: BashTool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2")
    monkeypatch.setenv("LC_TIME", "seen")
    for tool in (sandbox, BashTool(sandbox.workspace, True, NO_BWRAP)):
        assert call(tool, command='echo "$SOME_API_KEY,$LC_TIME"').output == ",seen\n"


@needs_bwrap
def test_credentials_in_the_home_folder_are_hidden(tmp_path: Path) -> None:
    for name in (".ssh/id", ".aws/credentials", ".netrc", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret")
    # The home folder is the workspace: otherwise the private /tmp would hide it all.
    command = "cat .ssh/id .aws/credentials .netrc notes.txt 2>/dev/null; ls .ssh .aws"
    line = sandboxed(tmp_path, ["bash", "-c", command], home=tmp_path, guarded=[tmp_path / ".ssh" / "id"])
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == "secret.aws:\n\n.ssh:\n"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("PATH", "/bin:/opt/python@3/bin", True),
        ("LC_ALL", "C.UTF-8", True),
        ("VIRTUAL_ENV", "/v", True),
        ("HTTPS_PROXY", "http://proxy:3128/a@b", True),
        ("HTTPS_PROXY", "http://me:pw@proxy:3128", False),
        ("HTTPS_PROXY", "http://token@proxy:3128", False),
        ("OPENAI_API_KEY", "x", False),
        ("GH_PAT", "x", False),
        ("DB_PWD", "x", False),
        ("SENTRY_DSN", "x", False),
        ("SLACK_WEBHOOK", "x", False),
        ("JWT", "x", False),
        ("PYTHONANYWHERE_API_TOKEN", "x", False),
        ("SSH_AUTH_SOCK", "x", False),
        ("BASH_ENV", "x", False),
        ("LD_PRELOAD", "x", False),
        ("ANYTHING_ELSE", "x", False),
    ],
)
def test_only_known_plain_variables_reach_a_command(name: str, value: str, kept: bool) -> None:
    assert plain_environment({name: value}) == ({name: value} if kept else {})


def gone(processes_with: Processes, token: str) -> bool:
    """Wait for the kernel to finish what was killed already."""
    deadline = time.monotonic() + 5
    while processes_with(token) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not processes_with(token)


def test_specs_take_timeouts_up_to_ten_minutes(sandbox: BashTool) -> None:
    timeout: dict[str, Any] = sandbox.spec.parameters["properties"]["timeout"]
    assert (timeout["minimum"], timeout["maximum"]) == (1, 600_000)
