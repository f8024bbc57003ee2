"""After a power failure: bring every thread's file up to what the commit journals promised."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from fanfold.stores.commit_journal import FOLDER, SUFFIX, RedoEntry, read_batches, sync_file, wait_for_recovery_lock
from fanfold.stores.directory import refuse_links
from fanfold.stores.line_file import LineFile, refused


def recover(directory: Path) -> None:
    """Bring every thread's file up to what ownerless journals say, and remove those journals.

    Blocking. A file's own bytes win over a journal's: missing bytes (or a run of NULs, which some file systems leave
    after a power failure) are filled in, but a file that says anything else than its journal was replaced or repaired
    since, and is left alone.

    Raises:
        UsageError: a directory of ours is a symbolic link.
        LogWriteError: the file system refuses.
    """
    refuse_links(directory, FOLDER)
    folder = directory / FOLDER
    if not folder.is_dir():
        return
    lock = wait_for_recovery_lock(folder)
    try:
        _recover_in(directory, folder)
    except OSError as error:
        raise refused(directory, error) from error
    finally:
        lock.close()


def _recover_in(directory: Path, folder: Path) -> None:
    paths = [path for path in folder.iterdir() if path.suffix == SUFFIX]
    journals = [journal for path in paths if (journal := LineFile.try_open(path)) is not None]
    try:
        entries = [entry for journal in journals for entry in read_batches(journal.read(0, journal.size))]
        is_done = _redo_all(directory, entries)
    finally:
        for journal in journals:
            journal.close()
    if is_done:
        for journal in journals:
            journal.path.unlink(missing_ok=True)


def _redo_all(directory: Path, entries: list[RedoEntry]) -> bool:
    entries.sort(key=lambda entry: (entry.name, entry.offset))
    entries = [entry for entry in entries if os.path.basename(entry.name) == entry.name]  # never out of the directory
    groups = itertools.groupby(entries, key=lambda entry: entry.name)
    done = [_redo(directory / name, list(group)) for name, group in groups]
    return all(done)


def _redo(path: Path, entries: Sequence[RedoEntry]) -> bool:
    """Bring one file up to its entries, which are in order, and sync it; False while somebody else holds it."""
    try:
        inode = path.lstat().st_ino
    except FileNotFoundError:
        return True
    entries = [entry for entry in entries if entry.inode == inode]
    if not entries:
        return True
    if _lacks(path, entries):
        file = LineFile.try_open(path)
        if file is None:
            return False
        try:
            _fill(file, entries)
        finally:
            file.close()
    sync_file(path)
    return True


def _lacks(path: Path, entries: Sequence[RedoEntry]) -> bool:
    """True when bytes of `entries` are missing from the file, and all that is there agrees with them."""
    is_lacking = False
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for entry in entries:
            file.seek(entry.offset)
            found = file.read(len(entry.data))
            if entry.is_lost_in(found):
                is_lacking = is_lacking or entry.offset <= size
            elif found != entry.data:
                return False
    return is_lacking


def _fill(file: LineFile, entries: Sequence[RedoEntry]) -> None:
    for entry in entries:
        found = file.read(entry.offset, min(file.size, entry.offset + len(entry.data)))
        if entry.offset <= file.size and entry.is_lost_in(found):
            # What stands behind lost bytes was not synced itself: it is in a later entry, or was never reported.
            file.size = entry.offset
            file.take_back()
            file.write(entry.data)
            file.keep(len(entry.data))
