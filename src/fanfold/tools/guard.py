"""Guard: what a command must not change, found before it runs; and what it made under such names, put aside after it.

A mount keeps an entry of a folder as it is, but not the way to it: folders above can be moved, and made anew. So an
entry counts as known by its name and the identity of the folder that holds it, which its mount keeps in existence.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import Workspace, is_protected

MAX_FOLDERS = 100_000
"""That are looked into before a command; it takes about a second."""
MAX_GUARDED = 500
"""Mounts; bubblewrap's time grows with their square."""

_Place = tuple[int, int, str]
"""Device and inode of a folder, and a name in it."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Blocking, as all of this module."""

    workspace: Workspace
    paths: tuple[Path, ...]
    """Every protected name that was there, at any depth."""
    places: frozenset[_Place]

    def set_aside(self) -> list[str]:
        """A line for each protected name that is there now and was not; renamed, for others would obey it later."""
        notes: list[str] = []
        for path in _protected(self.workspace.root):
            shown = self.workspace.shown(path)
            try:
                if _place(path) not in self.places:
                    notes.append(f"[{shown} is protected; what the command made is in {_renamed(path).name}]")
            except OSError as error:
                notes.append(f"[{shown} is protected, but could not be put aside: {error.strerror}; remove it]")
        return notes


def guard(workspace: Workspace, most_folders: int = MAX_FOLDERS) -> Guard:
    """Raises ToolRefusal where not all that is protected can be kept so."""
    paths = tuple(_protected(workspace.root, most_folders))
    for path in filter(Path.is_symlink, paths):
        raise ToolRefusal(
            f"bash is refused: {workspace.shown(path)} is a link, which no mount can guard; put its target there"
        )
    if len(paths) > MAX_GUARDED:
        raise _too_much(f"{MAX_GUARDED} names that are protected (.git, agent.acl, ...)")
    return Guard(workspace, paths, frozenset(map(_place, paths)))


def _protected(root: Path, most_folders: int | None = None) -> Iterator[Path]:
    """Without following links, and without looking into what is protected itself."""
    folders = [str(root)]
    seen = 0
    while folders:
        seen += 1
        if most_folders is not None and seen > most_folders:
            raise _too_much(f"{most_folders} folders")
        for entry in _entries(folders.pop()):
            if is_protected(entry.name):
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        _ensure(folder, os.R_OK | os.X_OK)
        with os.scandir(folder) as scan:
            return list(scan)
    except OSError:  # gone, or somebody else's: a command cannot have made anything in it
        return []


def _ensure(folder: str | Path, rights: int) -> None:
    """Else a command could hide what it made, or keep it there, by taking rights away."""
    if not os.access(folder, rights):
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | stat.S_IRWXU)


def _place(path: Path) -> _Place:
    folder = os.stat(path.parent)
    return folder.st_dev, folder.st_ino, path.name


def _renamed(path: Path) -> Path:
    _ensure(path.parent, os.W_OK | os.X_OK)
    names = (f"{path.name}.unapproved{f'-{number}' if number > 1 else ''}" for number in count(1))
    return path.rename(next(free for name in names if not os.path.lexists(free := path.with_name(name))))


def _too_much(what: str) -> ToolRefusal:
    return ToolRefusal(f"bash is refused: the workspace has more than {what}; open the session on a folder in it")
