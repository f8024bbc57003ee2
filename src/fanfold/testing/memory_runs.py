"""MemoryRuns: the files of workflow runs in memory. Several processes, a full disk and a crash fit into one test.

No disk, no thread and no clock, so a simulator's loop can run it too. Each operation lets other tasks run before it is
done, as one on a disk does.
"""

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from fanfold.errors import AlreadyActiveError, LogWriteError, StoreConflictError
from fanfold.kernel.plain_text import is_plain
from fanfold.protocols import HeldRun, JournalRead, RunLook
from fanfold.stores.run_events import FULL_BYTES
from fanfold.stores.run_journal_file import end_of_lines, lines_of
from fanfold.stores.run_notices import require_session_id
from fanfold.stores.run_place import bad_script, require_run_id, run_not_found, used_after_release
from fanfold.stores.store_rules import require_records
from fanfold.testing.faulty_store import SimulatedCrashError

Change = Literal[
    "create",
    "hold",
    "append",
    "cut_journal",
    "put_blob",
    "write_snapshot",
    "write_output",
    "write_script",
    "append_events",
    "delete",
    "request",
    "sweep_blobs",
    "put_notice",
    "remove_notice",
    "remove_notices",
]
"""Operations that can be made to fail."""
_File = Literal["snapshot", "output", "script"]
T = TypeVar("T")


class MemoryRuns:
    """A `WorkflowFiles`: what one process sees of a disk that it may share with others."""

    def __init__(self, *, before: Callable[[Change, str], Awaitable[None]] | None = None) -> None:
        """`before` is awaited before each change, with the run's id: it may wait, or raise what the change is to
        raise."""
        self._before = before
        self._disk = _Disk()
        self._held: list[MemoryHeldRun] = []
        self._to_fail: Counter[Change] = Counter()
        self._reason = ""

    def another_process(self, *, before: Callable[[Change, str], Awaitable[None]] | None = None) -> "MemoryRuns":
        """One that sees the same disk, and has faults of its own."""
        other = MemoryRuns(before=before)
        other._disk = self._disk
        return other

    # ---- faults ----

    def fail_next(self, change: Change, *, times: int = 1, reason: str = "No space left on device") -> None:
        """The next `times` such changes of this process do nothing and raise LogWriteError."""
        self._to_fail[change] += times
        self._reason = reason

    def crash(self) -> None:
        """The process dies, and the disk loses what it need not keep: the runs that it held are free, and the lines
        behind their last durable ones are gone. Nothing that a run that was held still does has any effect. This object
        is the process that is started next."""
        held, self._held = self._held, []
        for each in held:
            each.die()

    def journal_bytes(self, run_id: str) -> bytes | None:
        journal = self._disk.run(run_id).journal
        return None if journal is None else bytes(journal)

    def put_journal(self, run_id: str, data: bytes | None) -> None:
        """Damage: have the journal file of a run consist of `data`, or not be there."""
        self._disk.run(run_id).put_journal(data)

    # ---- whoever runs it ----

    @property
    def directory(self) -> str:
        return "memory:workflow-runs"

    def output_path(self, run_id: str) -> str:
        require_run_id(run_id)
        return f"{self.directory}/{run_id}.output.json"

    async def create(self, run_id: str) -> HeldRun:
        require_run_id(run_id)
        await self.change("create", run_id)
        if run_id.lower() in self._disk.runs:
            raise StoreConflictError(name=run_id, expected=0, actual=1)
        run = self._disk.runs[run_id.lower()] = _Run(run_id)
        return self._hold(run)

    async def hold(self, run_id: str) -> HeldRun:
        require_run_id(run_id)
        await self.change("hold", run_id)
        run = self._disk.run(run_id)
        if run.holder is not None:
            holder = "this process" if run.holder in self._held else "another process"
            raise AlreadyActiveError(name=f"workflow-run/{run_id}", holder=holder)
        return self._hold(run)

    def _hold(self, run: "_Run") -> "MemoryHeldRun":
        held = run.holder = MemoryHeldRun(self, self._disk, run)
        self._held.append(held)
        return held

    def let_go(self, held: "MemoryHeldRun") -> None:
        self._held = [each for each in self._held if each is not held]

    async def change(self, change: Change, run_id: str) -> None:
        """What comes before each change: time for others, and what is to go wrong with it."""
        await asyncio.sleep(0)
        if self._before is not None:
            await self._before(change, run_id)
        if self._to_fail[change] > 0:
            self._to_fail[change] -= 1
            raise LogWriteError(path=f"{self.directory}/{run_id}", reason=self._reason)

    # ---- anybody ----

    async def run_ids(self) -> Sequence[str]:
        await asyncio.sleep(0)
        return [run.run_id for run in reversed(self._disk.runs.values())]

    async def look(self, run_id: str) -> RunLook | None:
        run = await self._seen(run_id)
        return None if run is None else RunLook(snapshot=run.files.get("snapshot"), is_held=run.holder is not None)

    async def journal(self, run_id: str) -> JournalRead | None:
        run = await self._seen(run_id)
        return None if run is None else run.read_journal()

    async def blob(self, run_id: str, name: str) -> bytes | None:
        run = await self._seen(run_id)
        return None if run is None else self._disk.blobs.get(name)

    async def output(self, run_id: str) -> bytes | None:
        run = await self._seen(run_id)
        return None if run is None else run.files.get("output")

    async def script(self, run_id: str) -> str | None:
        run = await self._seen(run_id)
        text = None if run is None else run.files.get("script")
        return None if text is None else text.decode()

    async def events(self, run_id: str, after: int = 0) -> tuple[Sequence[bytes], int]:
        run = await self._seen(run_id)
        return ([], 0) if run is None else run.events.behind(after)

    async def request(self, run_id: str, data: bytes) -> None:
        require_run_id(run_id)
        await self.change("request", run_id)
        run = self._disk.run(run_id)
        run.request = (run.request[0] + 1, data)

    async def sweep_blobs(self) -> int:
        await self.change("sweep_blobs", "")
        return self._disk.sweep_blobs()

    async def _seen(self, run_id: str) -> "_Run | None":
        require_run_id(run_id)
        await asyncio.sleep(0)
        return self._disk.find(run_id)

    # ---- notices ----

    async def put_notice(self, session_id: str, run_id: str, data: bytes) -> None:
        require_run_id(run_id)
        require_session_id(session_id)
        await self.change("put_notice", run_id)
        notices = self._disk.outbox.setdefault(session_id, {})
        notices.pop(run_id, None)  # or it would keep the place of the old one
        notices[run_id] = data

    async def notices(self, session_id: str) -> Sequence[tuple[str, bytes]]:
        require_session_id(session_id)
        await asyncio.sleep(0)
        return list(self._disk.outbox.get(session_id, {}).items())

    async def remove_notice(self, session_id: str, run_id: str, data: bytes | None = None) -> None:
        require_run_id(run_id)
        require_session_id(session_id)
        await self.change("remove_notice", run_id)
        notices = self._disk.outbox.get(session_id, {})
        if data in (None, notices.get(run_id)):
            notices.pop(run_id, None)

    async def has_notice(self, run_id: str) -> bool:
        require_run_id(run_id)
        await asyncio.sleep(0)
        return any(run_id in notices for notices in self._disk.outbox.values())

    async def remove_notices(self, run_id: str) -> None:
        require_run_id(run_id)
        await self.change("remove_notices", run_id)
        for notices in self._disk.outbox.values():
            notices.pop(run_id, None)


