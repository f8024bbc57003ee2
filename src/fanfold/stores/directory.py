"""The directories of this room: made so that they last, never reached through a symbolic link, and listed."""

import itertools
import os
import time
from pathlib import Path

from fanfold.errors import LogWriteError, UsageError
from fanfold.stores.disk_sync import sync_directory

_OURS = ".a3s"
"""This directory of a workspace and all below it belong to us. What lies above is the host's to arrange."""

_TICK_NS = 100_000_000


def make_directory(directory: Path) -> None:
    """Create `directory` and its parents so that a power failure cannot take one of them away.

    Raises:
        UsageError: a directory of ours is a symbolic link.
        LogWriteError: the file system refuses.
    """
    refuse_links(directory)
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for each in missing:
            sync_directory(each.parent)
    except OSError as error:
        raise LogWriteError(path=str(directory), reason=error.strerror or str(error)) from error


def refuse_links(directory: Path, *below: str) -> None:
    """Return when neither a directory of ours on the way to `directory` nor one of ours `below` it is a link.

    A workspace is often somebody else's repository: a link in it would make us write wherever it leads.

    Raises:
        UsageError: one is.
    """
    for each in (*_ours_in(directory), *(directory / name for name in below)):
        if each.is_symlink():
            raise UsageError(f"{each} is a symbolic link, which would lead our files elsewhere; make it a directory")


def names_in(directory: Path) -> object:
    """What is equal for as long as no name in `directory` was added, removed or changed; None while that is unsure.

    One look for all its files, where each of them would have to be looked at.
    """
    try:
        status = os.stat(directory)
    except OSError:
        return None
    # Two changes in one tick of the file system's clock leave the same time.
    is_settled = time.time_ns() - status.st_mtime_ns > _TICK_NS
    return (status.st_ino, status.st_mtime_ns) if is_settled else None


def files_in(directory: Path) -> dict[str, os.stat_result]:
    """The regular files in `directory`, by name; none where there is no such directory.

    What vanishes while it is looked at, as the new copy of a file that is being replaced does, is left out by itself:
    taken for the directory, it would make all the others vanish too.

    Raises:
        OSError: the file system refuses.
    """
    try:
        with os.scandir(directory) as entries:
            found = [each for each in entries if each.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return {}
    statuses = ((each.name, _status_of(each)) for each in found)
    return {name: status for name, status in statuses if status is not None}


def _status_of(entry: "os.DirEntry[str]") -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def _ours_in(directory: Path) -> list[Path]:
    found: list[Path] = []
    for each in itertools.chain([directory], directory.parents):
        found.append(each)
        if each.name == _OURS:
            return found
    return []
