"""Where the repository of a workspace lies, and whether it is its own.

A repository is data like any other: it may come from an archive that somebody sent. So a `.git` that leads elsewhere
counts only if that place names this work tree in return, as linked work trees and submodules do; else a few bytes in
a folder would open any other repository of the machine.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import OPEN_FLAGS

_MOST_BYTES = 65_536
"""Of the small files that are read here."""
_PARTS = ("HEAD", "config", "config.worktree", "index", "packed-refs", "shallow")
_FOLDERS = ("objects", "objects/info", "objects/pack")
"""Whose entries are looked at. Single objects lie deeper, but none is found by somebody who does not know it."""
_TREES = ("refs", "logs")
"""Of which all is looked at."""
_RULES = ("attributes", "exclude", "grafts", "sparse-checkout")
"""In `info`: nothing is shown of them, so they may lie elsewhere."""
_WORK_TREE = re.compile(r"^\s*worktree\s*=\s*(.+?)\s*$", re.MULTILINE)


class Repository(msgspec.Struct, frozen=True):
    root: Path
    """The workspace: nothing above it is shown."""
    top: Path
    """The work tree's own root, where the workspace is a folder of a larger repository."""
    git_dir: Path
    common_dir: Path
    """Where the objects are; another folder than `git_dir` in a linked work tree."""

    @property
    def place(self) -> str:
        """The workspace within the work tree, `` where it is all of it."""
        place = self.root.relative_to(self.top).as_posix()
        return "" if place == "." else place


def find_repository(root: Path) -> Repository:
    """The repository that holds the folder `root`.

    Raises:
        ToolRefusal: `Not a git repository: <root>`
    """
    for top in (root, *root.parents):
        entry = top / ".git"
        if entry.is_dir():
            git_dir, is_own = Path(os.path.realpath(entry)), True
        elif entry.is_file():
            git_dir, is_own = _named_by(entry), False
        else:
            continue
        if os.path.lexists(git_dir / "HEAD"):
            return _checked(Repository(root, top, git_dir, _common_dir(git_dir)), entry, is_folder=is_own)
    raise ToolRefusal(f"Not a git repository: {root}")


def linked_git_dir(common_dir: Path, top: Path) -> Path | None:
    """What the repository has for the linked work tree at `top`, whatever is in there; None when it knows none."""
    for git_dir in _entries(common_dir / "worktrees"):
        if _names_back(git_dir, top / ".git"):
            return git_dir
    return None


def _checked(repository: Repository, entry: Path, *, is_folder: bool) -> Repository:
    top, git_dir, common_dir = repository.top, repository.git_dir, repository.common_dir
    is_linked = not is_folder and _names_back(git_dir, entry)
    allowed = (top, git_dir, common_dir) if is_linked else (top,)
    for part in _parts_of({git_dir, common_dir}):
        place = Path(os.path.realpath(part))
        if not any(map(place.is_relative_to, allowed)):
            raise ToolRefusal(
                f"Not a git repository: {repository.root} (its .git leads to {place}, which is another place)"
            )
        _refuse_device(repository, place)
    for folder in {git_dir, common_dir}:
        for name in _RULES:
            _refuse_device(repository, folder / "info" / name)
    if _text(common_dir / "objects/info/alternates"):
        raise ToolRefusal(
            f"git is refused: the repository of {repository.root} borrows objects from another one "
            "(objects/info/alternates); to have its own: git repack -a -d && rm .git/objects/info/alternates"
        )
    return repository


def _refuse_device(repository: Repository, place: Path) -> None:
    """git would read it for ever, or wait for it."""
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise ToolRefusal(f"Not a git repository: {repository.root} ({place} is no regular file)")


def _names_back(git_dir: Path, entry: Path) -> bool:
    """A linked work tree has the path of its `.git` in `gitdir`, a submodule that of its folder in its `config`."""
    if back := _text(git_dir / "gitdir"):
        return os.path.realpath(git_dir / back) == str(entry)
    found = _WORK_TREE.search(_text(git_dir / "config"))
    return found is not None and os.path.realpath(git_dir / found[1]) == str(entry.parent)


def _named_by(entry: Path) -> Path:
    found = re.fullmatch(r"gitdir: ([^\0\n]+)", _text(entry))
    return Path(os.path.realpath(entry.parent / found[1])) if found else entry


def _common_dir(git_dir: Path) -> Path:
    named = _text(git_dir / "commondir")
    return Path(os.path.realpath(git_dir / named)) if named else git_dir


def _parts_of(folders: Iterable[Path]) -> Iterable[Path]:
    """All that git reads, and that could lie elsewhere or be something else than a file."""
    for folder in folders:
        yield from (folder / name for name in _PARTS)
        for name in _FOLDERS:
            yield folder / name
            yield from _entries(folder / name)
        for name in _TREES:
            yield folder / name
            for parent, folders_in, files in os.walk(folder / name):
                yield from (Path(parent, entry) for entry in (*folders_in, *files))


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _text(path: Path) -> str:
    """Of a small file, `` where there is none."""
    try:
        # It may be anything, and opening a pipe must not wait for a writer.
        with open(path, "rb", opener=lambda name, _: os.open(name, OPEN_FLAGS)) as file:
            return os.fsdecode(file.read(_MOST_BYTES)).strip().replace("\0", "")
    except OSError:
        return ""