class MemoryHeldRun:
    """A `HeldRun` of one `MemoryRuns`."""

    def __init__(self, process: MemoryRuns, disk: "_Disk", run: "_Run") -> None:
        self._process = process
        self._disk = disk
        self._run = run
        self._requests_before = run.request[0]
        self._turn = asyncio.Lock()
        self._release: asyncio.Task[None] | None = None
        self._is_dead = False

    @property
    def run_id(self) -> str:
        return self._run.run_id

    async def read_journal(self) -> JournalRead:
        await self._asked()
        return self._run.read_journal() or JournalRead(lines=())

    async def has_journal(self) -> bool:
        await self._asked()
        return self._run.journal is not None

    async def cut_journal(self, whole_lines: int) -> str | None:
        return await self._change("cut_journal", lambda: self._run.cut_journal(whole_lines))

    async def append(self, lines: Sequence[bytes], *, is_durable: bool = True) -> None:
        require_records(self.run_id, lines)
        data = b"".join(line + b"\n" for line in lines)
        await self._change("append", lambda: self._run.append(data, is_durable=is_durable))

    async def put_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        return await self._change("put_blob", lambda: self._disk.put_blob(name, data))

    async def blob(self, name: str) -> bytes | None:
        await self._asked()
        return self._disk.blobs.get(name)

    async def write_snapshot(self, data: bytes) -> None:
        await self._change("write_snapshot", lambda: self._run.put("snapshot", data))

    async def write_output(self, data: bytes) -> None:
        await self._change("write_output", lambda: self._run.put("output", data))

    async def write_script(self, text: str) -> None:
        if not is_plain(text):
            raise bad_script(self.run_id)
        await self._change("write_script", lambda: self._run.put("script", text.encode()))

    async def append_events(self, lines: Sequence[bytes]) -> None:
        require_records(self.run_id, lines)
        await self._change("append_events", lambda: self._run.events.append(lines))

    async def requested(self) -> bytes | None:
        await self._asked()
        number, data = self._run.request
        return data if number > self._requests_before else None

    async def delete(self) -> int:
        self._require_held()
        freed: list[int] = []
        self._release = asyncio.create_task(self._delete(freed))
        await self.release()
        return freed[0]

    async def release(self) -> None:
        if self._release is None:
            self._release = asyncio.create_task(self._let_go())
        try:
            await asyncio.shield(self._release)
        except asyncio.CancelledError:
            await asyncio.wait([self._release])  # the next one may hold the run as soon as this returns
            raise

    def die(self) -> None:
        """See `MemoryRuns.crash`."""
        self._is_dead = True
        self._run.holder = None
        self._run.lose_undurable()

    async def _let_go(self) -> None:
        async with self._turn:
            self._free()

    async def _delete(self, freed: list[int]) -> None:
        async with self._turn:
            try:
                await self._process.change("delete", self.run_id)
                self._require_alive()
                freed.append(self._disk.remove(self._run))
            finally:
                self._free()

    def _free(self) -> None:
        if not self._is_dead:
            self._run.holder = None
            self._process.let_go(self)

    async def _asked(self) -> None:
        self._require_held()
        await asyncio.sleep(0)
        self._require_alive()

    async def _change(self, change: Change, do: Callable[[], T]) -> T:
        """What `do` returns when it is its turn. A release comes behind it."""
        self._require_held()
        async with self._turn:
            await self._process.change(change, self.run_id)
            self._require_alive()
            return do()

    def _require_held(self) -> None:
        self._require_alive()
        if self._release is not None:
            raise used_after_release(self.run_id)

    def _require_alive(self) -> None:
        if self._is_dead:
            raise SimulatedCrashError


