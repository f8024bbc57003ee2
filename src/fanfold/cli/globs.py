"""Glob patterns over a directory tree: `*`, `?`, `[...]` within a name, `**` for any depth."""

import fnmatch
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_WILDCARDS = frozenset("*?[")


def is_pattern(text: str) -> bool:
    return not _WILDCARDS.isdisjoint(text)


OnBlocked = Callable[[Path, str], None]
"""Hears of a directory that cannot be listed, and why."""


def matching_files(root: Path, pattern: str, on_blocked: OnBlocked) -> list[Path]:
    """Files under `root` that match, each once, sorted by path.

    Hidden names match only a part of the pattern that itself begins with a dot. `**` does not follow links to
    directories, so a link that leads back up cannot make the search endless.
    """
    parts = pattern.replace(os.sep, "/").split("/")
    start = root
    if parts[0] == "":  # an absolute pattern
        start, parts = Path("/"), parts[1:]
    elif parts[0].endswith(":"):
        start, parts = Path(parts[0] + "/"), parts[1:]
    found = _Walk(on_blocked).matches(start, [part for part in parts if part not in ("", ".")])
    return sorted({path for path in found if os.path.isfile(path)}, key=lambda path: path.parts)


class _Walk:
    def __init__(self, on_blocked: OnBlocked) -> None:
        self._on_blocked = on_blocked

    def matches(self, directory: Path, parts: list[str]) -> Iterator[Path]:
        if not parts:
            yield directory
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            # A closing `**` means every file below.
            yield from self.matches(directory, rest or ["*"])
            for entry in self._entries(directory):
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield from self.matches(directory / entry.name, parts)
        elif is_pattern(first):
            for entry in self._entries(directory):
                is_hidden = entry.name.startswith(".") and not first.startswith(".")
                if not is_hidden and fnmatch.fnmatch(entry.name, first):
                    yield from self.matches(directory / entry.name, rest)
        else:
            yield from self.matches(directory / first, rest)

    def _entries(self, directory: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []  # the pattern asks below something that is no directory: no match
        except OSError as error:
            self._on_blocked(directory, error.strerror or str(error))
            return []
