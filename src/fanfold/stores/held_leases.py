"""The leases that one store object has: each is an OS lock on a file of its own, which dies with its process."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from fanfold.errors import AlreadyActiveError, FencedError, LogWriteError
from fanfold.protocols import Lease
from fanfold.stores.file_lock import holder_name
from fanfold.stores.landing import in_worker
from fanfold.stores.line_file import LineFile
from fanfold.stores.store_rules import used_after_close


class HeldLeases:
    """Blocking; for any number of threads. A lease counts only in the object that took it: a copy elsewhere is one of
    which nobody here knows whether its lock is still held."""

    def __init__(self) -> None:
        self._held: dict[str, _HeldLease] = {}
        self._turn = threading.Lock()
        self._is_closed = False

    def names(self) -> list[str]:
        return sorted(self._held)

    def take(self, name: str, path: Path, next_epoch: Callable[[LineFile, int], int]) -> Lease:
        """Lock the file at `path`, created if need be, then ask `next_epoch` for the number of the lease, which is to
        be greater than the one it is given: somebody may have removed the file that a lease of ours is on.

        Raises:
            AlreadyActiveError: somebody has it.
        """
        file = LineFile.try_open(path)
        if file is None:
            raise AlreadyActiveError(name=name, holder=holder_name(path))
        try:
            before = self._held.get(name)
            held = _HeldLease(file, next_epoch(file, 0 if before is None else before.epoch))
            with self._turn:
                if self._is_closed:
                    raise used_after_close()
                superseded, self._held[name] = self._held.get(name), held
        except BaseException:
            file.close()
            raise
        if superseded is not None:
            superseded.end()  # its file was replaced, or we could not have locked it
        return Lease(name=name, epoch=held.epoch)

    async def take_in_worker(self, take: Callable[[], Lease]) -> Lease:
        """What `take` takes, in a worker thread; a caller that is cancelled meanwhile leaves no lease behind."""
        taken: list[Lease] = []
        try:
            await in_worker(lambda: taken.append(take()))
        except BaseException:
            for lease in taken:  # nobody else knows of it
                self.release(lease)
            raise
        return taken[0]

    @contextmanager
    def using(self, lease: Lease | None) -> Generator[None, None, None]:
        """For as long as it is entered, the lease cannot be released.

        Raises:
            FencedError: it is not in force.
        """
        if lease is None:
            yield
            return
        held = self._held.get(lease.name)
        if held is None or held.epoch != lease.epoch:
            raise FencedError(name=lease.name, epoch=lease.epoch)
        with held.turn:
            if not held.is_in_force():
                raise FencedError(name=lease.name, epoch=lease.epoch)
            yield

    def release(self, lease: Lease) -> None:
        with self._turn:
            held = self._held.get(lease.name)
            if held is None or held.epoch != lease.epoch:
                return
            del self._held[lease.name]
        held.end()

    def close(self) -> None:
        """Release all; none can be taken any more."""
        with self._turn:
            self._is_closed = True
            leases = list(self._held.values())
            self._held.clear()
        for held in leases:
            held.end()


class _HeldLease:
    def __init__(self, file: LineFile, epoch: int) -> None:
        self.epoch = epoch
        self.turn = threading.Lock()
        """Whoever writes under the lease has it, so nobody else gets the lease before the write is done."""
        self._file = file
        self._is_over = False

    def is_in_force(self) -> bool:
        if self._is_over or self._file.stamp().inode != self._file.inode:  # a forked child has no locks of its parent
            return False
        try:
            self._file.require_in_place(self._file.size)
        except LogWriteError:
            return False
        return True

    def end(self) -> None:
        with self.turn:
            self._is_over = True
            self._file.close()
