"""The git work of a step's worktree: a branch and a folder made, its changes committed, the folder removed.

Nothing that is not the step's own is moved or overwritten: a branch is made only where there is none, and changed only
as long as it stands where it is known to. What a commit cannot hold is said, so that it is not thrown away.
"""

import asyncio
import contextlib
import os
import re
import shutil
import stat
from collections.abc import Coroutine, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from fanfold.contracts.steps import Worktree
from fanfold.tools.git_process import Git, open_git
from fanfold.tools.git_repository import Repository, linked_git_dir
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import printable

MAX_DIFF_BYTES = 65_536
MAX_FILES = 1_000
MAX_STEM = 60
_EMAIL = "fanfold@localhost"
_SETTINGS = (
    "user.name=fanfold",
    f"user.email={_EMAIL}",
    "i18n.commitEncoding=UTF-8",
    f"core.excludesFile={os.devnull}",
    "core.safecrlf=false",  # which would refuse to add a file for its line ends
    # On disk before the folder goes; objects together, and not one by one.
    "core.fsync=committed,loose-object",
    "core.fsyncMethod=batch",
)
_WAITS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between the tries of what others hinder."""
_PASSES = re.compile(r"\.lock'|failed to read .*/worktrees/|could not create directory of .*/worktrees/")
"""What git says when somebody holds one of its locks, or adds or removes a worktree just now."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")
_LOCKS = ("index.lock", "HEAD.lock")

T = TypeVar("T")


class _Commit(msgspec.Struct, frozen=True):
    name: str
    tree: str
    parents: str
    committer: str

    def is_step_of(self, base: str) -> bool:
        """It is what a step that began from `base` left, and nobody has gone on from it."""
        return self.parents == base and self.committer == _EMAIL


async def open_for_change(repository: Repository, folder: Path, *, program: str, bwrap: str) -> Git:
    """git that may change the repository, and what is in `folder`."""
    git = await open_git(repository, program=program, bwrap=bwrap)
    return replace(git, settings=(*git.settings, *_SETTINGS), writable=(repository.common_dir, folder))


def in_worktree(git: Git, folder: Path, git_dir: Path) -> Git:
    """The same in the worktree at `folder`, whatever its `.git` says by now."""
    common_dir = git.repository.common_dir
    repository = Repository(root=folder, top=folder, git_dir=git_dir, common_dir=common_dir)
    return replace(git, repository=repository, writable=(common_dir, git_dir, folder))


async def patient(git: Git, *arguments: str) -> None:
    """Do it; when another git is in its way, try again for a while. Raises ToolRefusal."""
    for wait in (*_WAITS, None):
        try:
            await git.ask(*arguments)
            return
        except ToolRefusal as refusal:
            if wait is None or not _PASSES.search(str(refusal)):
                raise
        await asyncio.sleep(wait)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What it comes to, waited for though the task is cancelled meanwhile: half done it would be in everybody's way.
    A cancellation is left for the caller to look for."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
    return task.result()


# ---- branches -------------------------------------------------------------------------------------------------------


async def new_branch(git: Git, stem: str, start: str) -> str:
    """Make a branch `fanfold/<stem>` at `start`, or `fanfold/<stem>-2`, ...: none that there is."""
    for attempt in count(1):
        branch = _free_name(stem, await branches(git))
        try:
            # An empty old value: only if there is none.
            await patient(git, "update-ref", "-m", "fanfold: begun", f"refs/heads/{branch}", start, "")
            return branch
        except ToolRefusal:
            if attempt == len(_WAITS):  # it is not that others were faster each time
                raise
    raise AssertionError("it counts without an end")


async def branches(git: Git) -> list[str]:
    """Those under our prefix."""
    return await git.lines("for-each-ref", "--format=%(refname:strip=2)", "refs/heads/fanfold", "refs/heads/fanfold-*")


def branch_stem(task_id: str) -> str:
    """What a branch and a folder can be called for it: letters, digits, `_` and `-`."""
    return _UNSAFE.sub("-", task_id)[:MAX_STEM].strip("-") or "step"


def _free_name(stem: str, names: Iterable[str]) -> str:
    # Some file systems know no case, and where there is `a/b` there can be no `a`.
    parts = [name.casefold().split("/") for name in names]
    taken = {"/".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}
    prefix = "fanfold-" if ["fanfold"] in parts else "fanfold/"
    numbered = (f"{prefix}{stem}{f'-{number}' if number > 1 else ''}" for number in count(1))
    return next(name for name in numbered if name.casefold() not in taken)


async def delete_branch(git: Git, branch: str, where: str) -> None:
    """If it stands at `where`."""
    try:
        await patient(git, "update-ref", "-d", f"refs/heads/{branch}", where)
    except ToolRefusal:
        pass  # somebody has moved it, or it cannot be: it is in nobody's way


# ---- the folder -----------------------------------------------------------------------------------------------------


async def add(git: Git, folder: Path, branch: str) -> None:
    """Have git know `folder` as a worktree on `branch`; no file is in it yet."""
    await patient(git, "worktree", "add", "--no-checkout", str(folder), branch)


