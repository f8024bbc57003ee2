"""The changes of a git repository, file by file, as `fanfold review` sends them; what is left out says why.

git runs hardened, as it does for the agents' tool: the repository may be anybody's.
"""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fanfold.cli.review_patches import (
    MAX_PATCH_BYTES,
    TOO_LARGE,
    ChangedFile,
    Entry,
    changed_file,
    parted,
    sections_of,
    text_from,
)
from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonObject
from fanfold.errors import UsageError
from fanfold.regular_file import read_regular
from fanfold.tools.git_process import Git, open_git
from fanfold.tools.git_repository import Repository, find_repository
from fanfold.tools.git_text import text_of
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import printable

MAX_FILES = 2_000
MAX_SENT_BYTES = 900_000
"""Of all files, as JSON: the arguments of a workflow have a limit."""
MAX_SUMMARY_BYTES = 4_000
_TOO_MUCH = "the change is too large as a whole"
_MAX_ROUNDS = 20
_A_PART = "review a part of the workspace: fanfold review PATH"
_SECONDS = 60.0
_SEEN_FOR_TEXT = 8_000
_PATCH = (
    "diff", "--raw", "--patch", "-z", "--abbrev=7", "--find-renames", "--unified=8", "--no-ext-diff", "--no-textconv",
    "--no-color", "--submodule=short", "--ignore-submodules=dirty", "--relative",
)  # fmt: skip
_OWN_RECORDS = ".a3s/"
_OWN_DEFINITIONS = (".a3s/agents/", ".a3s/workflows/")


class Changes(msgspec.Struct, frozen=True):
    what: str
    """For people, such as `uncommitted changes`."""
    base: str | None
    """The commit that they are compared with; None before the first one."""
    summary: str = ""
    """What their commits say."""
    files: tuple[ChangedFile, ...] = ()

    def sendable(self, may_read: Callable[[str], bool]) -> "Changes":
        """Without the patches that may not be sent, or that are too many."""
        room = MAX_SENT_BYTES
        files: list[ChangedFile] = []
        for file in self.files:
            if not may_read(file.path):
                file = replace(file, patch="", left_out="permissions keep it from being read")
            elif len(encode_json(file.sent())) > room:
                file = replace(file, patch="", left_out=_TOO_MUCH)
            room -= len(encode_json(file.sent()))
            files.append(file)
        return replace(self, files=tuple(files))

    def args(self) -> JsonObject:
        """As the workflow `review-changes` takes them."""
        base = {} if self.base is None else {"base": self.base}
        summary = {"summary": self.summary} if self.summary else {}
        return {**base, **summary, "files": [file.sent() for file in self.files]}


async def collect_changes(
    root: Path,
    path: str = ".",
    base: str | None = None,
    *,
    report: Path | None = None,
    program: str = "git",
    bwrap: str = "bwrap",
) -> Changes:
    """What has changed below `path` of the workspace `root`.

    Since the merge base of `base` and HEAD, uncommitted work included. Without `base` only the uncommitted work; if
    there is none the last commit.

    Args:
        report: where the report will be written; the one of an earlier review is no work.

    Raises:
        UsageError: no repository, no such path or commit, too many files, or git fails.
    """
    if os.name != "posix":
        raise UsageError("git is read with the means of a POSIX system only")
    root = root.resolve()
    place = _place(root, path)
    try:
        async with asyncio.timeout(_SECONDS):
            repository = await asyncio.to_thread(_repository, root)
            git = await open_git(repository, program=program, bwrap=bwrap)
            look = _Look(git, place, report)
            changes = await (look.uncommitted() if base is None else look.since(base))
    except ToolRefusal as refusal:
        raise UsageError(str(refusal)) from refusal
    except TimeoutError:
        raise UsageError(f"git took longer than {_SECONDS:g} s; {_A_PART}") from None
    if place and not changes.files and not os.path.lexists(root / place):
        raise UsageError(f"there is no '{path}' here, and no change of it")
    if len(changes.files) > MAX_FILES:
        raise UsageError(
            f"{len(changes.files)} files have changed, and at most {MAX_FILES} can be reviewed; {_A_PART}, and let "
            ".gitignore name what is not part of the work"
        )
    return changes


def _repository(root: Path) -> Repository:
    try:
        return find_repository(root)
    except ToolRefusal as refusal:
        raise UsageError(str(refusal)).with_hint("go into one, or name it with -C DIR") from refusal


def _place(root: Path, path: str) -> str:
    """`path` within the root: it may be gone, and a link counts as itself, for git knows it by its name."""
    folder, name = os.path.split(os.path.normpath(os.path.join(root, path)))
    place = os.path.relpath(os.path.join(os.path.realpath(folder), name), root).replace(os.sep, "/")
    if place == ".." or place.startswith("../"):
        raise UsageError(f"'{path}' lies outside of the workspace; to review another one: fanfold review -C {path}")
    return "" if place == "." else place


