"""The end of a run's files, in an order in which a kill leaves a run that can be removed again, or none.

The snapshot goes first, for nobody goes on with a run that has none. Then the rest, and last the journal, which keeps
the run listed until then. (Of a run without a journal the snapshot is the last.)

Somebody may be leaving a request meanwhile: one that is there before the run has gone is removed behind it, and whoever
leaves one later finds no run and removes it.
"""

import os
import re
from pathlib import Path

from fanfold.stores.disk_sync import sync_directory
from fanfold.stores.line_file import refused
from fanfold.stores.record_file import wait_for_file
from fanfold.stores.run_place import RunPlace

# Whole names: an id may have a dot in it, so that the files of another run may begin with all of this one's id.
_SUFFIX = r"\.(json|output\.json|journal\.jsonl|script\.py|events\.jsonl|events\.1\.jsonl)"
_REQUEST = r"\.request"
_LEFT = r"(\.tmp|\.new|\.lock|\.(torn|aside)-\d+)?"
"""What a write that was cut off leaves behind, and what was cut off a journal."""


def remove_run_files(place: RunPlace) -> int:
    """Remove all files of a run but its lock and its blobs; returns how many bytes they had. For its holder. Blocking.

    Raises:
        LogWriteError: the file system refuses; what is left is a run still.
    """
    freed = 0
    try:
        names = _names(place, _SUFFIX)
        snapshot, journal = place.snapshot.name, place.journal.name
        last = journal if journal in names else snapshot
        if snapshot in names and snapshot != last:
            freed += _remove(place.snapshot)
            sync_directory(place.directory)
        for name in names - {snapshot, last}:
            freed += _remove(place.directory / name)
        freed += _remove_requests(place)
        sync_directory(place.directory)  # or a power failure might bring back some of them, and not the last one
        if last in names:
            freed += _remove(place.directory / last)
        freed += _remove_requests(place)
        sync_directory(place.directory)
    except OSError as error:
        raise refused(Path(error.filename or place.directory), error, "remove") from error
    return freed


def _remove_requests(place: RunPlace) -> int:
    names = _names(place, _REQUEST)
    if not names:
        return 0
    path = place.request.with_name(place.request.name + ".lock")
    lock = wait_for_file(path)  # or what is being written would be removed under its writer's hands
    try:
        freed = sum(_remove(place.directory / name) for name in names - {path.name})
        # While it is ours: whoever waits for it finds that it has gone, and takes another one.
        return freed + (_remove(path) if os.name != "nt" else 0)
    finally:
        lock.close()


def _names(place: RunPlace, suffix: str) -> set[str]:
    is_ours = re.compile(re.escape(place.run_id) + suffix + _LEFT).fullmatch
    return {name for name in os.listdir(place.directory) if is_ours(name)}


def _remove(path: Path) -> int:
    try:
        size = path.lstat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