class _Disk:
    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        """By id in lower case: to some disks two ids that differ by case only are one."""
        self.blobs: dict[str, bytes] = {}
        self.outbox: dict[str, dict[str, bytes]] = {}

    def find(self, run_id: str) -> "_Run | None":
        run = self.runs.get(run_id.lower())
        return run if run is not None and run.run_id == run_id else None

    def run(self, run_id: str) -> "_Run":
        run = self.find(run_id)
        if run is None:
            raise run_not_found(run_id)
        return run

    def put_blob(self, name: str, data: bytes) -> str:
        self.blobs[name] = data
        return name

    def remove(self, run: "_Run") -> int:
        del self.runs[run.run_id.lower()]
        return run.size

    def sweep_blobs(self) -> int:
        if any(run.holder is not None for run in self.runs.values()):
            return 0
        journals = [run.journal or b"" for run in self.runs.values()]
        unnamed = [name for name in self.blobs if not any(b'"%b"' % name.encode() in each for each in journals)]
        return sum(len(self.blobs.pop(name)) for name in unnamed)


class _Run:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.holder: MemoryHeldRun | None = None
        self.journal: bytearray | None = bytearray()
        self.files: dict[_File, bytes] = {}
        self.events = _Events()
        self.request: tuple[int, bytes] = (0, b"")
        """The number of the newest one, and what it is."""
        self._durable_bytes = 0
        """Of the journal."""
        self._cuts = 0

    @property
    def size(self) -> int:
        return sum(map(len, (self.journal or b"", *self.files.values(), self.request[1]))) + self.events.size

    def put(self, name: _File, data: bytes) -> None:
        self.files[name] = data

    def append(self, data: bytes, *, is_durable: bool) -> None:
        if self.journal is None:
            raise self._refused("it is not there any more")
        if self.journal and not self.journal.endswith(b"\n"):
            raise self._refused("it ends within a line, which is to be cut off first")
        self.journal += data
        if is_durable:
            self._durable_bytes = len(self.journal)

    def put_journal(self, data: bytes | None) -> None:
        self.journal = None if data is None else bytearray(data)
        self._durable_bytes = len(data or b"")

    def lose_undurable(self) -> None:
        if self.journal is not None:
            del self.journal[self._durable_bytes :]

    def read_journal(self) -> JournalRead | None:
        return None if self.journal is None else lines_of(bytes(self.journal))

    def cut_journal(self, whole_lines: int) -> str | None:
        whole = bytes(self.journal or b"")
        end = end_of_lines(whole, whole_lines)
        if end == len(whole):
            return None
        self.put_journal(whole[:end])
        self._cuts += 1
        return f"{self.run_id}.journal.jsonl.torn-{self._cuts}"

    def _refused(self, reason: str) -> LogWriteError:
        return LogWriteError(path=f"{self.run_id}.journal.jsonl", reason=reason)


class _Events:
    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._begin = 0
        """Position of the first line, in bytes of all that there ever were."""
        self._end = 0

    def append(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._lines.append(line)
            self._end += len(line) + 1
        while self._end - self._begin > 2 * FULL_BYTES and len(self._lines) > 1:
            self._begin += len(self._lines.popleft()) + 1

    @property
    def size(self) -> int:
        return self._end - self._begin

    def behind(self, after: int) -> tuple[list[bytes], int]:
        position, number = self._begin, 0
        while position < after and number < len(self._lines):
            position += len(self._lines[number]) + 1
            number += 1
        return list(self._lines)[number if position == after else 0 :], self._end
