"""RunNotices: the outbox of one session: what its conversation is to be told of the runs that it launched.

A notice is kept from the launch on, at first without a text. So a run whose process died is told too: a notice without
a text, of a run that nobody runs, means that it was cut off.
"""

from collections.abc import Callable, Sequence

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.notices import Notice
from fanfold.contracts.workflow_runs import RunFailure, WorkflowResult, WorkflowSnapshot
from fanfold.errors import StorageError, WorkflowInputError
from fanfold.foreign import logger
from fanfold.kernel.notification import render_notification
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import recorded_result, run_summary

MAX_FAILURES = 10
"""Told in a notification; the output file has more."""


class _Kept(msgspec.Struct, frozen=True):
    id: str
    text: str | None = None


class RunNotices:
    def __init__(
        self,
        files: Callable[[], WorkflowFiles],
        session_id: str,
        *,
        first: Callable[[], None],
        look: Callable[[], None],
    ) -> None:
        """Args:
        first: called before the first notice of this session is kept.
        look: has the conversation look what is `pending`.
        """
        self._files = files
        self._session_id = session_id
        self._first: Callable[[], None] | None = first
        self._look = look

    async def begin(self, snapshot: WorkflowSnapshot) -> bytes | None:
        """Keep that the conversation is to be told of the attempt; what was kept of an earlier one, which it is not
        told any more. Raises StorageError."""
        if snapshot.session_id is None:
            return None
        if snapshot.session_id == self._session_id and self._first is not None:
            self._first()
            self._first = None
        earlier = dict(await self._files().notices(snapshot.session_id)).get(snapshot.run_id)
        await self._put(snapshot, None)
        return earlier

    async def take_back(self, snapshot: WorkflowSnapshot, earlier: bytes | None) -> None:
        """Undo `begin`, which gave `earlier`. Raises StorageError."""
        if snapshot.session_id is None:
            return
        if earlier is None:
            begun = encode_json(_Kept(_id_of(snapshot)))
            await self._files().remove_notice(snapshot.session_id, snapshot.run_id, begun)
        else:
            await self._files().put_notice(snapshot.session_id, snapshot.run_id, earlier)
            self.tell(snapshot)  # who asked meanwhile has not seen it

    async def keep(self, snapshot: WorkflowSnapshot, result: WorkflowResult) -> None:
        """Raises StorageError."""
        await self._put(snapshot, _text(snapshot, result))

    async def _put(self, snapshot: WorkflowSnapshot, text: str | None) -> None:
        if snapshot.session_id is not None:
            kept = encode_json(_Kept(_id_of(snapshot), text))
            await self._files().put_notice(snapshot.session_id, snapshot.run_id, kept)

    def tell(self, snapshot: WorkflowSnapshot) -> None:
        """Have it told now, where the conversation is this session's."""
        if snapshot.session_id == self._session_id:
            self._look()

    async def pending(self) -> Sequence[Notice]:
        """What the conversation has not been told, oldest first."""
        found: list[Notice] = []
        for run_id, data in await self._files().notices(self._session_id):
            try:
                notice = await self._notice(run_id, data)
            except (msgspec.DecodeError, WorkflowInputError, StorageError) as error:
                logger.warning("the notice of run %s cannot be told: %s", run_id, error)
                continue
            if notice is not None:
                found.append(notice)
        return found

    async def _notice(self, run_id: str, data: bytes) -> Notice | None:
        """None while somebody runs it."""
        kept = msgspec.json.decode(data, type=_Kept)
        if kept.text is not None:
            return Notice(kept.id, kept.text)
        look = await self._files().look(run_id)
        if look is None or (look.snapshot is None and not look.is_held):
            # Its files were deleted, or its launch was cut off before it was anything.
            await self._files().remove_notice(self._session_id, run_id, data)
            return None
        summary = await run_summary(self._files(), run_id)
        if summary.is_alive or summary.snapshot is None:
            return None
        if summary.status == "interrupted":
            return Notice(kept.id, _cut_off(summary.snapshot))
        # It has ended since that was read; or the disk was full, or its process died before this was written.
        result = await recorded_result(self._files(), summary.snapshot)
        return Notice(kept.id, _text(summary.snapshot, result))

    async def delivered(self, id: str) -> None:
        """Forget it: the log has it. A later attempt of the same run may have another one by now, which stays."""
        run_id = id.rpartition("-")[0]
        data = dict(await self._files().notices(self._session_id)).get(run_id)
        if data is not None and msgspec.json.decode(data, type=_Kept).id == id:
            await self._files().remove_notice(self._session_id, run_id, data)


def _id_of(snapshot: WorkflowSnapshot) -> str:
    return f"{snapshot.run_id}-{snapshot.attempt}"


def _cut_off(snapshot: WorkflowSnapshot) -> str:
    fields = {
        "workflow": snapshot.workflow,
        "summary": "the process that ran it ended before it did",
        "tokens": str(snapshot.usage.total_tokens),
        "resume": _resume_hint(snapshot.run_id),
    }
    return render_notification("workflow", snapshot.run_id, "interrupted", fields, None, None)


def _resume_hint(run_id: str) -> str:
    return f'Workflow(resume_from_run_id="{run_id}") goes on with it; what it has finished is not run again'


def _text(snapshot: WorkflowSnapshot, result: WorkflowResult) -> str:
    counts = result.counts
    fields = {
        "workflow": snapshot.workflow,
        "agents": ", ".join(f"{name} {count}" for name, count in counts.to_dict().items() if count) or "none",
        "tokens": f"{result.usage.total_tokens} ({result.total_usage.total_tokens} with earlier attempts)",
        "tool_uses": str(snapshot.tool_uses),
        "duration_ms": str(result.duration_ms),
        "output_file": result.output_file,
    }
    if result.cost_usd is not None:
        fields["cost_usd"] = f"{result.cost_usd:.4f}"
    if result.reason is not None:
        fields["reason"] = result.reason
    if result.reset_ms is not None:
        fields["reset_ms"] = str(result.reset_ms)
    if result.error is not None:
        fields["error"] = f"{result.error.code}: {result.error.message}"
    if result.failures:
        fields["failures"] = "\n".join(map(_failure, result.failures[:MAX_FAILURES]))
    if result.status not in ("completed", "completed_with_failures") or result.failures:
        fields["resume"] = _resume_hint(snapshot.run_id)
    value = None if result.value is None else encode_json(result.value).decode()
    return render_notification("workflow", snapshot.run_id, result.status, fields, value, result.output_file)


def _failure(failure: RunFailure) -> str:
    return f"- {failure.label or failure.where}: {failure.code}: {failure.message[:200]}"
