"""The ids of the files of a directory, also of those whose name has no room for the whole id: `<stem>.id` keeps it."""

import os
from collections.abc import Callable
from pathlib import Path

from fanfold.stores.durable_file import read_file
from fanfold.stores.line_file import refused
from fanfold.stores.store_name import file_stem, id_of, is_cut

_ID = ".id"
_OPEN = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def keep_id(path: Path, known_as: str) -> None:
    """Return when the id of `path` can be told from what its directory has; syncing that is left to the caller.

    Raises:
        LogWriteError: the file system refuses.
    """
    stem = file_stem(known_as)
    if not is_cut(stem):
        return
    path = path.with_name(stem + _ID)
    try:
        # Written in place: all writers write the same, and the digest in its name tells whether it is whole.
        with os.fdopen(os.open(path, _OPEN, 0o644), "wb") as file:
            file.write(known_as.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise refused(path, error) from error


def ids_in(directory: Path, suffix: str, is_there: Callable[[Path], bool]) -> list[str]:
    """Ids, sorted, of the files that end in `suffix` and are there, as `is_there` says of their path.

    Raises:
        LogWriteError: the file system refuses.
    """
    try:
        with os.scandir(directory) as entries:
            paths = [directory / each.name for each in entries if each.name.endswith(suffix)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(directory, error) from error
    ids = [known_as for path in paths if (known_as := _id_of(path, suffix)) is not None and is_there(path)]
    return sorted(ids)


def _id_of(path: Path, suffix: str) -> str | None:
    stem = path.name.removesuffix(suffix)
    if not is_cut(stem):
        return id_of(stem)
    kept = read_file(path.with_name(stem + _ID))
    known_as = (kept or b"").decode(errors="replace")
    return known_as if file_stem(known_as) == stem else None
