"""Worktrees of steps: what is changed in one is kept as one commit on a branch of its own, and nothing else changes."""

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.steps import Worktree
from fanfold.errors import UsageError
from fanfold.protocols import StepFolderEnd, Tool, ToolScope
from fanfold.tools import worktree_yard
from fanfold.tools.sandbox import sandbox_fault
from fanfold.tools.toolset import builtin_tools
from fanfold.tools.workspace import Workspace
from fanfold.tools.worktree import StepWorktree, Worktrees
from fanfold.tools.worktree_git import branch_stem
from tests.support.repositories import branches, commit, git, new_repository, shown
from tests.support.tools import RecordingTool

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="worktrees need a POSIX system"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]
NO_BWRAP = "no-such-program"
needs_bwrap = pytest.mark.skipif(sandbox_fault() is not None, reason=f"no sandbox: {sandbox_fault()}")
both = pytest.mark.parametrize(
    "bwrap", [NO_BWRAP, pytest.param("bwrap", marks=needs_bwrap)], ids=["direct", "sandboxed"]
)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    new_repository(tmp_path / "repo")
    return tmp_path / "repo"


def trees(root: Path, bwrap: str = NO_BWRAP, **more: Any) -> Worktrees:
    workspace = Workspace(root)
    return Worktrees(workspace, tools_of(root), allow_unsandboxed_bash=True, bwrap=bwrap, **more)


def tools_of(root: Path) -> dict[str, Tool]:
    return builtin_tools(Workspace(root), allow_unsandboxed_bash=True)


async def begin(of: Worktrees, task_id: str = "t", *, key: str = "", goes_on: bool = False) -> StepWorktree:
    return await of.begin(task_id, key=key, goes_on=goes_on, now_ms=NOW_MS)


async def end(step: StepWorktree, message: str = "what it did") -> StepFolderEnd:
    return await step.end(message=message, now_ms=NOW_MS)


def lived(of: Worktrees, change: Callable[[Path], Any], task_id: str = "t", **how: Any) -> StepFolderEnd:
    """A step that does `change` in its folder and ends."""

    async def live() -> StepFolderEnd:
        step = await begin(of, task_id, **how)
        change(Path(step.root))
        return await end(step)

    return asyncio.run(live())


def left(ended: StepFolderEnd) -> Worktree:
    assert ended.fault is None
    assert ended.worktree is not None
    return ended.worktree


def writing(name: str = "new.txt", text: str = "new\n") -> Callable[[Path], Any]:
    return lambda root: (root / name).write_text(text)


def nothing(root: Path) -> None:
    pass


def yard(root: Path) -> set[str]:
    """What lies beside the worktrees' own ignore file."""
    folder = root / ".a3s/worktrees"
    return {path.name for path in folder.iterdir()} - {".gitignore"} if folder.exists() else set()


def die(root: Path, *what: str) -> None:
    """A process of its own begins a worktree, writes in it and is killed there: see `_DYING`."""
    done = subprocess.run([sys.executable, "-c", _DYING, str(root), *what], timeout=25, check=False)
    assert done.returncode == -signal.SIGKILL


_DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.tools.test_worktree import begin, trees
root, task_id, key, name = sys.argv[1:]
async def main():
    step = await begin(trees(Path(root)), task_id, key=key)
    if name:
        Path(step.root, name).write_text("of the dead\\n")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


# ---- what a step leaves ---------------------------------------------------------------------------------------------


@both
def test_all_that_is_changed_is_one_commit_on_a_branch_of_its_own(repo: Path, bwrap: str) -> None:
    base = commit(repo, {"gone.txt": "g\n", "kept.txt": "k\n"})

    def change(root: Path) -> None:
        (root / "a.txt").write_text("two\n")
        (root / "gone.txt").unlink()
        (root / "dir").mkdir()
        (root / "dir/new.sh").write_text("#!/bin/sh\n")
        (root / "dir/new.sh").chmod(0o755)
        (root / "link").symlink_to("a.txt")
        (root / "noise.log").write_text("ignored\n")

    found = left(lived(trees(repo, bwrap), change))
    assert (found.branch, found.base, found.is_cut) == ("fanfold/t", base, False)
    assert found.files == ("a.txt", "dir/new.sh", "gone.txt", "link")
    assert branches(repo) == {"fanfold/t": found.commit}
    assert git(repo, "rev-list", "--count", f"main..{found.branch}") == "1"
    assert git(repo, "rev-parse", f"{found.branch}^") == base
    modes = {line.split()[3]: line.split()[0] for line in git(repo, "ls-tree", "-r", "fanfold/t").splitlines()}
    assert (modes["link"], modes["dir/new.sh"], modes["kept.txt"]) == ("120000", "100755", "100644")
    assert git(repo, "log", "-1", "--format=%an|%ae|%cn|%ct|%B", "fanfold/t") == (
        "fanfold|fanfold@localhost|fanfold|1700000000|what it did"
    )
    # The diff is one that git takes.
    (repo / "p").write_text(found.diff)
    git(repo, "apply", "--index", "p")
    (repo / "p").unlink()
    assert git(repo, "write-tree") == git(repo, "rev-parse", "fanfold/t^{tree}")


