"""SharedLogs: one fact log per workspace, open for as long as a session of the workspace is."""

import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec

from fanfold.protocols import FactLog
from fanfold.session.closing import close_all


class Lease:
    """One session's right to use the log of its workspace. A session that is dropped drops its lease with it."""

    def __init__(self, root: Path, log: FactLog) -> None:
        self.root = root
        self.log = log


class _Shared(msgspec.Struct, frozen=True):
    log: FactLog
    leases: "weakref.WeakSet[Lease]"


class SharedLogs:
    def __init__(self, open_log: Callable[[Path], FactLog]) -> None:
        self._open_log = open_log
        self._shared: dict[Path, _Shared] = {}

    def lease(self, root: Path) -> Lease:
        shared = self._shared.get(root)
        if shared is None:
            shared = self._shared[root] = _Shared(self._open_log(root), weakref.WeakSet())
        lease = Lease(root, shared.log)
        shared.leases.add(lease)
        return lease

    async def end(self, lease: Lease) -> None:
        """Close the log when nobody else uses it; who comes later opens it anew."""
        shared = self._shared[lease.root]
        shared.leases.discard(lease)
        if not shared.leases:
            del self._shared[lease.root]
            await shared.log.close()

    async def close(self) -> None:
        """Close what dropped sessions left open."""
        left, self._shared = list(self._shared.values()), {}
        await close_all(shared.log.close for shared in left)