class _Look(msgspec.Struct, frozen=True):
    git: Git
    place: str
    """Of what is looked at, within the workspace."""
    report: Path | None

    @property
    def _paths(self) -> tuple[str, str]:
        return "--", f":(top,literal){self._part}" if self._part else ":(top)"

    @property
    def _part(self) -> str:
        """Of the repository that is looked at; `` for all of it, where git must not leave out commits."""
        return self._in_tree(self.place)

    def _in_tree(self, path: str) -> str:
        """A path of the workspace as git's trees have it."""
        return "/".join(filter(None, (self.git.repository.place, path)))

    async def since(self, base: str) -> Changes:
        commit, head = await self._commit(base), await self._commit("HEAD")
        try:
            start = (await self.git.lines("merge-base", commit, head))[0]
        except ToolRefusal:
            raise UsageError(
                f"{base} and HEAD have no commit in common; in a shallow clone get it with: git fetch --unshallow"
            ) from None
        summary = await self._said(f"{start}..HEAD", *(self._paths if self._part else ()))
        files = [*await self._patches(start), *await self._untracked()]
        return Changes(f"changes since {base} ({start[:7]})", start, summary, tuple(files))

    async def uncommitted(self) -> Changes:
        head = await self.git.commit("HEAD")
        files = [*await self._patches(head or await self._nothing()), *await self._untracked()]
        if files or head is None:
            return Changes("uncommitted changes", head, files=tuple(files))
        return await self._last_commit()

    async def _last_commit(self) -> Changes:
        found = await self.git.lines("rev-list", "--max-count=1", "HEAD", *(self._paths if self._part else ()))
        if not found:
            return Changes("uncommitted changes", None)
        last, parent = found[0], await self.git.commit(f"{found[0]}^")
        if parent is None and last in _shallow(self.git.repository.common_dir):
            raise UsageError(
                f"nothing is uncommitted, and the commit before {last[:7]} is not in this shallow clone; "
                "get it with: git fetch --deepen 1"
            )
        title = (await self.git.lines("log", "--max-count=1", "--encoding=UTF-8", "--format=%h %s", last))[0]
        files = await self._patches(parent or await self._nothing(), last)
        said = await self._said("--max-count=1", last)
        there, below = (" there", f" below {self.place}") if self.place else ("", "")
        what = f"the last commit{below}, {text_of(title.encode())} (nothing is uncommitted{there})"
        return Changes(what, parent, said, tuple(files))

    async def _commit(self, name: str) -> str:
        found = await self.git.commit(name)
        if found is None:
            raise ToolRefusal(f"'{printable(name[:200])}' is no commit, branch or tag of this repository")
        return found

    async def _nothing(self) -> str:
        """The empty tree."""
        return (await self.git.lines("hash-object", "-t", "tree", "--stdin"))[0]

    async def _said(self, *commits: str) -> str:
        said = await self.git.ask(
            "log", "--no-show-signature", "--encoding=UTF-8", "--format=%B", *commits, most_bytes=MAX_SUMMARY_BYTES
        )  # fmt: skip
        return text_of(said.output).strip() + (" …" if said.is_cut else "")

    # ---- what git knows ----

    async def _patches(self, *commits: str) -> list[ChangedFile]:
        """The difference of a commit to another one, or to the files as they are."""
        files: list[ChangedFile] = []
        entries: list[Entry] = []
        start: tuple[str, ...] = ()
        for _ in range(_MAX_ROUNDS):
            said = await self.git.ask(*_PATCH, *start, *commits, *self._paths)
            entries, patch = parted(said.output)
            if said.is_cut and not entries:
                raise UsageError(f"too many files have changed; {_A_PART}")
            sections = sections_of(entries, patch)
            if not said.is_cut or len(entries) > MAX_FILES:
                return files + [changed_file(entry, sections.get(number, b"")) for number, entry in enumerate(entries)]
            # Where it is cut stands one that is too large: go on behind it.
            last = max(sections, default=0)
            files += [changed_file(entry, sections.get(number, b"")) for number, entry in enumerate(entries[:last])]
            files.append(replace(changed_file(entries[last], b""), left_out=TOO_LARGE))
            entries = entries[last + 1 :]
            if not entries:
                return files
            start = (f"--skip-to={self._in_tree(os.fsdecode(entries[0].path))}",)
        return files + [replace(changed_file(entry, b""), left_out=_TOO_MUCH) for entry in entries]

    # ---- what it does not ----

    async def _untracked(self) -> list[ChangedFile]:
        names = await self.git.names("ls-files", "--others", "--exclude-standard", "-z", *self._paths)
        root = self.git.repository.root
        named = [name for name in names if not _is_own_record(name) and root / name != self.report]
        if len(named) > MAX_FILES:
            return [ChangedFile(printable(name), "untracked") for name in named]  # refused by their number
        return await asyncio.to_thread(lambda: [_untracked_file(root, name) for name in named])


def _shallow(git_dir: Path) -> list[str]:
    try:
        return read_regular(git_dir / "shallow").decode("ascii", "replace").split()
    except OSError:
        return []


def _is_own_record(name: str) -> bool:
    return name.startswith(_OWN_RECORDS) and not name.startswith(_OWN_DEFINITIONS)


def _untracked_file(root: Path, name: str) -> ChangedFile:
    path = printable(name)
    try:
        found = os.lstat(root / name)
        if not stat.S_ISREG(found.st_mode):
            return ChangedFile(path, "untracked", left_out="no regular file")
        if found.st_size > MAX_PATCH_BYTES:
            return ChangedFile(path, "untracked", left_out=TOO_LARGE)
        content = read_regular(root / name, MAX_PATCH_BYTES)
    except OSError as error:
        return ChangedFile(path, "untracked", left_out=f"cannot be read: {error.strerror}")
    if b"\0" in content[:_SEEN_FOR_TEXT]:
        return ChangedFile(path, "untracked", left_out="binary")
    lines = text_from(content).removesuffix("\n").split("\n") if content else []
    return ChangedFile(
        path,
        "untracked",
        "".join(f"{line}\n" for line in [f"@@ -0,0 +1,{len(lines)} @@", *(f"+{each}" for each in lines)]),
    )
