"""Workflow runs in the files of a workspace, for any number of processes of one machine."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from fanfold.protocols import HeldRun, JournalRead, RunLook, WorkflowFiles
from fanfold.stores.durable_file import read_file, remove_file
from fanfold.stores.landing import in_worker
from fanfold.stores.line_file import LineFile
from fanfold.stores.run_blobs import read_blob
from fanfold.stores.run_events import read_events
from fanfold.stores.run_hold import FileHeldRun
from fanfold.stores.run_journal_file import read_journal
from fanfold.stores.run_listing import run_ids_in
from fanfold.stores.run_lock import is_locked, lock_known, lock_new
from fanfold.stores.run_notices import Outbox, outboxes_with
from fanfold.stores.run_place import FOLDER, RunPlace, require_no_links, require_run_id, run_not_found
from fanfold.stores.run_request import Requests, leave_request
from fanfold.stores.run_sweep import sweep_blobs

T = TypeVar("T")


def open_run_files(workspace: Path) -> WorkflowFiles:
    """The runs of `workspace`. Nothing is read or created before it is asked for."""
    return RunFiles(workspace.absolute().joinpath(*FOLDER))


class RunFiles:
    """Used from any event loop. Locks bind only processes of one machine, so do not share the directory over a
    network."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def directory(self) -> str:
        return str(self._directory)

    def output_path(self, run_id: str) -> str:
        require_run_id(run_id)
        return str(RunPlace(self._directory, run_id).output)

    # ---- whoever runs it ----

    async def create(self, run_id: str) -> HeldRun:
        return await self._held(run_id, lock_new)

    async def hold(self, run_id: str) -> HeldRun:
        return await self._held(run_id, lock_known)

    async def _held(self, run_id: str, lock: Callable[[RunPlace], tuple[LineFile, Requests]]) -> HeldRun:
        place = self._place(run_id)
        taken: list[tuple[LineFile, Requests]] = []
        try:
            await in_worker(lambda: taken.append(lock(place)))
            return FileHeldRun(place, *taken[0])
        except BaseException:
            for file, _ in taken:  # the caller was cancelled, and nobody else knows of it
                file.close()
            raise

    # ---- anybody ----

    async def run_ids(self) -> Sequence[str]:
        require_no_links(self._directory)
        return await in_worker(partial(run_ids_in, self._directory))

    async def look(self, run_id: str) -> RunLook | None:
        return await self._seen(run_id, _look)

    async def journal(self, run_id: str) -> JournalRead | None:
        return await self._seen(run_id, lambda place: read_journal(place.journal))

    async def blob(self, run_id: str, name: str) -> bytes | None:
        return await self._seen(run_id, lambda place: read_blob(place.blobs, name))

    async def output(self, run_id: str) -> bytes | None:
        return await self._seen(run_id, lambda place: read_file(place.output))

    async def script(self, run_id: str) -> str | None:
        text = await self._seen(run_id, lambda place: read_file(place.script))
        return None if text is None else text.decode(errors="replace")

    async def events(self, run_id: str, after: int = 0) -> tuple[Sequence[bytes], int]:
        found = await self._seen(run_id, lambda place: read_events(place.events, place.old_events, after))
        return found or ((), 0)

    async def request(self, run_id: str, data: bytes) -> None:
        def leave(place: RunPlace) -> bool:
            leave_request(place.request, data)
            if not place.is_run():  # it was deleted meanwhile
                remove_file(place.request)
            return place.is_run()

        if not await self._seen(run_id, leave):
            raise run_not_found(run_id)

    # ---- upkeep ----

    async def sweep_blobs(self) -> int:
        blobs = self._directory / "blobs"
        require_no_links(blobs)
        return await in_worker(partial(sweep_blobs, self._directory, blobs))

    # ---- notices ----

    async def put_notice(self, session_id: str, run_id: str, data: bytes) -> None:
        require_run_id(run_id)
        await in_worker(partial(Outbox.of(self._directory, session_id).put, run_id, data))

    async def notices(self, session_id: str) -> Sequence[tuple[str, bytes]]:
        outbox = Outbox.of(self._directory, session_id)
        return () if outbox.is_empty() else await in_worker(outbox.notices)

    async def remove_notice(self, session_id: str, run_id: str, data: bytes | None = None) -> None:
        require_run_id(run_id)
        outbox = Outbox.of(self._directory, session_id)
        if not outbox.is_empty():
            await in_worker(partial(outbox.remove, run_id, data))

    async def has_notice(self, run_id: str) -> bool:
        require_run_id(run_id)
        return bool(await in_worker(partial(outboxes_with, self._directory, run_id)))

    async def remove_notices(self, run_id: str) -> None:
        def remove() -> None:
            for outbox in outboxes_with(self._directory, run_id):
                outbox.remove(run_id, None)

        require_run_id(run_id)
        await in_worker(remove)

    def _place(self, run_id: str) -> RunPlace:
        require_run_id(run_id)
        require_no_links(self._directory)
        return RunPlace(self._directory, run_id)

    async def _seen(self, run_id: str, see: Callable[[RunPlace], T]) -> T | None:
        """What `see` sees, in a worker thread; None when there is no such run."""
        place = self._place(run_id)
        return await in_worker(lambda: see(place) if place.is_run() else None)


def _look(place: RunPlace) -> RunLook:
    while True:
        snapshot = read_file(place.snapshot)
        if is_locked(place):
            return RunLook(snapshot=snapshot, is_held=True)
        if read_file(place.snapshot) == snapshot:
            return RunLook(snapshot=snapshot, is_held=False)
        # Somebody took the run, or let go of it, in between: what it said while it ran would look like a death.
