"""Yard: where the worktrees of one workspace lie; they are made, taken up, and cleared here.

The record of a worktree is always written before what it tells of, so that after a death at any moment whoever comes by
knows what is there: a branch that a record names was made for it.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from fanfold.contracts.steps import Worktree
from fanfold.foreign import logger, stop_if_cancelled
from fanfold.tools.git_process import Git
from fanfold.tools.git_repository import linked_git_dir
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.worktree_git import (
    add,
    branch_stem,
    branches,
    check_out,
    commit_all,
    delete_branch,
    forget,
    in_worktree,
    left_out,
    new_branch,
    remove_folder,
    to_its_end,
    unlock,
)
from fanfold.tools.worktree_record import SUFFIX, Claim, Record

KEPT_SECONDS = 14 * 86_400
"""How long what a step left that may go on is kept for it."""

T = TypeVar("T")


class Yard(msgspec.Struct, frozen=True):
    git: Git
    """Of the workspace's repository; it may change that and `folder`."""
    folder: Path
    changing: asyncio.Lock
    """Held while git's list of worktrees changes: its own locks do not wait for long."""

    # ---- made ----

    async def make(self, claim: Claim, record: Record, start: str) -> Record:
        """Check `start` out in the folder of `claim`, on the branch of `record` or a new one.

        Raises:
            ToolRefusal: it cannot be; nothing is left of it. Likewise OSError.
        """
        making = replace(record, state="making")
        try:
            await _whole(claim.write, making)
            async with self.changing:
                if making.branch is None or not await self._added(claim.folder, making.branch):
                    stem = branch_stem(record.task_id)
                    branch = await to_its_end(new_branch(self.git, stem, start))  # or nobody would know of it
                    making = replace(making, branch=branch)
                    await _whole(claim.write, making)
                    await add(self.git, claim.folder, branch)
            await check_out(self.git, claim.folder)
            if not self._has_root(claim.folder):
                raise ToolRefusal(
                    f"the folder {self.git.repository.place} is not in the commit {start}; commit it first"
                )
            working = replace(making, state="working")
            await _whole(claim.write, working)
        except BaseException:
            await to_its_end(self._cleared(claim, 0))
            raise
        return working

    async def _added(self, folder: Path, branch: str) -> bool:
        try:
            await add(self.git, folder, branch)
        except ToolRefusal:
            return False  # it is checked out elsewhere
        return True

    def root(self, folder: Path) -> Path:
        """The counterpart of the workspace in a worktree."""
        return folder / self.git.repository.place

    def _has_root(self, folder: Path) -> bool:
        root = self.root(folder)
        return root.is_dir() and os.path.realpath(root) == str(root)  # a commit may have a link there

    # ---- taken up ----

    async def take_up(self, claim: Claim, last: Record) -> Record | None:
        """Have the worktree as the last attempt left it; None when that is not to be had any more."""
        if last.state == "making":
            await self.clear(claim, message="", now_ms=0)
            last = claim.last or last
        if last.state == "working":
            git_dir = await self._known(claim.folder)
            return None if git_dir is None or not self._has_root(claim.folder) else last
        start = await self.git.commit(last.base if last.branch is None else f"refs/heads/{last.branch}")
        return None if start is None else await self.make(claim, last, start)

    async def free(self, first: Claim | None, folder: Path, now_ms: int) -> Claim:
        """The first of `folder`, `<folder>-2`, ... that nobody needs; `first` is what is held of `folder`."""
        for number in count(1):
            claim = first
            if number > 1:
                claim = Claim.take(folder.with_name(f"{folder.name}-{number}"))
            if claim is None:
                continue
            try:
                if await self._is_free(claim, now_ms):
                    return claim
            except BaseException:
                claim.release()
                raise
            claim.release()
        raise AssertionError("it counts without an end")

    async def _is_free(self, claim: Claim, now_ms: int) -> bool:
        if claim.last is None:
            return not os.path.lexists(claim.folder)
        return claim.last.state == "ended" or await self._cleared(claim, now_ms)

    # ---- cleared ----

    async def clear(self, claim: Claim, *, message: str, now_ms: int) -> tuple[Worktree, Sequence[str]]:
        """Commit what was changed, and remove the folder; the record is ended then.

        Returns what is left of the worktree, and what in it no commit can hold: then the folder stays, and its record.

        Raises:
            ToolRefusal: that could not be, and the folder stays. Likewise OSError.
        """
        last = claim.last
        if last is None or last.state == "ended":
            return Worktree(base="" if last is None else last.base), ()
        git_dir = await self._known(claim.folder)
        branch, worktree = last.branch, Worktree(base=last.base)
        if last.state == "working" and claim.folder.is_dir():
            if git_dir is None:
                raise ToolRefusal("the repository does not know it any more")
            unlock(git_dir)
            stamp = f"@{max(0, now_ms) // 1000} +0000"
            git = in_worktree(self.git, claim.folder, git_dir)
            git = replace(git, variables=(("GIT_AUTHOR_DATE", stamp), ("GIT_COMMITTER_DATE", stamp)))
            worktree = await commit_all(
                git, branch=branch, stem=branch_stem(last.task_id), base=last.base, message=message
            )
            branch = worktree.branch
            if left := await left_out(git):
                return worktree, left
        elif branch is not None:
            await delete_branch(self.git, branch, last.base)
            branch = branch if await self.git.commit(f"refs/heads/{branch}") else None
        await _whole(remove_folder, claim.folder)
        async with self.changing:
            await forget(self.git, claim.folder)
        await _whole(claim.write, replace(last, state="ended", branch=branch))
        return worktree, ()

    async def _known(self, folder: Path) -> Path | None:
        return await asyncio.to_thread(linked_git_dir, self.git.repository.common_dir, folder)

    async def _cleared(self, claim: Claim, now_ms: int) -> bool:
        """What nobody works in any more is; it stays where that cannot be."""
        task_id = "" if claim.last is None else claim.last.task_id
        try:
            _, left = await self.clear(claim, message=f"{task_id}\n\nLeft by a process that died.", now_ms=now_ms)
        except (ToolRefusal, OSError) as error:
            logger.warning("the worktree in %s stays: %s", claim.folder, error)
            return False
        if left:
            logger.warning("the worktree in %s stays: no commit can hold what is in %s", claim.folder, ", ".join(left))
        return not left

    async def sweep(self, now_ms: int) -> None:
        """Clear what processes that died left, but what is kept for steps that may go on; forget what is long over."""
        known = set(await branches(self.git))
        for path in sorted(await asyncio.to_thread(lambda: list(self.folder.glob(f"*{SUFFIX}")))):
            try:
                claim = Claim.take(path.with_suffix(""))
            except OSError:  # no file, but something else of that name
                claim = None
            if claim is None:
                continue
            try:
                claim.release(forget=await self._is_over(claim, known, now_ms))
            finally:
                claim.release()

    async def _is_over(self, claim: Claim, branches: set[str], now_ms: int) -> bool:
        last = claim.last
        if last is None:
            return not os.path.lexists(claim.folder)
        is_old = claim.written_at < time.time() - KEPT_SECONDS
        if last.state == "ended":
            return is_old or (last.branch is not None and last.branch not in branches)
        if last.key and not is_old:
            return False
        return await self._cleared(claim, now_ms)


async def _whole(work: Callable[[T], None], of: T) -> None:
    """Have it done in a thread, which no cancellation stops: so it is waited for, or it would meet what comes next."""
    await to_its_end(asyncio.to_thread(work, of))
    stop_if_cancelled()
