"""Blobs that no journal names any more: what runs that were removed have left, or a process that was killed.

A blob is put before its name is written, so nobody can tell whether one is needed while somebody holds a run. Whoever
holds one later than that was looked for gives each blob that it puts another stamp, and what has another one stays.
"""

import os
import re
from pathlib import Path

from fanfold.stores.disk_sync import sync_directory
from fanfold.stores.durable_file import read_file
from fanfold.stores.line_file import FileStamp, refused
from fanfold.stores.record_file import wait_for_file
from fanfold.stores.run_listing import run_ids_in
from fanfold.stores.run_lock import is_locked
from fanfold.stores.run_place import RunPlace

_BLOB = re.compile(r"([0-9a-f]{64})(\.tmp)?")
_NAMED = re.compile(rb'"([0-9a-f]{64})"')


def sweep_blobs(directory: Path, blobs: Path) -> int:
    """Remove those in `blobs` that no journal in `directory` names as a JSON string; returns how many bytes they had,
    0 while somebody holds a run. Blocking. Raises LogWriteError."""
    found = _found(blobs)  # before anybody is looked for
    if not found:
        return 0
    named: set[str] = set()
    for run_id in run_ids_in(directory):
        place = RunPlace(directory, run_id)
        if is_locked(place):
            return 0
        named |= {name.decode() for name in _NAMED.findall(read_file(place.journal) or b"")}
    removed = [_remove(blobs / name, stamp) for name, stamp in found.items() if name[:64] not in named]
    try:
        sync_directory(blobs)
    except OSError as error:
        raise refused(blobs, error, "remove") from error
    return sum(removed)


def _found(blobs: Path) -> dict[str, FileStamp]:
    found: dict[str, FileStamp] = {}
    try:
        with os.scandir(blobs) as entries:
            for each in entries:
                if _BLOB.fullmatch(each.name) and (stamp := _stamp(blobs / each.name)) is not None:
                    found[each.name] = stamp
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise refused(blobs, error, "read") from error
    return found


def _stamp(path: Path) -> FileStamp | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _remove(path: Path, stamp: FileStamp) -> int:
    lock = wait_for_file(path.with_name(path.name[:64] + ".lock"))
    try:
        if _stamp(path) != stamp:
            return 0
        path.unlink()
    except OSError as error:
        raise refused(path, error, "remove") from error
    finally:
        lock.close()
    return stamp.size
