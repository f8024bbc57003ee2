"""The results file: its format by its suffix, written whole or not at all."""

import os
import tempfile
from pathlib import Path

from fanfold.cli.render import Format
from fanfold.errors import LogWriteError, UsageError

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".csv": "csv", ".md": "markdown", ".json": "json"}


def format_of(path: Path) -> Format:
    """The format that the file's suffix names.

    Raises:
        UsageError: no such format, or nothing can be written there. Asked before work that would be in vain.
    """
    format = _FORMATS.get(path.suffix)
    if format is None:
        raise UsageError(f"--out {path}: the suffix must be one of {', '.join(_FORMATS)}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--out {path}: there is no directory {folder}")
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--out {path}: cannot be written there")
    return format


def write_whole(path: Path, text: str) -> None:
    """Replace `path` in one step: whoever reads it sees the old content or all of the new.

    Raises:
        LogWriteError: nothing was changed.
    """
    target = path.resolve()  # through a symlink, so that the link stays
    temporary = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_mode_for(target))
        temporary.replace(target)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise LogWriteError(path=str(path), reason=error.strerror or str(error)) from error


def _mode_for(target: Path) -> int:
    """The permissions that the file had, or those of a new file; a temporary file's own are too narrow."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
