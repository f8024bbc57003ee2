"""Workflow scripts of a project, `.a3s/workflows/*.py`, and which of them a person has approved.

An approval is of one text at one place. It is kept with the user's own state, `$XDG_STATE_HOME/fanfold` (else
`~/.local/state/fanfold`), and not in the project: what comes with a repository cannot vouch for itself.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fanfold.errors import ConfigError

DIRECTORY = Path(".a3s") / "workflows"
MAX_BYTES = 1_048_576


class WorkflowFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    text: str | None = None
    problem: str | None = None
    """Why it has no text."""


class WorkflowFolder:
    """Of one workspace. It is looked at anew each time; what has not changed is not read again."""

    def __init__(self, workspace: Path, environ: Mapping[str, str]) -> None:
        self._directory = workspace / DIRECTORY
        self._ours = (workspace / DIRECTORY.parent, self._directory)
        self._environ = environ
        self._seen: object = None
        self._files: tuple[WorkflowFile, ...] = ()

    def files(self) -> Sequence[WorkflowFile]:
        """Sorted by path. The same object as before for as long as nothing has changed."""
        found = self._look()
        if found != self._seen:
            self._files = tuple(_read(Path(path)) for path, *_ in found)
            self._seen = found
        return self._files

    def _look(self) -> list[tuple[str, int, int, int]]:
        try:
            if any(each.is_symlink() for each in self._ours):
                raise ConfigError(f"{self._directory} is reached through a symbolic link; make it a directory")
            with os.scandir(self._directory) as entries:
                found = [
                    (entry.path, status.st_ino, status.st_size, status.st_mtime_ns)
                    for entry in entries
                    if entry.name.endswith(".py") and not entry.name.startswith((".", "_"))
                    for status in (entry.stat(follow_symlinks=False),)
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{self._directory} cannot be read: {error.strerror or error}") from error
        return sorted(found)

    def is_approved(self, path: str, sha256: str) -> bool:
        return self._mark(path, sha256).is_file()

    def approve(self, path: str, sha256: str) -> None:
        """Raises ConfigError: it cannot be remembered."""
        mark = self._mark(path, sha256)
        try:
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.write_text(f"{os.path.realpath(path)}\n", encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise ConfigError(f"the approval cannot be kept in {mark.parent}: {error.strerror or error}") from error

    def _mark(self, path: str, sha256: str) -> Path:
        state = self._environ.get("XDG_STATE_HOME", "")
        home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
        place = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
        return home / "fanfold" / "approved-workflows" / f"{place}-{sha256}"


def _read(path: Path) -> WorkflowFile:
    name = str(path)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return WorkflowFile(path=name, problem="it is not a regular file")
        if status.st_size > MAX_BYTES:
            return WorkflowFile(path=name, problem=f"it is larger than {MAX_BYTES} bytes")
        return WorkflowFile(path=name, text=path.read_text(encoding="utf-8"))
    except OSError as error:
        return WorkflowFile(path=name, problem=f"it cannot be read: {error.strerror or error}")
    except UnicodeDecodeError as error:
        return WorkflowFile(path=name, problem=f"it is not UTF-8: {error}")
