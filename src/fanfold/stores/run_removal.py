"""The end of a run's files, in an order in which a kill leaves a run that can be removed again, or none.

The snapshot goes first, for nobody goes on with a run that has none. Then the rest, and last the journal, which keeps
the run listed until then. (Of a run without a journal the snapshot is the last.)
"""

import os
import re
from pathlib import Path

from fanfold.stores.disk_sync import sync_directory
from fanfold.stores.line_file import refused
from fanfold.stores.run_place import RunPlace

# Whole names: an id may have a dot in it, so that the files of another run may begin with all of this one's id.
_SUFFIX = r"\.(json|output\.json|journal\.jsonl|script\.py|events\.jsonl|events\.1\.jsonl|request)"
_LEFT = r"(\.tmp|\.new|\.lock|\.(torn|aside)-\d+)?"
"""What a write that was cut off leaves behind, and what was cut off a journal."""


def remove_run_files(place: RunPlace) -> int:
    """Remove all files of a run but its lock and its blobs; returns how many bytes they had. For its holder. Blocking.

    Raises:
        LogWriteError: the file system refuses; what is left is a run still.
    """
    freed = 0
    try:
        names = _names(place)
        snapshot, journal = place.snapshot.name, place.journal.name
        last = journal if journal in names else snapshot
        if snapshot in names and snapshot != last:
            freed += _remove(place.snapshot)
            sync_directory(place.directory)
        for name in names - {snapshot, last}:
            freed += _remove(place.directory / name)
        sync_directory(place.directory)  # or a power failure might bring back some of them, and not the last one
        if last in names:
            freed += _remove(place.directory / last)
        sync_directory(place.directory)
    except OSError as error:
        raise refused(Path(error.filename or place.directory), error, "remove") from error
    return freed


def _names(place: RunPlace) -> set[str]:
    is_ours = re.compile(re.escape(place.run_id) + _SUFFIX + _LEFT).fullmatch
    return {name for name in os.listdir(place.directory) if is_ours(name)}


def _remove(path: Path) -> int:
    try:
        size = path.lstat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0  # a lock on a request that was just being left
    return size
