"""The `git` program on a repository that is not trusted: it runs nothing that the repository names.

A repository's configuration can name programs for nearly everything. Those that reading can reach are switched off one
by one, its filters by their names; where there is a sandbox git also runs in it, with nothing that it could write
but what its caller names.
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fanfold.tools.git_repository import Repository
from fanfold.tools.process_group import run_group
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.sandbox import sandbox_fault, sandboxed

MOST_BYTES = 8 * 1024 * 1024
"""Of an output that is worked on as a whole, such as a list of names."""
MOST_ERROR_BYTES = 2_000
MOST_FILTERS = 100
MOST_MEMORY_KIB = 4 * 1024 * 1024
"""Of git: a few bytes of a pack can stand for more than a machine has. Where the system can limit it."""
_LIMITED = ("/bin/sh", "-c", f'ulimit -v {MOST_MEMORY_KIB} 2>/dev/null; exec "$@"', "sh")
_NEVER_MS = 3_600_000
"""The callers have a timeout over all that they ask."""
_ENVIRONMENT = {
    "LC_ALL": "C",
    "HOME": os.devnull,  # no settings of the user's either: the answer is the same on each machine
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    # What is missing in a partial clone would be fetched, through a transport that may be any program.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
_SETTINGS = (
    "core.fsmonitor=",
    f"core.hooksPath={os.devnull}",
    "core.sshCommand=false",
    "core.bigFileThreshold=16m",
    "core.packedGitWindowSize=32m",  # of a pack at a time in memory, which is limited
    "core.packedGitLimit=512m",
    "core.quotePath=false",
    "protocol.allow=never",
    "log.showSignature=false",
    "log.mailmap=false",
    "gpg.program=false",
    "color.ui=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.suppressBlankEmpty=false",
    f"diff.orderFile={os.devnull}",
    # Files that git would read to their end, though they are devices.
    f"core.attributesFile={os.devnull}",
    f"mailmap.file={os.devnull}",
    "mailmap.blob=",
    "blame.ignoreRevsFile=",
    "submodule.recurse=false",
    "gc.auto=0",
)
_FILTER = re.compile(r"(?s)(filter\..+)\.(?:clean|smudge|process|required)")


class Said(msgspec.Struct, frozen=True):
    output: bytes
    is_cut: bool
    """It went on; git was ended there."""


class Git(msgspec.Struct, frozen=True):
    """Runs in its own process group, which ends with each call, however that ends."""

    program: str
    repository: Repository
    bwrap: str
    """Empty: there is no sandbox."""
    settings: tuple[str, ...] = _SETTINGS
    writable: tuple[Path, ...] = ()
    """What it may change, in the sandbox."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of its environment, beside those that it always has."""

    async def ask(self, *arguments: str, most_bytes: int = MOST_BYTES) -> Said:
        """What `git <arguments>` prints, at most `most_bytes` of it.

        Raises:
            ToolRefusal: it failed; the text has git's own words.
        """
        code, said, words = await self._run(arguments, most_bytes)
        if code != 0 and not said.is_cut:
            raise ToolRefusal(f"git {arguments[0]} failed: {words or f'exit code {code}'}")
        return said

    async def lines(self, *arguments: str) -> list[str]:
        text = (await self.ask(*arguments)).output.decode("utf-8", "replace").removesuffix("\n")
        return text.split("\n") if text else []  # `splitlines` would also part at what a line may hold

    async def names(self, *arguments: str) -> list[str]:
        """The paths that `git <arguments>` gives with `-z`, as Python knows file names."""
        said = await self.ask(*arguments)
        if said.is_cut:
            raise ToolRefusal("too many files are concerned; narrow it with path")
        return [os.fsdecode(name) for name in said.output.split(b"\0") if name]

    async def commit(self, name: str) -> str | None:
        """The full hash of the commit that `name` stands for, None where there is none such."""
        # With a colon it could mean a file, whatever it is peeled to.
        if not name or name.startswith("-") or ":" in name or not name.isprintable():
            return None
        code, said, _ = await self._run(("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"), 1_000)
        return said.output.decode("ascii", "replace").strip() if code == 0 else None

    async def _run(self, arguments: Sequence[str], most_bytes: int) -> tuple[int, Said, str]:
        heard = bytearray()
        code: int | None = 0
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as errors:
            environment = await asyncio.to_thread(self._environment, arguments[0], Path(scratch))
            try:
                async with asyncio.timeout(None) as limit:

                    def hear(piece: bytes) -> None:
                        if len(heard) <= most_bytes:
                            heard.extend(piece[: most_bytes + 1 - len(heard)])
                            if len(heard) > most_bytes:
                                limit.reschedule(0)  # that is enough: end it

                    code = await run_group(
                        self._command(arguments),
                        folder=self.repository.root,
                        environment=environment,
                        timeout_ms=_NEVER_MS,
                        hear=hear,
                        errors=errors,
                    )
            except TimeoutError:
                pass  # our own; the rest of the output is not wanted
            errors.seek(0)
            words = errors.read(MOST_ERROR_BYTES).decode("utf-8", "replace").strip()
        is_cut = len(heard) > most_bytes
        return 1 if code is None else code, Said(bytes(heard[:most_bytes]), is_cut), words

    def _command(self, arguments: Sequence[str]) -> list[str]:
        settings = [word for setting in self.settings for word in ("-c", setting)]
        command = [*_LIMITED, self.program, "--no-pager", *settings, *arguments]
        if not self.bwrap:
            return command
        at = self.repository
        home = Path(os.path.expanduser("~"))
        return sandboxed(
            at.root,
            command,
            home=home,
            guarded=(at.root, at.top, at.git_dir, at.common_dir),
            writable=self.writable,
            bwrap=self.bwrap,
        )

    def _environment(self, command: str, scratch: Path) -> Mapping[str, str]:
        at = self.repository
        own_index: dict[str, str] = {}
        if command == "diff" and not self.bwrap:
            # It would refresh the index that it compares with, whatever is said of locks. The copy keeps the time of
            # the index: what was changed in the same second as that is looked into, and else it would not be.
            try:
                own_index["GIT_INDEX_FILE"] = str(shutil.copy2(at.git_dir / "index", scratch / "index"))
            except FileNotFoundError:
                pass  # nothing was ever added
        return {
            **own_index,
            **_ENVIRONMENT,
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_DIR": str(at.git_dir),
            "GIT_WORK_TREE": str(at.top),  # whatever core.worktree says
            **dict(self.variables),
        }


async def open_git(repository: Repository, *, program: str, bwrap: str) -> Git:
    """git for `repository`, its filters switched off: they would run for each file that looks changed."""
    found = shutil.which(program)
    if found is None:
        raise ToolRefusal(
            f"Git is not available for this workspace backend: there is no program '{program}' on the PATH; install git"
        )
    fault = await asyncio.to_thread(sandbox_fault, bwrap)
    git = Git(found, repository, "" if fault else bwrap)
    names = await git.names("config", "--list", "--name-only", "-z")
    filters = {match[1] for name in names if (match := _FILTER.fullmatch(name))}
    if len(filters) > MOST_FILTERS or any("=" in name for name in filters):
        raise ToolRefusal("git is refused: the repository's configuration has filters that cannot be switched off")
    parts = ("clean=", "smudge=", "process=", "required=false")
    return Git(found, repository, git.bwrap, (*_SETTINGS, *(f"{name}.{part}" for name in filters for part in parts)))
