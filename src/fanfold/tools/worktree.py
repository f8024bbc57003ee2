"""Worktrees: steps that work in a git worktree of their own, and leave what they changed as a branch.

They lie in `<workspace>/.a3s/worktrees`: ignored by git, passed over by `search`, refused by the other tools of the
workspace, read-only to its `bash`. (Not in `.git`: many a test runner and linter finds no file below a folder of that
name.) The worktree of a process that died stays with all that is in it: the next attempt at that step goes on in it, if
it goes on at all; else what is there is committed to its branch, and the folder removed.
"""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from fanfold.errors import UsageError
from fanfold.protocols import StepFolderEnd, Tool
from fanfold.tools.git_repository import find_repository
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.toolset import builtin_tools
from fanfold.tools.workspace import WORKTREES, Workspace
from fanfold.tools.worktree_git import branch_stem, open_for_change, to_its_end
from fanfold.tools.worktree_record import Claim, Record
from fanfold.tools.worktree_yard import Yard

BEGIN_SECONDS = 600.0
END_SECONDS = 300.0
"""After which a worktree is left where it is, for the next one who comes by."""


class Worktrees:
    """Those of the steps on one workspace, on one event loop."""

    def __init__(
        self,
        workspace: Workspace,
        own: Mapping[str, Tool],
        *,
        allow_unsandboxed_bash: bool,
        program: str = "git",
        bwrap: str = "bwrap",
        begin_seconds: float = BEGIN_SECONDS,
        end_seconds: float = END_SECONDS,
    ) -> None:
        """`own` are the built-in tools of the workspace, which have a counterpart in each worktree."""
        self._workspace = workspace
        self._own = own
        self._allow_unsandboxed_bash = allow_unsandboxed_bash
        self._program = program
        self._bwrap = bwrap
        self._begin_seconds = begin_seconds
        self._end_seconds = end_seconds
        self._changing = asyncio.Lock()
        self._sweeping = asyncio.Lock()
        self._is_swept = False

    async def begin(self, task_id: str, *, key: str, goes_on: bool, now_ms: int) -> "StepWorktree":
        """See `StepFolders.begin`."""
        try:
            async with asyncio.timeout(self._begin_seconds):
                return await self._begun(task_id, key, goes_on, now_ms)
        except TimeoutError:
            raise UsageError(f"its worktree was not there after {self._begin_seconds:g} s") from None
        except (ToolRefusal, OSError) as error:
            raise UsageError(f"it cannot have a worktree of its own: {error}") from error

    async def _begun(self, task_id: str, key: str, goes_on: bool, now_ms: int) -> "StepWorktree":
        yard = await self._yard()
        head = await yard.git.commit("HEAD")
        if head is None:
            raise ToolRefusal("the repository has no commit yet, from which it could begin; commit something first")
        async with self._sweeping:
            if not self._is_swept:
                await yard.sweep(now_ms)
                self._is_swept = True
        stem = branch_stem(task_id)
        folder = yard.folder / (f"{stem}.{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else stem)
        claim = Claim.take(folder)
        try:
            last = None if claim is None else claim.last
            record = None
            if claim is not None and last is not None and goes_on and key:
                record = await yard.take_up(claim, last)
            is_taken_up = record is not None
            if claim is None or record is None:
                claim = await yard.free(claim, folder, now_ms)
                begun = Record(state="making", task_id=task_id, key=key, base=head)
                record = await yard.make(claim, begun, head)
            return self._step(yard, claim, is_taken_up)
        except BaseException:
            if claim is not None:
                claim.release()
            raise

    def _step(self, yard: Yard, claim: Claim, is_taken_up: bool) -> "StepWorktree":
        workspace = Workspace(yard.root(claim.folder), records=self._workspace)
        places = (claim.folder, yard.git.repository.common_dir)
        tools = builtin_tools(
            workspace,
            allow_unsandboxed_bash=self._allow_unsandboxed_bash,
            readable=tuple(place for place in places if place != workspace.root),
        )
        return StepWorktree(self, claim, workspace, tools, is_taken_up=is_taken_up)

    async def _yard(self) -> Yard:
        repository = await asyncio.to_thread(find_repository, self._workspace.root)
        folder = await asyncio.to_thread(self._folder)
        git = await open_for_change(repository, folder, program=self._program, bwrap=self._bwrap)
        return Yard(git, folder, self._changing)

    def _folder(self) -> Path:
        folder = self._workspace.root / WORKTREES
        for place in (folder.parent, folder):  # step by step, for a link would lead elsewhere
            place.mkdir(exist_ok=True)
            if os.path.realpath(place) != str(place):
                raise ToolRefusal(f"{place} is a link; remove it")
        try:
            with (folder / ".gitignore").open("x") as ignored:  # never through a link, which a repository may bring
                ignored.write("*\n")
        except FileExistsError:
            pass
        return folder

    def counterpart(self, tool: Tool, made: Mapping[str, Tool]) -> Tool:
        name = tool.spec.name
        return made[name] if self._own.get(name) is tool else tool

    async def ended(self, claim: Claim, message: str, now_ms: int) -> StepFolderEnd:
        """See `StepFolder.end`."""
        try:
            async with asyncio.timeout(self._end_seconds):
                if not claim.folder.is_dir():
                    raise ToolRefusal("somebody has removed it")
                yard = await self._yard()  # anew: the repository's filters may be others now
                worktree, left = await yard.clear(claim, message=message, now_ms=now_ms)
        except TimeoutError:
            return StepFolderEnd(fault=f"its worktree {claim.folder} was not put away within {self._end_seconds:g} s")
        except (ToolRefusal, OSError) as error:
            return StepFolderEnd(fault=f"its worktree {claim.folder} could not be put away: {error}")
        else:
            if not left:
                return StepFolderEnd(worktree=worktree)
            what = ", ".join(left)
            fault = f"no commit of this repository can hold what it has in {what}; that is still in {claim.folder}"
            return StepFolderEnd(worktree=worktree, fault=fault)
        finally:
            claim.release()


class StepWorktree:
    """One of them, while its step works in it."""

    def __init__(
        self, owner: Worktrees, claim: Claim, workspace: Workspace, tools: Mapping[str, Tool], *, is_taken_up: bool
    ) -> None:
        self._owner = owner
        self._claim = claim
        self._workspace = workspace
        self._tools = tools
        self.root = str(workspace.root)
        self.is_taken_up = is_taken_up

    def bound(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        return {name: self._owner.counterpart(tool, self._tools) for name, tool in tools.items()}

    def real_path(self, path: str) -> str:
        return self._workspace.canonical(path)

    async def end(self, *, message: str, now_ms: int) -> StepFolderEnd:
        return await to_its_end(self._owner.ended(self._claim, message, now_ms))