@both
def test_nothing_of_the_worktree_stays_and_the_workspace_is_untouched(repo: Path, bwrap: str) -> None:
    (repo / "a.txt").write_text("my own work\n")
    (repo / "untracked").write_text("mine\n")
    seen: list[str] = []

    def change(root: Path) -> None:
        seen.append((root / "a.txt").read_text())
        seen.extend(sorted(path.name for path in root.iterdir()))
        (root / "a.txt").write_text("its work\n")
        assert git(repo, "status", "--porcelain") == "M a.txt\n?? untracked"

    left(lived(trees(repo, bwrap), change))
    assert seen == ["one\n", ".git", ".gitignore", "a.txt"]  # as it was last committed
    assert (repo / "a.txt").read_text() == "my own work\n"
    assert git(repo, "status", "--porcelain") == "M a.txt\n?? untracked"
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert yard(repo) == set()


@both
def test_where_nothing_is_changed_not_even_a_branch_stays(repo: Path, bwrap: str) -> None:
    base = git(repo, "rev-parse", "HEAD")

    def change(root: Path) -> None:
        (root / "noise.log").write_text("ignored\n")
        os.utime(root / "a.txt")

    assert left(lived(trees(repo, bwrap), change)) == Worktree(base=base)
    assert branches(repo) == {}
    assert yard(repo) == set()
    assert not (repo / ".git/worktrees").exists()


def test_a_branch_that_there_is_is_never_touched(repo: Path) -> None:
    commit(repo, {"b": "1"})
    git(repo, "branch", "fanfold/t", "HEAD~1")
    git(repo, "branch", "fanfold/T-2/x")  # where there is this one, there can be no `fanfold/T-2`
    before = branches(repo)
    found = [left(lived(trees(repo), writing())).branch for _ in range(2)]
    assert found == ["fanfold/t-3", "fanfold/t-4"]
    assert {name: at for name, at in branches(repo).items() if name in before} == before


def test_a_branch_that_is_called_fanfold_leaves_room(repo: Path) -> None:
    git(repo, "branch", "fanfold")
    assert left(lived(trees(repo), writing())).branch == "fanfold-t"
    assert left(lived(trees(repo), writing())).branch == "fanfold-t-2"


@pytest.mark.parametrize(
    ("task_id", "stem"),
    [
        ("fix the parser", "fix-the-parser"),
        ("../../etc/passwd", "etc-passwd"),
        ("-rf", "rf"),
        ("a.lock", "a-lock"),
        ("@{-1}", "1"),
        ("日本", "step"),
        (".", "step"),
        ("x" * 300, "x" * 60),
        ("a\nb\0c", "a-b-c"),
    ],
)
def test_any_task_id_makes_a_branch(repo: Path, task_id: str, stem: str) -> None:
    assert branch_stem(task_id) == stem
    found = left(lived(trees(repo), writing(), task_id))
    assert found.branch == f"fanfold/{stem}"
    git(repo, "check-ref-format", "--branch", found.branch or "")


def test_a_long_diff_is_cut_at_a_line(repo: Path) -> None:
    found = left(lived(trees(repo), writing(text="".join(f"line {number}\n" for number in range(10_000)))))
    assert found.is_cut
    assert 60_000 < len(found.diff) <= 65_536
    assert found.diff.endswith("\n")
    assert found.files == ("new.txt",)


def test_of_very_many_files_the_first_are_told(repo: Path) -> None:
    def change(root: Path) -> None:
        for number in range(1_100):
            (root / f"{number:04}").touch()

    found = left(lived(trees(repo), change))
    assert (len(found.files), found.files[-1], found.is_cut) == (1_000, "0999", True)


