"""Which runs lie in a folder."""

from pathlib import Path

from fanfold.kernel.workflow_meta import is_run_id
from fanfold.stores.directory import files_in
from fanfold.stores.line_file import refused
from fanfold.stores.run_place import JOURNAL, SNAPSHOT, lock_name


def run_ids_in(directory: Path) -> list[str]:
    """Newest first, as far as the file system tells. Blocking. Raises LogWriteError."""
    try:
        times = {name: status.st_mtime_ns for name, status in files_in(directory).items()}
    except OSError as error:
        raise refused(directory, error, "read") from error

    def created(run_id: str) -> tuple[int, str]:
        """A lock is written when its run is created, and never again."""
        names = (lock_name(run_id), run_id + SNAPSHOT, run_id + JOURNAL)
        return next(times[name] for name in names if name in times), run_id

    ids = {name.removesuffix(suffix) for name in times for suffix in (SNAPSHOT, JOURNAL) if name.endswith(suffix)}
    return sorted(filter(is_run_id, ids), key=created, reverse=True)
