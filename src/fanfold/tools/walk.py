"""The files that `search` looks at."""

import os
from pathlib import Path

from fanfold.tools.workspace import WORKTREES

MAX_FILES = 100_000
SKIPPED_FOLDERS = frozenset({".git", ".a3s", "node_modules", "__pycache__"})
SKIP_MARKS = frozenset({"CACHEDIR.TAG", "pyvenv.cfg"})
"""A folder that holds one of these is a tool's cache or a virtual environment."""
_WORKTREES = f"{os.sep}{WORKTREES}"


def walk(base: Path) -> tuple[list[str], bool]:
    """Paths of the regular files below `base`, relative to it, with `/`, sorted; and whether there were too
    many.

    Links are not followed. What is skipped can still be searched by naming it as the base, but not what steps have in
    their worktrees.
    """
    found: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(base / folder) as scan:
                entries = list(scan)
        except OSError:  # unreadable or gone: as if it were empty
            continue
        if folder and not SKIP_MARKS.isdisjoint(entry.name for entry in entries):
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                found.append(folder + entry.name)
            elif entry.is_dir(follow_symlinks=False) and not _is_skipped(entry):
                folders.append(f"{folder}{entry.name}/")
        if len(found) > MAX_FILES:
            return sorted(found[:MAX_FILES]), True
    return sorted(found), False


def _is_skipped(entry: "os.DirEntry[str]") -> bool:
    return entry.name in SKIPPED_FOLDERS or (entry.name == WORKTREES.name and entry.path.endswith(_WORKTREES))