def test_names_and_contents_that_are_no_unicode_are_kept_and_told_as_well_as_may_be(repo: Path) -> None:
    def change(root: Path) -> None:
        Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9\n.txt")).write_bytes(b"\xff text\r\n")
        (root / "binary").write_bytes(b"\0\1\2")

    found = left(lived(trees(repo), change))
    assert found.files == ("binary", "caf??.txt")
    assert "+? text\r\n" in found.diff
    assert "Binary files /dev/null and b/binary differ" in found.diff
    found.to_dict()
    assert git(repo, "ls-tree", "-z", "--name-only", "-r", "fanfold/t").split("\0")[3] == "caf\udce9\n.txt"
    assert "\udce9" not in found.diff


def test_equal_work_at_an_equal_time_is_an_equal_commit(tmp_path: Path) -> None:
    found: list[Worktree] = []
    for name in ("one", "two"):
        new_repository(tmp_path / name)
        found.append(left(lived(trees(tmp_path / name), writing())))
    assert found[0] == found[1]


# ---- repositories of all kinds --------------------------------------------------------------------------------------


def no_repository(folder: Path) -> str:
    folder.mkdir()
    return "Not a git repository"


def no_commit(folder: Path) -> str:
    folder.mkdir()
    git(folder, "init", "--quiet")
    return "the repository has no commit yet"


def bare(folder: Path) -> str:
    folder.mkdir()
    git(folder, "init", "--quiet", "--bare")
    return "Not a git repository"


def uncommitted_folder(folder: Path) -> str:
    new_repository(folder.parent)
    folder.mkdir()
    (folder / "f").touch()
    return "the folder ws is not in the commit"


def committed_link(folder: Path) -> str:
    new_repository(folder.parent)
    folder.symlink_to("/etc")
    commit(folder.parent, {})
    folder.unlink()
    folder.mkdir()
    return "the folder ws is not in the commit"


def borrowed(folder: Path) -> str:
    new_repository(folder.parent / "lender")
    git(folder.parent, "clone", "--quiet", "--shared", "lender", "ws")
    return "borrows objects"


def linked_yard(folder: Path) -> str:
    new_repository(folder)
    (folder / ".a3s").mkdir()
    (folder.parent / "elsewhere").mkdir()
    (folder / ".a3s/worktrees").symlink_to(folder.parent / "elsewhere")
    return "worktrees is a link"


def linked_records(folder: Path) -> str:
    new_repository(folder)
    (folder.parent / "elsewhere").mkdir()
    (folder / ".a3s").symlink_to(folder.parent / "elsewhere")
    return ".a3s is a link"


@pytest.mark.parametrize(
    "make", [no_repository, no_commit, bare, uncommitted_folder, committed_link, borrowed, linked_yard, linked_records]
)
def test_where_there_can_be_none_it_is_said_why_and_nothing_is_left(
    tmp_path: Path, make: Callable[[Path], str]
) -> None:
    folder = tmp_path / "ws"
    why = make(folder)
    with pytest.raises(UsageError, match=why):
        asyncio.run(begin(trees(folder)))
    assert yard(folder) == set()
    assert not any(folder.parent.glob("elsewhere/*"))
    if make not in (no_repository, bare):
        assert branches(folder) == {}
        assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_without_git_it_is_said_what_is_missing(repo: Path) -> None:
    workspace = Workspace(repo)
    of = Worktrees(workspace, {}, allow_unsandboxed_bash=True, program="no-such-git", bwrap=NO_BWRAP)
    with pytest.raises(UsageError, match="there is no program 'no-such-git'"):
        asyncio.run(begin(of))


@both
def test_a_workspace_within_a_repository_has_its_counterpart(repo: Path, bwrap: str) -> None:
    commit(repo, {"pkg/x.txt": "x\n"})

    def change(root: Path) -> None:
        assert root.name == "pkg"
        assert (root.parent / "a.txt").exists()
        (root / "x.txt").write_text("y\n")

    found = left(lived(trees(repo / "pkg", bwrap), change))
    assert found.files == ("pkg/x.txt",)
    assert git(repo, "status", "--porcelain") == ""
    assert yard(repo / "pkg") == set()


