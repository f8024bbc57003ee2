"""The outbox: what conversations are still to be told of their runs, `outbox/<session>.notices/<runId>.json`.

A conversation asks at each of its prompts, so one that is told nothing costs one look at a name that is not there.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fanfold.errors import UsageError
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.workflow_meta import is_run_id
from fanfold.stores.directory import make_directory
from fanfold.stores.durable_file import read_file, remove_file, replace_file
from fanfold.stores.line_file import refused
from fanfold.stores.record_file import wait_for_file
from fanfold.stores.run_place import require_no_links
from fanfold.stores.store_name import file_stem

_FOLDER = "outbox"
_ENDING = ".notices"
"""Of a session's folder: its id may be "..", or end in a dot."""
_NOTICE = ".json"


def require_session_id(session_id: str) -> None:
    """Raises UsageError for one that is empty or no text; any other is good."""
    if not session_id or not is_plain(session_id):
        raise UsageError(f"invalid session id {session_id!r}: it must be text")


class Outbox:
    """The notices of one session. All blocking; LogWriteError when the file system refuses."""

    def __init__(self, outbox: Path, name: str) -> None:
        self._outbox = outbox
        self._name = name
        self._directory = outbox / name

    @classmethod
    def of(cls, directory: Path, session_id: str) -> "Outbox":
        """Raises UsageError as `require_session_id`."""
        require_session_id(session_id)
        return cls(directory / _FOLDER, file_stem(session_id) + _ENDING)

    def is_empty(self) -> bool:
        """True when there is not even a place for notices."""
        return not os.path.lexists(self._directory)

    def put(self, run_id: str, data: bytes) -> None:
        path = self._directory / (run_id + _NOTICE)
        with self._locked():
            make_directory(self._directory)
            newest = max((at for _, at in self._times()), default=0)
            replace_file(path, data)
            if path.stat().st_mtime_ns <= newest:  # in one tick of the file system's clock
                os.utime(path, ns=(newest + 1, newest + 1))

    def notices(self) -> list[tuple[str, bytes]]:
        """(run id, data), oldest first."""
        self._refuse_links()
        found: list[tuple[str, bytes]] = []
        try:
            names = sorted(self._times(), key=lambda each: (each[1], each[0]))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(self._directory, error, "read") from error
        for name, _ in names:
            data = read_file(self._directory / name)
            if data is not None:  # see `_times`
                found.append((name.removesuffix(_NOTICE), data))
        return found

    def remove(self, run_id: str, data: bytes | None) -> None:
        with self._locked():
            path = self._directory / (run_id + _NOTICE)
            if os.path.lexists(path):
                if data is not None and read_file(path) != data:
                    return  # another one stands there by now
                remove_file(path)
            try:
                self._directory.rmdir()
            except OSError:
                pass  # it has others

    @contextmanager
    def _locked(self) -> Generator[None, None, None]:
        self._refuse_links()
        make_directory(self._outbox)
        lock = wait_for_file(self._outbox / (self._name + ".lock"))
        try:
            yield
        except OSError as error:
            raise refused(self._directory, error) from error
        finally:
            lock.close()

    def _times(self) -> list[tuple[str, int]]:
        """File names with their times; what is no notice of ours is passed over."""
        times: list[tuple[str, int]] = []
        with os.scandir(self._directory) as entries:
            for each in entries:
                run_id = each.name.removesuffix(_NOTICE)
                if run_id != each.name and is_run_id(run_id) and each.is_file(follow_symlinks=False):
                    try:
                        times.append((each.name, each.stat(follow_symlinks=False).st_mtime_ns))
                    except FileNotFoundError:
                        continue  # somebody else has told it just now
        return times

    def _refuse_links(self) -> None:
        require_no_links(self._directory)


def outboxes_with(directory: Path, run_id: str) -> list[Outbox]:
    """Those of all sessions that have a notice of the run. Blocking. Raises LogWriteError."""
    outbox = directory / _FOLDER
    require_no_links(outbox)
    try:
        names = sorted(name for name in os.listdir(outbox) if name.endswith(_ENDING))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(outbox, error, "read") from error
    return [Outbox(outbox, name) for name in names if os.path.lexists(outbox / name / (run_id + _NOTICE))]
