"""What is protected in a workspace stays as it was, at any depth, whatever a command does to the folders around it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.contracts.messages import ToolOutput
from fanfold.protocols import ToolScope
from fanfold.tools.guard import MAX_GUARDED, guard
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.sandbox import sandbox_fault
from fanfold.tools.shell import BashTool
from fanfold.tools.workspace import Workspace

Call = Callable[..., ToolOutput]

needs_bwrap = pytest.mark.skipif(sandbox_fault() is not None, reason=f"no sandbox: {sandbox_fault()}")


@pytest.fixture
def sandbox(workspace: Workspace) -> BashTool:
    return BashTool(workspace, allow_unsandboxed=False)


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return workspace.root


def put(path: Path, text: str = "mine") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def protected(root: Path) -> dict[str, str]:
    """Every file in or under a protected name, with its text."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and not NAMES.isdisjoint(path.relative_to(root).parts)
    }


NAMES = {".git", "agent.acl", "agent.toml"}


@needs_bwrap
@pytest.mark.parametrize(
    "command",
    [
        "echo evil >> repo/.git/config",
        "echo evil > repo/.git/hooks/pre-commit",
        "echo evil > a/b/c/d/e/f/g/h/i/.git",
        "echo evil > sub/agent.acl",
        "rm sub/agent.acl",
        "rm -rf repo",
        "mv repo/.git repo/git",
        "mv sub/agent.acl sub/x",
        "ln -sf x sub/agent.acl",
    ],
)
def test_what_is_there_can_only_be_read(sandbox: BashTool, root: Path, call: Call, command: str) -> None:
    for name in ("repo/.git/config", "repo/.git/hooks/update", "sub/agent.acl", "a/b/c/d/e/f/g/h/i/.git"):
        put(root / name)
    before = protected(root)
    assert call(sandbox, command=command).exit_code != 0
    assert protected(root) == before
    assert call(sandbox, command="cat repo/.git/config; echo x > repo/new && cat repo/new").output == "minex\n"


@needs_bwrap
@pytest.mark.parametrize(
    ("command", "aside"),
    [
        ("echo evil > agent.acl", "agent.acl.unapproved"),
        ("mkdir -p a/b/c/d/e/f/g/h; echo evil > a/b/c/d/e/f/g/h/agent.toml", "a/b/c/d/e/f/g/h/agent.toml.unapproved"),
        ("mkdir -p new/.git/hooks; echo evil > new/.git/hooks/x", "new/.git.unapproved/hooks/x"),
        ("mkdir -p .git; echo evil > .git/config", ".git.unapproved/config"),
        ("mkdir -p s/.a3s; echo evil > s/.a3s/log", "s/.a3s.unapproved/log"),
        ("mkdir agent.acl.unapproved; echo evil > agent.acl", "agent.acl.unapproved-2"),
        ("mv sub gone; mkdir sub; echo evil > sub/agent.acl", "sub/agent.acl.unapproved"),
        ("mkdir x; echo evil > x/agent.acl; chmod 000 x", "x/agent.acl.unapproved"),
        ("mkdir x; echo evil > x/agent.acl; chmod 555 x .", "x/agent.acl.unapproved"),
        ("echo evil > agent.acl; chmod 111 .", "agent.acl.unapproved"),
        ("echo evil > agent.acl; kill -9 $$", "agent.acl.unapproved"),
        ("echo evil > agent.acl; sleep 300", "agent.acl.unapproved"),
    ],
)
def test_what_a_command_makes_is_put_aside(sandbox: BashTool, root: Path, call: Call, command: str, aside: str) -> None:
    put(root / "sub" / "agent.acl")
    answer = call(sandbox, command=command, timeout=1_500)
    assert (root / aside).read_text() == "evil\n"
    assert list(protected(root).values()) == ["mine"]
    assert f"{aside.partition('.unapproved')[0]} is protected; what the command made is in" in answer.output


@needs_bwrap
def test_a_link_to_elsewhere_under_a_protected_name_is_put_aside(sandbox: BashTool, root: Path, call: Call) -> None:
    put(root / "x", "evil")
    call(sandbox, command="ln -s x agent.acl")
    assert os.readlink(root / "agent.acl.unapproved") == "x"
    assert not os.path.lexists(root / "agent.acl")


@needs_bwrap
def test_what_a_command_makes_is_put_aside_when_it_is_cancelled(
    sandbox: BashTool, root: Path, scope: ToolScope
) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(sandbox.run({"command": "mkdir s; echo evil > s/agent.acl; sleep 300"}, scope))
        while not (root / "s" / "agent.acl").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert [path.name for path in (root / "s").iterdir()] == ["agent.acl.unapproved"]


@needs_bwrap
def test_what_people_do_meanwhile_to_their_own_configuration_stays(
    sandbox: BashTool, root: Path, scope: ToolScope
) -> None:
    """An editor replaces the file: it is another one afterwards, in the same folder."""
    put(root / "sub" / "agent.acl")

    async def edited() -> ToolOutput:
        task = asyncio.create_task(sandbox.run({"command": "touch ready; while ! [ -e go ]; do :; done"}, scope))
        while not (root / "ready").exists():
            await asyncio.sleep(0.01)
        put(root / "sub" / "draft", "edited")
        (root / "sub" / "draft").replace(root / "sub" / "agent.acl")
        put(root / "go")
        return await task

    assert asyncio.run(edited()).output == "[no output]"
    assert protected(root) == {"sub/agent.acl": "edited"}


@needs_bwrap
def test_a_moved_folder_keeps_its_repository(sandbox: BashTool, root: Path, call: Call) -> None:
    put(root / "repo" / ".git" / "config")
    assert call(sandbox, command="mv repo other").output == "[no output]"
    assert protected(root) == {"other/.git/config": "mine"}


@needs_bwrap
@pytest.mark.parametrize("name", ["agent.acl", ".git", "sub/agent.acl", "sub/.git"])
def test_a_protected_name_that_is_a_link_is_not_risked(sandbox: BashTool, root: Path, call: Call, name: str) -> None:
    (root / "sub").mkdir()
    (root / name).symlink_to("target")
    answer = call(sandbox, command=f"rm {name}; mkdir {name}")
    assert answer.exit_code == 1
    assert f"{name} is a link" in answer.output
    assert (root / name).is_symlink()


@needs_bwrap
def test_folders_that_may_not_be_written_stay_so(sandbox: BashTool, root: Path, call: Call) -> None:
    assert call(sandbox, command="mkdir -p a/b; chmod 555 a a/b").output == "[no output]"
    assert [(root / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o555, 0o555]
    (root / "a").chmod(0o755)


@needs_bwrap
def test_more_names_than_can_be_guarded_are_refused_not_risked(sandbox: BashTool, root: Path, call: Call) -> None:
    for number in range(MAX_GUARDED):
        put(root / f"{number}" / ".git")
    answer = call(sandbox, command="touch ran")  # .a3s is one more
    assert answer.exit_code == 1
    assert "the workspace has more than 500 names that are protected" in answer.output
    assert not (root / "ran").exists()


def test_more_folders_than_can_be_looked_into_are_refused(workspace: Workspace) -> None:
    for name in ("a/b", "c"):
        (workspace.root / name).mkdir(parents=True)
    assert guard(workspace, most_folders=4).paths == ()
    with pytest.raises(ToolRefusal, match="the workspace has more than 3 folders"):
        guard(workspace, most_folders=3)
