"""`git`: what the repository says of its history and its changes; nothing that changes it.

Contents are shown only of files that `read` may have: a patch leaves the others out.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

import msgspec

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import ToolScope
from fanfold.tools.artifacts import bounded
from fanfold.tools.git_process import Git, open_git
from fanfold.tools.git_repository import find_repository
from fanfold.tools.git_text import commit_line, remote_lines, status_lines, text_of
from fanfold.tools.refusal import ToolRefusal, failed_output
from fanfold.tools.workspace import Workspace, printable

LOG_LIMIT = 10
LIST_LIMIT = 50
MAX_LIMIT = 200
MAX_SCANNED = 5_000
"""Commits of a log that can be paged through."""
DEFAULT_BYTES = 64 * 1024
MAX_BYTES = 102_400
MAX_OFFSET = 64 * 1024 * 1024
MAX_LEFT_OUT = 1_000
"""Files that a patch can leave out; they are named on git's command line."""
MAX_ANCHORS = 64

_CHANGING = frozenset(
    {
        "add", "am", "apply", "archive", "bisect", "bundle", "checkout", "cherry-pick", "clean", "clone",
        "commit", "config", "fetch", "filter-branch", "gc", "init", "maintenance", "merge", "mergetool", "mv",
        "notes", "prune", "pull", "push", "rebase", "replace", "repack", "reset", "restore", "revert", "rm",
        "sparse-checkout", "submodule", "switch", "update-index", "update-ref", "worktree",
    }
)  # fmt: skip

