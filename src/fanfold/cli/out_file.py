"""The results file: its format by its suffix, found writable before any work, written whole or not at all."""

import errno
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fanfold.cli.render import Format
from fanfold.errors import LogWriteError, UsageError

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".csv": "csv", ".md": "markdown", ".json": "json"}


@dataclass(frozen=True, slots=True)
class OutFile:
    name: Path
    """As the user wrote it."""
    target: Path
    """Where it really lies: a link stays a link."""
    mode: int
    """Permissions: those of the file that it replaces, else those of any new file."""
    format: Format

    def write_whole(self, text: str) -> None:
        """Replace the file in one step: whoever reads it sees the old content or all of the new.

        Raises:
            LogWriteError: nothing was changed.
        """
        temporary = None
        try:
            descriptor, temporary = _temporary_beside(self.target)
            with open(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, self.mode)
            os.replace(temporary, self.target)
        except OSError as error:
            if temporary is not None:
                os.unlink(temporary)
            raise LogWriteError(path=str(self.name), reason=error.strerror or str(error)) from error


def open_out(name: Path) -> OutFile:
    """The results file `name`, after a trial whether it can be written.

    Raises:
        UsageError: the suffix names no format, or nothing can be written there.
    """
    format = _FORMATS.get(name.suffix)
    if format is None:
        raise UsageError(f"--out {name}: the suffix must be one of {', '.join(_FORMATS)}")
    target = Path(os.path.realpath(name))
    try:
        mode = _mode_for(target)
        descriptor, temporary = _temporary_beside(target)
        os.close(descriptor)
        os.unlink(temporary)
    except OSError as error:
        place = "" if target.parent.is_dir() else f"{target.parent}: "
        raise UsageError(f"--out {name}: cannot be written there: {place}{error.strerror}") from error
    return OutFile(name, target, mode, format)


def _temporary_beside(target: Path) -> tuple[int, str]:
    return tempfile.mkstemp(dir=target.parent, prefix=".fanfold-")


def _mode_for(target: Path) -> int:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return mode & 0o777
