"""Beginning: the first records of an attempt, and how they are taken back where nothing comes of it.

The snapshot comes last: until it stands, the run is what it was, whoever dies. The notice comes in front of it, so that
no run goes on of whose end its conversation would never hear.
"""

from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.run_journal import Header, Result, RunRecord
from fanfold.contracts.workflow_runs import WorkflowSnapshot
from fanfold.errors import StorageError
from fanfold.foreign import logger
from fanfold.protocols import HeldRun
from fanfold.workflow.attempt import Notices
from fanfold.workflow.journal import RunJournal
from fanfold.workflow.scripts import Script


class Beginning:
    def __init__(
        self, held: HeldRun, notices: Notices, snapshot: WorkflowSnapshot, before: WorkflowSnapshot | None
    ) -> None:
        """`before`: what the run was before this attempt; None: there was no run."""
        self._held = held
        self._notices = notices
        self._snapshot = snapshot
        self._before = before
        self._earlier: bytes | None = None
        self.torn: str | None = None
        """The file that a torn end of the journal is in now."""
        self._has_notice = False
        self._has_snapshot = False

    async def write(self, journal: RunJournal, header: Header, copied: Sequence[RunRecord], script: Script) -> None:
        """Raises StorageError: not all of it could be written; `take_back`."""
        if journal.view.whole_lines is not None:
            self.torn = await self._held.cut_journal(journal.view.whole_lines)
        await self._keep_blobs(copied)
        await journal.open_attempt(header, copied)
        if script.kind == "inline" and script.text is not None:
            await self._held.write_script(script.text)
        self._has_notice = True  # a write that fails may have come to be all the same
        self._earlier = await self._notices.begin(self._snapshot)
        self._has_snapshot = True
        await self._held.write_snapshot(encode_json(self._snapshot))

    async def _keep_blobs(self, copied: Sequence[RunRecord]) -> None:
        """Put those that another run has put once more: that may be deleted just now, and they with it."""
        for record in copied:
            if isinstance(record, Result) and record.blob is not None:
                data = await self._held.blob(record.blob)
                if data is not None:
                    await self._held.put_blob(data)

    async def take_back(self, *, is_told: bool = False) -> None:
        """Have the run be what it was before; one that there was not has been stopped.

        Args:
            is_told: the launch was answered, so that its conversation waits to hear of its end.
        """
        if self._has_snapshot:
            standing = self._before or replace(self._snapshot, status="stopped", reason="closed")
            await self._tried(self._held.write_snapshot(encode_json(standing)))
        if self._has_notice and not is_told:
            await self._tried(self._notices.take_back(self._snapshot, self._earlier))

    async def _tried(self, write: Awaitable[None]) -> None:
        try:
            await write
        except StorageError as error:
            logger.error("run %s: its launch could not be taken back: %s", self._snapshot.run_id, error)
