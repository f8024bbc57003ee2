"""Values that are too long for a journal: files that are called by the SHA-256 of what they hold, for all runs."""

import hashlib
import os
import re
import time
from pathlib import Path

from fanfold.stores.directory import make_directory
from fanfold.stores.disk_sync import sync_directory
from fanfold.stores.durable_file import read_file, replace_file
from fanfold.stores.line_file import refused
from fanfold.stores.record_file import wait_for_file
from fanfold.stores.run_place import require_no_links

_NAME = re.compile(r"[0-9a-f]{64}")


def put_blob(directory: Path, data: bytes) -> str:
    """The name of `data`, which is durable under it. Blocking. Raises LogWriteError."""
    require_no_links(directory)
    name = hashlib.sha256(data).hexdigest()
    path = directory / name
    make_directory(directory)
    lock = wait_for_file(path.with_name(name + ".lock"))  # runs that have the same result may end at the same time
    try:
        if read_file(path) != data:
            replace_file(path, data)
        else:
            _touch(path)
            sync_directory(directory)  # who wrote it may have been killed before this
    except OSError as error:
        raise refused(path, error) from error
    finally:
        lock.close()
    return name


def _touch(path: Path) -> None:
    """Give it another stamp: who sweeps is to see that it was put once more."""
    now, before = time.time_ns(), path.stat().st_mtime_ns
    later = max(now, before + 1)
    os.utime(path, ns=(later, later))


def read_blob(directory: Path, name: str) -> bytes | None:
    """None when there is none, when its bytes are not those of its name, and for what is no such name. Blocking."""
    if not _NAME.fullmatch(name):
        return None
    require_no_links(directory)
    data = read_file(directory / name)
    return data if data is not None and hashlib.sha256(data).hexdigest() == name else None