async def check_out(git: Git, folder: Path) -> None:
    git_dir = await asyncio.to_thread(linked_git_dir, git.repository.common_dir, folder)
    if git_dir is None:
        raise ToolRefusal(f"git does not know the worktree that it made in {folder}")
    await in_worktree(git, folder, git_dir).ask("reset", "--hard", "--quiet")


async def forget(git: Git, folder: Path) -> None:
    """Have git know nothing more of a worktree whose folder is gone."""
    if await asyncio.to_thread(linked_git_dir, git.repository.common_dir, folder):
        await patient(git, "worktree", "remove", "--force", "--force", str(folder))  # twice: also a locked one


def remove_folder(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except PermissionError:  # of a folder that was made read-only
        for parent, folders, _ in os.walk(folder):
            for name in (".", *folders):
                path = os.path.join(parent, name)
                if not os.path.islink(path):
                    os.chmod(path, stat.S_IRWXU)
        shutil.rmtree(folder)


def unlock(git_dir: Path) -> None:
    """Remove the locks that a git which was killed left in the worktree, whose only user the caller is."""
    for name in _LOCKS:
        (git_dir / name).unlink(missing_ok=True)


# ---- what was changed -----------------------------------------------------------------------------------------------


async def commit_all(git: Git, *, branch: str | None, stem: str, base: str, message: str) -> Worktree:
    """Commit all that is in the worktree of `git`, but what is ignored: one commit behind `base`, on `branch`.

    Others who committed on the branch keep what they did: then it is one commit behind theirs. Where nothing was
    changed the branch goes.
    """
    tree = await _tree(git)
    tip = None if branch is None else await git.commit(f"refs/heads/{branch}")
    known = await _commits(git, base, tip)
    is_own = tip is None or tip == base or known[tip].is_step_of(base)
    if is_own and tree == known[base].tree:
        if tip is not None:
            await delete_branch(git, branch or "", tip)
        return Worktree(base=base)
    if tip is None or tree != known[tip].tree:
        commit = await _text(git, "commit-tree", tree, "-p", base if is_own or tip is None else tip, "-m", message)
        branch, tip = await _pointed(git, branch, stem, commit, tip), commit
    return await _described(git, branch or "", tip, base)


async def _tree(git: Git) -> str:
    try:
        await git.ask("add", "--all")
    except ToolRefusal as refusal:
        if "sparse" not in str(refusal):
            raise
        await git.ask("add", "--all", "--sparse")  # also where the user's own checkout leaves folders out
    return await _text(git, "write-tree")


async def _commits(git: Git, *names: str | None) -> dict[str, _Commit]:
    form = "--format=%H%x00%T%x00%P%x00%ce"
    lines = await git.lines("log", "--no-walk=unsorted", "--no-show-signature", form, *filter(None, names))
    commits = [_Commit(*line.split("\0")) for line in lines]
    return {commit.name: commit for commit in commits}


async def _pointed(git: Git, branch: str | None, stem: str, commit: str, tip: str | None) -> str:
    """Have `branch` be at `commit`, if it is still at `tip`; else a new one."""
    if branch is not None:
        try:
            await patient(git, "update-ref", "-m", "fanfold: step", f"refs/heads/{branch}", commit, tip or "")
            return branch
        except ToolRefusal:
            pass  # somebody has moved it just now, or holds it
    return await new_branch(git, stem, commit)


async def _described(git: Git, branch: str, commit: str, base: str) -> Worktree:
    plain = ("diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color")
    names = await git.ask(*plain, "--no-renames", "--name-only", "-z", base, commit)
    files = [printable(os.fsdecode(name)) for name in names.output.split(b"\0") if name]
    diff = await git.ask(*plain, "--patch", "--find-renames", base, commit, most_bytes=MAX_DIFF_BYTES)
    shown = diff.output[: diff.output.rfind(b"\n") + 1] or diff.output if diff.is_cut else diff.output
    return Worktree(
        branch=branch,
        commit=commit,
        base=base,
        files=tuple(files[:MAX_FILES]),
        diff=shown.decode("utf-8", "replace").replace("\ufffd", "?"),
        is_cut=diff.is_cut or names.is_cut or len(files) > MAX_FILES,
    )


async def left_out(git: Git) -> Sequence[str]:
    """Repositories within the worktree that hold files: submodules, and others. No commit of this one has those."""
    tree = await _text(git, "write-tree")
    entries = (await git.ask("ls-tree", "-r", "-t", "-d", "-z", tree)).output.split(b"\0")
    links = [os.fsdecode(entry.partition(b"\t")[2]) for entry in entries if entry.startswith(b"160000 ")]
    return await asyncio.to_thread(_holding, git.repository.top, links)


def _holding(top: Path, links: Iterable[str]) -> list[str]:
    return [printable(link) for link in links if (top / link).is_dir() and any((top / link).iterdir())]


async def _text(git: Git, *arguments: str) -> str:
    return (await git.ask(*arguments)).output.decode("ascii", "replace").strip()
