"""Which runs lie in a folder."""

import os
from pathlib import Path

from fanfold.kernel.workflow_meta import is_run_id
from fanfold.stores.line_file import refused
from fanfold.stores.run_place import JOURNAL, SNAPSHOT, lock_name


def run_ids_in(directory: Path) -> list[str]:
    """Newest first, as far as the file system tells. Blocking. Raises LogWriteError."""
    times: dict[str, int] = {}
    try:
        with os.scandir(directory) as entries:
            times = {
                each.name: each.stat(follow_symlinks=False).st_mtime_ns
                for each in entries
                if each.is_file(follow_symlinks=False)
            }
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(directory, error, "read") from error

    def created(run_id: str) -> tuple[int, str]:
        """A lock is written when its run is created, and never again."""
        names = (lock_name(run_id), run_id + SNAPSHOT, run_id + JOURNAL)
        return next(times[name] for name in names if name in times), run_id

    ids = {name.removesuffix(suffix) for name in times for suffix in (SNAPSHOT, JOURNAL) if name.endswith(suffix)}
    return sorted(filter(is_run_id, ids), key=created, reverse=True)