SPEC = ToolSpec(
    name="git",
    description=(
        "Read the git repository: status, log, diff (ref, default HEAD, against target, default the files as they "
        "are), show (a commit; ref:path for a file as it was), blame, branch, tag, stash, remote. Changes nothing."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "ref": {"type": "string", "description": "commit, branch or a..b"},
            "target": {"type": "string"},
            "path": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
            "cursor": {"type": "integer", "minimum": 0},
            "byte_offset": {"type": "integer", "minimum": 0},
            "max_bytes": {"type": "integer", "minimum": 256, "maximum": MAX_BYTES},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    is_read_only=True,
    is_parallel_safe=True,
)

_COMMIT = "--format=%h%x00%as%x00%an%x00%s%x00%D"
_PATCH = (
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--submodule=short",
    "--ignore-submodules=dirty",
    "--relative",
)
"""What a submodule has changed is not looked for: its own configuration would be obeyed there."""


class GitTool(msgspec.Struct, frozen=True):
    workspace: Workspace
    program: str = "git"
    bwrap: str = "bwrap"
    seconds: float = 30.0
    """After which a call is given up."""
    spec: ToolSpec = SPEC

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        command: str = args["command"]
        try:
            answer = _answer_to(command, args)
            repository = await asyncio.to_thread(find_repository, self.workspace.root)
            async with asyncio.timeout(self.seconds):
                git = await open_git(repository, program=self.program, bwrap=self.bwrap)
                output = await answer(_Call(self.workspace, git, args, scope.may_read))
            return await asyncio.to_thread(bounded, self.workspace, SPEC.name, output)
        except TimeoutError:
            late = f"git {command} gave up after {self.seconds:g} s; narrow it with path or ref"
            return ToolOutput(output=late, exit_code=1)
        except (ToolRefusal, OSError) as error:
            return failed_output(f"run git {command}", error)


class _Call(msgspec.Struct, frozen=True):
    workspace: Workspace
    git: Git
    args: JsonObject
    may_read: Callable[[str], bool]

    async def commit(self, name: str) -> str:
        found = await self.git.commit(name)
        if found is None:
            raise ToolRefusal(f"'{printable(name[:200])}' is no commit, branch or tag of this repository")
        return found

    async def range(self, name: str) -> list[str]:
        """Hashes for `a`, `a..b` or `a...b`; an end that is left out is HEAD."""
        for dots in ("...", ".."):
            first, found, second = name.partition(dots)
            if found:
                return [await self.commit(first or "HEAD"), dots, await self.commit(second or "HEAD")]
        return [await self.commit(name)]

    def path(self) -> str | None:
        """The path that is asked for, within the workspace; None for all of it."""
        return self.inside(self.args["path"]) if "path" in self.args else None

    def inside(self, path: str) -> str | None:
        root = self.workspace.root
        self.workspace.resolve(path)
        # git knows files by their names, not by where links lead.
        place = os.path.relpath(os.path.join(root, path), root).replace(os.sep, "/")
        if place == ".." or place.startswith("../"):
            raise ToolRefusal(f"Failed to resolve path: {path[:200]!r} escapes workspace")
        return None if place == "." else place

    def in_tree(self, path: str | None) -> str:
        """A path of the workspace as git's trees have it."""
        return "/".join(part for part in (self.git.repository.place, path) if part)

    def pathspec(self, path: str | None) -> str:
        place = self.in_tree(path)
        return f":(top,literal){place}" if place else ":(top)"

    def refuse_unreadable(self, path: str) -> None:
        if not (self.may_read(path) and self.may_read(self.workspace.canonical(path))):
            raise ToolRefusal(f"permissions do not let read have {printable(path)}, so git does not show it either")

    async def patch(self, *command: str) -> ToolOutput:
        """A page of what `command` shows, without the files that may not be read."""
        paths = [self.pathspec(self.path())]
        names = await self.git.names(*command, "--format=", "--name-only", "--no-renames", "-z", "--", *paths)
        barred = await asyncio.to_thread(lambda: [name for name in names if not self.may_read(name)])
        if len(barred) > MAX_LEFT_OUT:
            raise ToolRefusal(f"permissions keep read from {len(barred)} of the files; narrow it with path")
        paths += [f":(top,literal,exclude){self.in_tree(name)}" for name in barred]
        note = f"[{len(barred)} file(s) left out: permissions do not let read have them]" if barred else ""
        page = await self.page(*command, "--stat=100", "--patch", "--", *paths)
        anchors = tuple(printable(name) for name in names if name not in set(barred))
        return ToolOutput(output="\n".join(filter(None, (page, note))), source_anchors=anchors[:MAX_ANCHORS])

    async def page(self, *command: str) -> str:
        """At most `max_bytes` from `byte_offset` on, in whole lines where there are any."""
        start: int = self.args.get("byte_offset", 0)
        most: int = self.args.get("max_bytes", DEFAULT_BYTES)
        if start > MAX_OFFSET:
            raise ToolRefusal(f"byte_offset goes up to {MAX_OFFSET}; narrow it with path")
        said = await self.git.ask(*command, most_bytes=start + most)
        page = said.output[start:]
        if start and not page:
            raise ToolRefusal(f"byte_offset {start} exceeds the output ({len(said.output)} bytes)")
        if said.is_cut:
            page = page[: page.rfind(b"\n") + 1] or page
        text = text_of(page).removesuffix("\n")
        return f"{text}\n[more follows; continue with byte_offset={start + len(page)}]" if said.is_cut else text

    def listed(self, lines: list[str], nothing: str) -> ToolOutput:
        start: int = self.args.get("cursor", 0)
        end = start + self.args.get("limit", LIST_LIMIT)
        shown = lines[start:end] or [f"[{nothing}]"]
        if end < len(lines):
            shown.append(f"[{len(lines) - end} more; continue with cursor={end}]")
        return ToolOutput(output="\n".join(shown))


# ---- commands ------------------------------------------------------------------------------------------------


async def _status(call: _Call) -> ToolOutput:
    said = await call.git.ask(
        "status", "--porcelain=v1", "-z", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty",
        "--", call.pathspec(call.path()),
    )  # fmt: skip
    head, *changes = status_lines(said.output, call.git.repository.place)
    answer = call.listed(changes, "no change")
    return ToolOutput(output=f"{head}\n{answer.output}")


async def _log(call: _Call) -> ToolOutput:
    skip: int = call.args.get("cursor", 0)
    limit: int = call.args.get("limit", LOG_LIMIT)
    if skip + limit > MAX_SCANNED:
        raise ToolRefusal(f"only the newest {MAX_SCANNED} commits can be paged through; narrow it with ref or path")
    if "ref" not in call.args and await call.git.commit("HEAD") is None:
        return ToolOutput(output="[no commit yet]")
    revisions = "".join(await call.range(call.args.get("ref", "HEAD")))
    lines = await call.git.lines(
        "log", "--no-show-signature", "--encoding=UTF-8", _COMMIT, f"--skip={skip}", f"--max-count={limit + 1}",
        revisions, "--", call.pathspec(call.path()),
    )  # fmt: skip
    shown = [commit_line(line) for line in lines[:limit]] or ["[no commit]"]
    if len(lines) > limit:
        shown.append(f"[more commits follow; continue with cursor={skip + limit}]")
    return ToolOutput(output="\n".join(shown))


async def _diff(call: _Call) -> ToolOutput:
    ref, target = call.args.get("ref"), call.args.get("target")
    if ref is None and target is None and await call.git.commit("HEAD") is None:
        revisions = ["--cached"]  # before the first commit: what it would have
    else:
        revisions = await call.range(ref or "HEAD")
        if target is not None and len(revisions) > 1:
            raise ToolRefusal("give either a range as ref, or ref and target")
        if target is not None:
            revisions.append(await call.commit(target))
        elif len(revisions) > 1:
            first, dots, second = revisions
            revisions = [first, second] if dots == ".." else ["".join(revisions)]
    answer = await call.patch("diff", *_PATCH, *revisions)
    return answer if answer.output else ToolOutput(output="[no difference]")


async def _show(call: _Call) -> ToolOutput:
    name, is_file, path = call.args.get("ref", "HEAD").partition(":")
    commit = await call.commit(name or "HEAD")
    if is_file:
        return await _file_as_it_was(call, name or "HEAD", commit, path)
    head = ("show", "--no-show-signature", "--encoding=UTF-8", "--format=commit %H%nAuthor: %an <%ae>%nDate: %aI%n%n%B")
    answer = await call.patch(*head, *_PATCH, "-m", "--first-parent", commit)
    if "byte_offset" in call.args or answer.output.startswith("commit "):
        return answer
    words = await call.page(*head, "--no-patch", commit)  # git is silent on a commit without a change to show
    return msgspec.structs.replace(answer, output="\n".join(filter(None, (words, answer.output))))


async def _file_as_it_was(call: _Call, name: str, commit: str, path: str) -> ToolOutput:
    if "path" in call.args:
        raise ToolRefusal("give the file in ref or in path, not in both")
    place = call.inside(path) if path else None
    if place is None:
        raise ToolRefusal("ref:path needs the path of a file; use log or diff with path for a folder")
    call.refuse_unreadable(place)
    entry = await call.git.ask("ls-tree", "-z", "--full-tree", commit, "--", call.pathspec(place))
    if entry.output.split(b" ")[1:2] != [b"blob"]:
        raise ToolRefusal(f"{printable(place)} is no file of {printable(name)}")
    blob = f"{commit}:{call.in_tree(place)}"
    if b"\0" in (await call.git.ask("cat-file", "blob", blob, most_bytes=8_192)).output:
        raise ToolRefusal(f"{printable(place)} is a binary file; only text can be shown")
    page = await call.page("cat-file", "blob", blob)
    return ToolOutput(output=page or "[the file is empty]", source_anchors=(printable(place),))


async def _blame(call: _Call) -> ToolOutput:
    path = call.path()
    if path is None:
        raise ToolRefusal("blame needs the path of a file")
    call.refuse_unreadable(path)
    start: int = call.args.get("cursor", 0)
    limit: int = call.args.get("limit", LIST_LIMIT)
    revisions = await call.range(call.args["ref"]) if "ref" in call.args else []
    lines = await call.git.lines(
        "blame", "--no-textconv", "--date=short", f"-L{start + 1},+{limit + 1}", *filter(None, ["".join(revisions)]),
        "--", path,
    )  # fmt: skip
    shown = [text_of(line.encode()) for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"[more lines follow; continue with cursor={start + limit}]")
    return ToolOutput(output="\n".join(shown), source_anchors=(printable(path),))


async def _branch(call: _Call) -> ToolOutput:
    form = "%(HEAD) %(refname:short)%00%(objectname:short)%00%(committerdate:short)%00%(upstream:short)%00%(subject)"
    lines = await call.git.lines(
        "for-each-ref", "--sort=-committerdate", f"--format={form}", "refs/heads", "refs/remotes"
    )
    return call.listed([commit_line(line) for line in lines], "no branch")


async def _tag(call: _Call) -> ToolOutput:
    form = "%(refname:short)%00%(objectname:short)%00%(creatordate:short)%00%(subject)"
    lines = await call.git.lines("for-each-ref", "--sort=-creatordate", f"--format={form}", "refs/tags")
    return call.listed([commit_line(line) for line in lines], "no tag")


async def _stash(call: _Call) -> ToolOutput:
    if await call.git.commit("refs/stash") is None:
        return ToolOutput(output="[nothing is stashed]")
    lines = await call.git.lines("log", "--walk-reflogs", "--no-show-signature", "--format=%gd%x00%gs", "refs/stash")
    return call.listed([commit_line(line) for line in lines], "nothing is stashed")


async def _remote(call: _Call) -> ToolOutput:
    # Not what it includes: that may be the configuration of another repository.
    said = await call.git.ask("config", "--list", "--no-includes", "-z")
    return call.listed(remote_lines(said.output), "no remote")


_Answer = Callable[[_Call], Awaitable[ToolOutput]]
_PAGES = frozenset({"byte_offset", "max_bytes"})
_LISTS = frozenset({"limit", "cursor"})
_COMMANDS: dict[str, tuple[_Answer, frozenset[str]]] = {
    "status": (_status, _LISTS | {"path"}),
    "log": (_log, _LISTS | {"path", "ref"}),
    "diff": (_diff, _PAGES | {"path", "ref", "target"}),
    "show": (_show, _PAGES | {"path", "ref"}),
    "blame": (_blame, _LISTS | {"path", "ref"}),
    "branch": (_branch, _LISTS),
    "tag": (_tag, _LISTS),
    "stash": (_stash, _LISTS),
    "remote": (_remote, _LISTS),
}


def _answer_to(command: str, args: JsonObject) -> _Answer:
    if os.name != "posix":
        raise ToolRefusal("git is refused: it needs a POSIX system")
    if command in _CHANGING:
        raise ToolRefusal(f"git {command} is refused: this tool only reads; use bash for what changes something")
    if command not in _COMMANDS:
        raise ToolRefusal(f"Unknown command: {printable(command[:100])}; there are {', '.join(_COMMANDS)}")
    answer, taken = _COMMANDS[command]
    if surplus := sorted(args.keys() - taken - {"command"}):
        raise ToolRefusal(f"git {command} takes no {surplus[0]}; it takes {', '.join(sorted(taken))}")
    return answer
