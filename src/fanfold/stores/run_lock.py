"""Who runs a workflow run: the lock on its lock file, which dies with its process, and nothing that is written there.

Nobody can ask for a lock without trying to take it. So whoever only looks has it for a moment, and whoever wants it
waits longer than a look takes before it believes that somebody has it.
"""

import os
import time
from pathlib import Path

from fanfold.errors import AlreadyActiveError, StoreConflictError
from fanfold.stores.directory import make_directory
from fanfold.stores.file_lock import holder_name, try_lock, unlock
from fanfold.stores.line_file import LineFile, refused
from fanfold.stores.run_place import RunPlace, run_not_found
from fanfold.stores.run_request import Requests

_FLAGS = ("O_NOFOLLOW", "O_BINARY", "O_CLOEXEC", "O_NONBLOCK")  # the last: a pipe in place of a file keeps nobody
_LOOK: int = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in _FLAGS)
_CREATE: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL | sum(getattr(os, flag, 0) for flag in _FLAGS)
_TRIES = 25
_POLL_SECONDS = 0.002


def lock_new(place: RunPlace) -> tuple[LineFile, Requests]:
    """The lock of a run that has nothing yet, and now has an empty journal. Blocking.

    Raises:
        StoreConflictError: it has files already.
        LogWriteError: the file system refuses.
    """
    make_directory(place.directory)
    requests = Requests(place.request)
    lock = LineFile.try_open(place.lock)
    if lock is None:
        raise _taken(place)
    line = place.run_id.encode() + b"\n"
    is_left = lock.size == len(line) and lock.read(0, lock.size) == line  # by one that died before it had a journal
    if (lock.size and not is_left) or place.is_taken():
        lock.close()
        raise _taken(place)
    try:
        if not is_left:
            lock.write(line)
            lock.keep(len(line))
        create_empty(place.journal)
    except BaseException:
        try:
            lock.size = 0
            lock.take_back()
        finally:
            lock.close()  # which removes it when it is empty
        raise
    return lock, requests


def lock_known(place: RunPlace) -> tuple[LineFile, Requests]:
    """The lock of a run that there is; its files stay as they are. Blocking, for a moment also while somebody has it.

    Raises:
        WorkflowInputError: `run_not_found`.
        AlreadyActiveError: somebody has it.
        LogWriteError: the file system refuses.
    """
    if not place.is_run():
        raise run_not_found(place.run_id)
    for _ in range(_TRIES):
        requests = Requests(place.request)  # before the lock: whoever sees that the run is held may ask at once
        lock = LineFile.try_open(place.lock)
        if lock is not None and place.is_run():
            return lock, requests
        if lock is not None:  # it was deleted meanwhile, and the lock is that of nothing
            lock.close()
            raise run_not_found(place.run_id)
        time.sleep(_POLL_SECONDS)  # in a worker thread
    raise AlreadyActiveError(name=f"workflow-run/{place.run_id}", holder=holder_name(place.lock))


def is_locked(place: RunPlace) -> bool:
    """Somebody runs it just now. Creates nothing. Raises LogWriteError."""
    try:
        fd = os.open(place.lock, _LOOK)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(place.lock, error, "read") from error
    try:
        if not try_lock(fd):
            return True
        unlock(fd)
        return False
    except OSError as error:
        raise refused(place.lock, error, "lock") from error
    finally:
        os.close(fd)


def create_empty(path: Path) -> None:
    """Raises LogWriteError, also when there is such a file."""
    try:
        os.close(os.open(path, _CREATE, 0o644))
    except OSError as error:
        raise refused(path, error) from error


def _taken(place: RunPlace) -> StoreConflictError:
    return StoreConflictError(name=place.run_id, expected=0, actual=1)
