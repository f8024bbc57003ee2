"""Workspace: the one folder that tools may touch; paths are resolved, and checked again once open."""

import os
import secrets
import stat
import threading
from pathlib import Path
from typing import BinaryIO

from fanfold.errors import UsageError
from fanfold.tools.refusal import ToolRefusal

MAX_PATH_BYTES = 4_096
MAX_NAME_BYTES = 255
MAX_FILE_BYTES = 16 * 1024 * 1024
"""Of a file that tools take or leave as a whole; reading by lines has no such limit."""
PROTECTED_NAMES = frozenset({".git", ".a3s", "agent.acl", "agent.toml"})
"""They steer git and fanfold outside of any sandbox, or are their records: only to be read, at any depth."""
WORKTREES = Path(".a3s") / "worktrees"
"""Where steps work that have a git worktree of their own, see `worktree.py`."""

OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_OPEN_ATTEMPTS = 16
_REPLACING = threading.Lock()
"""Held from the last look at a file to its replacement: within one process compare-and-swap is exact."""


class Workspace:
    """Resolves, opens and replaces files under `root`; nothing outside of it can be reached.

    Args:
        records: the workspace that keeps what is fanfold's own, long outputs for example, when that is another one:
            for a worktree, which goes, the one that stays.

    Raises:
        UsageError: `root` is no folder.
    """

    def __init__(self, root: Path, records: "Workspace | None" = None) -> None:
        self._records = records
        try:
            self.root = Path(root).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:  # gone or unreadable, links in a circle, a NUL
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise UsageError(f"workspace '{root}' cannot be used: {reason}; create it or name another") from error
        if not self.root.is_dir():
            raise UsageError(f"workspace '{root}' is not a folder; name the folder that the agent shall work in")

    @property
    def records(self) -> "Workspace":
        return self if self._records is None else self._records

    def resolve(self, path: str) -> Path:
        """The real place of `path` (relative to the root, or absolute inside it), whether or not it exists.

        Raises:
            ToolRefusal: it leads out of the root, also through a link, or is no usable path, or leads into the worktree
                of a step: there a file has another path than the one that the rules about it know.
        """
        fault = _fault(path)
        if fault is None:
            real = Path(os.path.realpath(self.root / path))
            if not real.is_relative_to(self.root):
                fault = "it leads out of the root"
            elif real.is_relative_to(self.root / WORKTREES):
                fault = "it belongs to a step that works by itself"
            else:
                return real
        raise ToolRefusal(f"Failed to resolve path: {_excerpt(path)} escapes workspace ({fault})")

    def shown(self, path: Path) -> str:
        """`path` relative to the root, with `/`, safe to print."""
        return printable(path.relative_to(self.root).as_posix())

    def canonical(self, path: str) -> str:
        """The workspace-relative path that `path` really leads to, for the permission gate; `path` itself
        where `resolve` refuses it."""
        try:
            return self.shown(self.resolve(path))
        except ToolRefusal:
            return path

    def refuse_protected(self, path: Path) -> None:
        if any(map(is_protected, path.relative_to(self.root).parts)):
            raise ToolRefusal(f"{self.shown(path)} is protected: it is for people to change, not for tools")

    def open_file(self, path: Path) -> BinaryIO:
        """The regular file at the resolved `path`.

        What was opened is compared with what `path` means afterwards, so a folder that turned into a link in
        between gives a refusal, not a file from elsewhere. A file that is just being replaced is tried again.
        """
        for _ in range(_OPEN_ATTEMPTS):
            descriptor = os.open(path, OPEN_FLAGS)
            try:
                opened = os.fstat(descriptor)
                self._refuse_irregular(path, opened)
                if _is_at(path, opened):
                    return os.fdopen(descriptor, "rb")
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise self._moved(path)

    def refuse_size(self, path: Path, size: int) -> None:
        if size > MAX_FILE_BYTES:
            raise ToolRefusal(f"{self.shown(path)} would have {size} bytes; the limit is {MAX_FILE_BYTES}")

    def replace(self, path: Path, content: bytes, expected: bytes | None = None) -> None:
        """Put `content` at the resolved `path`, all or nothing, keeping the mode of the file it replaces.

        Refuses more than `MAX_FILE_BYTES`, and what is there if it is no regular file.

        Args:
            expected: what the file must still hold, else nothing is changed. Exact against other tools of this
                process; another process could write in the microseconds between the look and the rename.
        """
        self.refuse_size(path, len(content))
        if path.exists():
            self._refuse_irregular(path, path.stat())
            if not os.access(path, os.W_OK):
                raise ToolRefusal(f"{self.shown(path)} is write-protected")
        # The random name also guards the rename: a folder that was swapped for a link has no such file.
        draft = path.with_name(f".{secrets.token_hex(8)}.fanfold")
        descriptor = os.open(draft, _CREATE_FLAGS, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if not _is_at(draft, os.fstat(descriptor)):
                    raise self._moved(path)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            if path.exists():
                os.chmod(draft, stat.S_IMODE(path.stat().st_mode))
            with _REPLACING:
                if expected is not None:
                    self._refuse_change(path, expected)
                os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _refuse_change(self, path: Path, expected: bytes) -> None:
        with self.open_file(path) as file:
            if file.read(len(expected) + 1) != expected:
                raise ToolRefusal(f"Concurrent modification detected on {self.shown(path)}: nothing changed; read it")

    def _refuse_irregular(self, path: Path, opened: os.stat_result) -> None:
        if stat.S_ISDIR(opened.st_mode):
            raise ToolRefusal(f"{self.shown(path)} is a directory; use ls to list it")
        if not stat.S_ISREG(opened.st_mode):
            raise ToolRefusal(f"{self.shown(path)} is not a regular file")

    def _moved(self, path: Path) -> ToolRefusal:
        return ToolRefusal(f"{self.shown(path)} escapes workspace (it was moved while being opened)")


def _is_at(path: Path, opened: os.stat_result) -> bool:
    return os.path.realpath(path) == str(path) and os.path.samestat(opened, os.stat(path))


def is_protected(name: str) -> bool:
    return name.casefold() in PROTECTED_NAMES


def printable(name: str) -> str:
    """A file name as one line of valid Unicode; names on disk may hold anything but `/` and NUL."""
    name = name.encode("utf-8", "replace").decode()
    return name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name)


def _fault(path: str) -> str | None:
    if not path:
        return "it is empty"
    if "\0" in path:
        return "it holds a NUL byte"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in encoded.split(b"/")):
        return "it is too long"
    return None


def _excerpt(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "…")