@both
def test_a_worktree_of_a_worktree_a_submodule_a_link_and_a_detached_head(tmp_path: Path, bwrap: str) -> None:
    base = new_repository(tmp_path / "one")
    git(tmp_path / "one", "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    new_repository(tmp_path / "outer")
    git(tmp_path / "outer", "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", "../one", "sub")
    (tmp_path / "symlink").symlink_to("linked")
    for name, branch in (("linked", "fanfold/t"), ("symlink", "fanfold/t-2"), ("outer/sub", "fanfold/t")):
        found = left(lived(trees(tmp_path / name, bwrap), writing(text=name)))
        assert (found.branch, found.base, found.files) == (branch, base, ("new.txt",))
        assert shown(tmp_path / name, f"{branch}:new.txt") == name
        assert yard(tmp_path / name) == set()


def with_submodule(tmp_path: Path) -> Path:
    new_repository(tmp_path / "inner")
    new_repository(tmp_path / "repo")
    git(tmp_path / "repo", "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", "../inner", "sub")
    commit(tmp_path / "repo", {})
    return tmp_path / "repo"


def test_a_submodule_stays_as_it_is(tmp_path: Path) -> None:
    repo = with_submodule(tmp_path)
    found = left(lived(trees(repo), writing()))
    assert found.files == ("new.txt",)
    assert "160000" in git(repo, "ls-tree", "fanfold/t", "sub")


def own_repository(root: Path) -> None:
    new_repository(root / "vendor")


def in_submodule(root: Path) -> None:
    (root / "sub/work.txt").write_text("work\n")


@pytest.mark.parametrize(("change", "place"), [(own_repository, "vendor"), (in_submodule, "sub")])
def test_what_no_commit_can_hold_stays_and_is_told(tmp_path: Path, change: Callable[[Path], None], place: str) -> None:
    repo = with_submodule(tmp_path)

    def both(root: Path) -> None:
        change(root)
        (root / "new.txt").write_text("new\n")

    ended = lived(trees(repo), both)
    folder = repo / ".a3s/worktrees/t"
    assert ended.fault == (f"no commit of this repository can hold what it has in {place}; that is still in {folder}")
    assert ended.worktree is not None
    assert "new.txt" in ended.worktree.files
    # Nobody throws it away later.
    assert left(lived(trees(repo), writing())).branch == "fanfold/t-2"
    assert any((folder / place).iterdir())
    assert branches(repo)["fanfold/t"] == ended.worktree.commit


def test_a_sparse_checkout_leaves_out_what_it_leaves_out(repo: Path) -> None:
    commit(repo, {"in/a": "1", "out/b": "2"})
    git(repo, "sparse-checkout", "set", "in")

    def change(root: Path) -> None:
        assert not (root / "out").exists()
        (root / "in/a").write_text("3")
        (root / "elsewhere").mkdir()
        (root / "elsewhere/c").write_text("4")

    assert left(lived(trees(repo), change)).files == ("elsewhere/c", "in/a")


# ---- a repository that is not trusted -------------------------------------------------------------------------------


@both
def test_no_program_that_the_repository_names_is_run(repo: Path, tmp_path: Path, bwrap: str) -> None:
    spy = repo / "spy"
    spy.write_text(f"#!/bin/sh\necho run >> {repo / 'ran'}\ncat\n")
    spy.chmod(0o755)
    commit(repo, {".gitattributes": "*.txt filter=spy diff=spy merge=spy\n", "b.txt": "b\n"})
    for hook in ("post-checkout", "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-index-change",
                 "reference-transaction"):  # fmt: skip
        shutil.copy(spy, repo / ".git/hooks" / hook)
    for name, value in {
        "filter.spy.clean": str(spy), "filter.spy.smudge": str(spy), "filter.spy.required": "true",
        "diff.spy.command": str(spy), "diff.spy.textconv": str(spy), "diff.external": str(spy),
        "core.fsmonitor": str(spy), "gpg.program": str(spy), "commit.gpgSign": "true", "core.editor": str(spy),
        "core.safecrlf": "true", "core.pager": str(spy), "gc.auto": "1", "user.useConfigOnly": "true",
    }.items():  # fmt: skip
        git(repo, "config", name, value)
    (repo / "ran").unlink(missing_ok=True)

    def change(root: Path) -> None:
        (root / "b.txt").write_text("c\r\nd\n")

    found = left(lived(trees(repo, bwrap), change))
    assert found.files == ("b.txt",)
    assert not (repo / "ran").exists()


def test_records_that_a_repository_brings_along_move_no_branch_and_write_nothing(repo: Path, tmp_path: Path) -> None:
    folder = repo / ".a3s/worktrees"
    folder.mkdir(parents=True)
    base = git(repo, "rev-parse", "HEAD")
    git(repo, "branch", "theirs")
    for state in ("making", "working", "ended"):
        record = {"state": state, "task_id": "t", "base": base, "branch": "theirs"}
        (folder / f"{state}.json").write_text(json.dumps(record))
    (folder / "odd.json").write_text(json.dumps({"state": "making", "task_id": "t", "base": "--exec=x"}))
    (folder / "link.json").symlink_to(tmp_path / "elsewhere")
    (folder / "t").mkdir()
    (folder / "t/file").write_text("mine")
    (folder / ".gitignore").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "pipe.json")
    assert left(lived(trees(repo), writing())).branch == "fanfold/t"
    assert git(repo, "rev-parse", "theirs") == base
    assert (folder / "t/file").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_the_settings_of_the_user_do_not_count(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gitconfig").write_text("[user]\nname = Somebody\n[commit]\ngpgSign = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Nobody")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    left(lived(trees(repo), writing()))
    monkeypatch.undo()
    assert git(repo, "log", "-1", "--format=%an", "fanfold/t") == "fanfold"


# ---- at once --------------------------------------------------------------------------------------------------------


@both
def test_many_at_once_do_not_get_in_each_others_way(repo: Path, bwrap: str) -> None:
    async def live(of: Worktrees, number: int) -> StepFolderEnd:
        step = await begin(of, f"t{number % 4}")
        Path(step.root, f"{number}").write_text("x")
        return await end(step)

    async def main() -> list[StepFolderEnd]:
        of, other = trees(repo, bwrap), trees(repo, bwrap)
        return await asyncio.gather(*(live(other if number % 3 else of, number) for number in range(16)))

    found = [left(each) for each in asyncio.run(main())]
    assert [each.files for each in found] == [(f"{number}",) for number in range(16)]
    assert len(branches(repo)) == len({each.branch for each in found}) == 16
    assert yard(repo) == set()


def test_a_lock_of_gits_own_that_somebody_holds_is_waited_for(repo: Path, tmp_path: Path) -> None:
    program, tried = tmp_path / "git", tmp_path / "tried"
    program.write_text(f"""#!/bin/sh
{shutil.which("git")} "$@"
code=$?
case "$*" in *"update-ref -d"*) echo $code >> {tried};; esac
exit $code
""")
    program.chmod(0o755)
    git(repo, "config", "core.packedRefsTimeout", "0")
    of = Worktrees(Workspace(repo), {}, allow_unsandboxed_bash=True, program=str(program), bwrap=NO_BWRAP)

    async def main() -> StepFolderEnd:
        step = await begin(of)
        lock = repo / ".git/packed-refs.lock"
        lock.touch()
        ending = asyncio.create_task(end(step))
        while not tried.exists():
            await asyncio.sleep(0.001)
        lock.unlink()
        return await ending

    assert left(asyncio.run(main())).branch is None
    assert branches(repo) == {}
    first, *more = tried.read_text().split()
    assert (first, more[-1]) == ("1", "0")


# ---- ends of all kinds ----------------------------------------------------------------------------------------------


def test_a_process_that_died_leaves_its_work_to_the_step_that_goes_on(repo: Path) -> None:
    die(repo, "t", "w:t:1", "half.txt")
    (repo / ".git/worktrees/t.x").mkdir()  # of somebody else, and broken

    async def main() -> StepFolderEnd:
        step = await begin(trees(repo), key="w:t:1", goes_on=True)
        assert step.is_taken_up
        assert Path(step.root, "half.txt").read_text() == "of the dead\n"
        Path(step.root, "more.txt").write_text("more\n")
        return await end(step)

    found = left(asyncio.run(main()))
    assert (found.branch, found.files) == ("fanfold/t", ("half.txt", "more.txt"))
    assert git(repo, "rev-list", "--count", "main..fanfold/t") == "1"
    assert not [name for name in yard(repo) if not name.endswith(".json")]


def test_locks_of_a_git_that_was_killed_are_in_nobodys_way(repo: Path) -> None:
    die(repo, "t", "k", "half.txt")
    [git_dir] = (repo / ".git/worktrees").iterdir()
    (git_dir / "index.lock").touch()
    found = left(lived(trees(repo), writing(), key="k", goes_on=True))
    assert found.files == ("half.txt", "new.txt")


def test_a_step_that_begins_anew_has_a_fresh_one_and_what_the_dead_one_did_is_kept(repo: Path) -> None:
    die(repo, "t", "", "half.txt")
    seen: list[str] = []
    found = left(lived(trees(repo), lambda root: seen.extend(os.listdir(root))))
    assert "half.txt" not in seen
    assert found.branch is None
    assert shown(repo, "fanfold/t:half.txt") == "of the dead"
    assert "Left by a process that died" in git(repo, "log", "-1", "--format=%B", "fanfold/t")
    assert yard(repo) == set()
    assert left(lived(trees(repo), writing())).branch == "fanfold/t-2"


@pytest.mark.parametrize("name", ["", "half.txt"])
def test_what_processes_that_died_left_does_not_accumulate(repo: Path, name: str) -> None:
    for number in range(3):
        die(repo, f"dead-{number}", "", name)
    left(lived(trees(repo), nothing, "another"))
    assert yard(repo) == set()
    assert set(branches(repo)) == ({f"fanfold/dead-{number}" for number in range(3)} if name else set())
    assert len(git(repo, "worktree", "list").splitlines()) == 1


def test_what_is_kept_for_a_step_that_may_go_on_is_kept_for_a_while(repo: Path) -> None:
    die(repo, "t", "k", "half.txt")
    left(lived(trees(repo), nothing, "another"))
    assert any(name.startswith("t.") for name in yard(repo))
    for record in (repo / ".a3s/worktrees").glob("*.json"):
        os.utime(record, (time.time(), time.time() - worktree_yard.KEPT_SECONDS - 1))
    left(lived(trees(repo), nothing, "another"))
    assert yard(repo) == set()
    assert shown(repo, "fanfold/t:half.txt") == "of the dead"


def test_a_step_that_ended_and_goes_on_has_what_it_had(repo: Path) -> None:
    first = left(lived(trees(repo), writing("one.txt"), key="k"))
    assert first.branch == "fanfold/t"

    async def main() -> StepFolderEnd:
        step = await begin(trees(repo), key="k", goes_on=True)
        assert step.is_taken_up
        assert Path(step.root, "one.txt").exists()
        Path(step.root, "two.txt").write_text("2\n")
        return await end(step)

    second = left(asyncio.run(main()))
    assert (second.branch, second.base, second.files) == ("fanfold/t", first.base, ("one.txt", "two.txt"))
    assert git(repo, "rev-list", "--count", "main..fanfold/t") == "1"
    again = left(lived(trees(repo), nothing, key="k", goes_on=True))
    assert again == second


def test_a_step_that_ended_without_a_change_goes_on_from_where_it_began(repo: Path) -> None:
    base = left(lived(trees(repo), nothing, key="k")).base
    commit(repo, {"later": "1"})
    found = left(lived(trees(repo), writing(), key="k", goes_on=True))
    assert (found.base, found.files) == (base, ("new.txt",))


def test_a_step_cannot_go_on_where_its_branch_was_deleted(repo: Path) -> None:
    left(lived(trees(repo), writing("one.txt"), key="k"))
    git(repo, "branch", "-D", "fanfold/t")

    async def main() -> tuple[bool, bool]:
        step = await begin(trees(repo), key="k", goes_on=True)
        await end(step)
        return step.is_taken_up, Path(step.root, "one.txt").exists()

    assert asyncio.run(main()) == (False, False)
    left(lived(trees(repo), nothing, "another"))
    assert len(yard(repo)) == 1


def test_what_is_known_of_a_branch_goes_with_it(repo: Path) -> None:
    left(lived(trees(repo), writing(), key="k"))
    left(lived(trees(repo), nothing, "another"))
    assert len(yard(repo)) == 1
    git(repo, "branch", "-D", "fanfold/t")
    left(lived(trees(repo), nothing, "another"))
    assert yard(repo) == set()


def test_what_others_did_on_the_branch_stays(repo: Path) -> None:
    left(lived(trees(repo), writing("one.txt"), key="k"))
    git(repo, "checkout", "--quiet", "fanfold/t")
    theirs = commit(repo, {"theirs": "1"})
    found = left(lived(trees(repo), writing("two.txt"), key="k", goes_on=True))  # it is checked out, so not on it
    assert found.branch == "fanfold/t-2"
    assert found.files == ("one.txt", "theirs", "two.txt")
    assert git(repo, "rev-parse", "fanfold/t") == theirs == git(repo, "rev-parse", "fanfold/t-2^")


def test_commits_that_a_step_made_itself_stay(repo: Path) -> None:
    own: list[str] = []

    def change(root: Path) -> None:
        own.append(commit(root, {"one.txt": "1"}))
        (root / "two.txt").write_text("2")

    found = left(lived(trees(repo), change))
    assert git(repo, "rev-parse", "fanfold/t^") == own[0]
    assert found.files == ("one.txt", "two.txt")


def test_a_step_that_took_its_repository_apart_loses_nothing(repo: Path) -> None:
    def change(root: Path) -> None:
        git(root, "checkout", "--quiet", "-b", "other")
        (root / ".git").unlink()
        (root / "new.txt").write_text("new\n")
        (root / "ro").mkdir()
        (root / "ro/file").write_text("x")
        (root / "ro").chmod(0o555)

    found = left(lived(trees(repo), change))
    assert (found.branch, found.files) == ("fanfold/t", ("new.txt", "ro/file"))
    assert yard(repo) == set()


def test_a_folder_that_cannot_be_put_away_stays_and_is_told(repo: Path) -> None:
    ended = lived(trees(repo), lambda root: git(root, "init", "--quiet", "empty"))
    folder = repo / ".a3s/worktrees/t"
    assert ended.worktree is None
    assert ended.fault is not None
    assert ended.fault.startswith(f"its worktree {folder} could not be put away: git add failed")
    assert folder.is_dir()
    assert (
        lived(trees(repo), shutil.rmtree).fault
        == f"its worktree {folder}-2 could not be put away: somebody has removed it"
    )


def test_one_that_is_in_use_is_left_alone(repo: Path) -> None:
    async def main() -> tuple[StepFolderEnd, StepFolderEnd]:
        step = await begin(trees(repo), key="k")
        Path(step.root, "mine").write_text("1")
        other = await begin(trees(repo), key="k", goes_on=True)
        assert not other.is_taken_up
        assert Path(step.root, "mine").exists()
        return await end(step), await end(other)

    first, second = map(left, asyncio.run(main()))
    assert (first.files, second.branch) == (("mine",), None)


def test_a_cancelled_beginning_leaves_nothing(repo: Path) -> None:
    for number in range(300):
        (repo / f"{number}").write_text("x" * 1000)
    commit(repo, {})

    async def main(wait: float) -> None:
        work = asyncio.create_task(begin(trees(repo)))
        await asyncio.wait((work,), timeout=wait)
        work.cancel()
        await asyncio.wait((work,))
        if not work.cancelled():
            await end(work.result())

    for hundredths in range(12):
        asyncio.run(main(hundredths / 100))
        assert yard(repo) == set()
        assert branches(repo) == {}
        assert len(git(repo, "worktree", "list").splitlines()) == 1


def test_an_end_that_is_cancelled_comes_to_its_end(repo: Path) -> None:
    async def main() -> tuple[StepFolderEnd, int]:
        step = await begin(trees(repo))
        Path(step.root, "new.txt").write_text("1")
        ended: list[StepFolderEnd] = []

        async def work() -> None:
            ended.append(await end(step))

        task = asyncio.create_task(work())
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait((task,))
        return ended[0], task.cancelling()

    ended, cancelled = asyncio.run(main())
    assert left(ended).files == ("new.txt",)
    assert cancelled == 3


def test_what_takes_too_long_is_given_up(repo: Path) -> None:
    ended = lived(trees(repo, end_seconds=0.0), nothing)
    assert ended.fault == f"its worktree {repo / '.a3s/worktrees/t'} was not put away within 0 s"
    with pytest.raises(UsageError, match="was not there after 0 s"):
        asyncio.run(begin(trees(repo, begin_seconds=0.0)))


# ---- its tools ------------------------------------------------------------------------------------------------------


def used(tool: Tool, **args: Any) -> Callable[[], Any]:
    events: list[AgentEvent] = []
    scope = ToolScope(session_id="s", call_id="c", idempotency_key="k", emit=events.append)

    async def call() -> ToolOutput:
        return await tool.run(args, scope)

    return call


@both
def test_its_tools_work_in_it_and_those_of_the_host_stay_as_they_are(repo: Path, bwrap: str) -> None:
    async def main() -> None:
        own, mine, shadowing = tools_of(repo), RecordingTool("mine"), RecordingTool("bash")
        of = Worktrees(Workspace(repo), own, allow_unsandboxed_bash=True, bwrap=bwrap)
        step = await begin(of)
        bound = step.bound({**own, "mine": mine})
        assert bound["mine"] is mine
        assert step.bound({**own, "bash": shadowing})["bash"] is shadowing
        assert list(bound) == [*own, "mine"]
        assert (await used(bound["write"], file_path="w.txt", content="w\n")()).exit_code == 0
        assert (await used(bound["edit"], file_path="a.txt", old_string="one", new_string="two")()).exit_code == 0
        ran = await used(bound["bash"], command="pwd; echo b > b.txt; git status --short; git log --format=%s")()
        assert ran.output.splitlines() == [step.root, " M a.txt", "?? b.txt", "?? w.txt", "step"]
        assert "b.txt" in (await used(bound["search"], mode="glob", query="*.txt")()).output
        assert "fanfold/t" in (await used(bound["git"], command="status")()).output
        await end(step)

    asyncio.run(main())
    assert (repo / "a.txt").read_text() == "one\n"
    assert git(repo, "show", "--format=", "--name-only", "fanfold/t").split() == ["a.txt", "b.txt", "w.txt"]


@needs_bwrap
def test_bash_in_it_writes_nowhere_else(repo: Path) -> None:
    commit(repo, {"pkg/x": "x"})

    async def main() -> None:
        for root in (repo, repo / "pkg"):
            own = tools_of(root)
            step = await begin(Worktrees(Workspace(root), own, allow_unsandboxed_bash=False))
            bash = step.bound(own)["bash"]
            for place in (repo / "y", repo / ".git/y", Path(step.root).parent / "y"):
                await used(bash, command=f"echo y > {place}")()
                assert not place.exists()
            assert (await used(bash, command="echo y > $(git rev-parse --show-toplevel)/.git")()).exit_code != 0
            assert (await used(bash, command="git commit --allow-empty -m x")()).exit_code != 0
            assert (await used(bash, command="git status")()).exit_code == 0
            assert left(await end(step)).branch is None

    asyncio.run(main())


def test_a_long_output_is_kept_where_it_stays(repo: Path) -> None:
    async def main() -> None:
        own = tools_of(repo)
        step = await begin(Worktrees(Workspace(repo), own, allow_unsandboxed_bash=True))
        tools = step.bound(own)
        ran = await used(tools["bash"], command="seq 100000")()
        assert ran.artifact is not None
        assert "     1\t1\n" in (await used(tools["read"], file_path=ran.artifact)()).output
        assert left(await end(step)).branch is None
        assert "     1\t1\n" in (await used(own["read"], file_path=ran.artifact)()).output

    asyncio.run(main())


def test_the_tools_of_the_workspace_do_not_reach_into_it(repo: Path) -> None:
    async def main() -> None:
        step = await begin(trees(repo))
        place = os.path.relpath(step.root, repo)
        tools = tools_of(repo)
        for call in (
            used(tools["read"], file_path=f"{place}/a.txt"),
            used(tools["ls"], path=place),
            used(tools["search"], mode="grep", query="one", path=f"{place}"),
        ):
            assert "it belongs to a step that works by itself" in (await call()).output
        for path in (".", ".a3s"):
            assert "worktrees/t" not in (await used(tools["search"], mode="glob", query="*.txt", path=path)()).output
        assert "worktrees" not in (await used(tools["git"], command="status")()).output
        await end(step)

    asyncio.run(main())


def test_a_rule_judges_a_path_as_it_would_in_the_workspace(repo: Path) -> None:
    commit(repo, {"pkg/secret/key": "k"})

    async def main() -> None:
        for root, name in ((repo, "pkg/secret/key"), (repo / "pkg", "secret/key")):
            step = await begin(trees(root))
            Path(step.root, "link").symlink_to(name)
            for path in (name, f"{step.root}/{name}", "link", f"./x/../{name}"):
                assert step.real_path(path) == name
            await end(step)

    asyncio.run(main())


@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
def test_no_line_end_keeps_a_file_from_being_committed(repo: Path, autocrlf: str) -> None:
    git(repo, "config", "core.autocrlf", autocrlf)
    git(repo, "config", "core.safecrlf", "true")

    def change(root: Path) -> None:
        (root / "dos.txt").write_bytes(b"a\r\nb\r\n")
        (root / "both.txt").write_bytes(b"a\r\nb\n")

    assert left(lived(trees(repo), change)).files == ("both.txt", "dos.txt")


def test_a_mode_that_was_changed_is_a_change(repo: Path) -> None:
    found = left(lived(trees(repo), lambda root: (root / "a.txt").chmod(0o755)))
    assert found.files == ("a.txt",)
    assert "old mode 100644\nnew mode 100755\n" in found.diff
    assert stat.S_IMODE((repo / "a.txt").stat().st_mode) & 0o111 == 0
