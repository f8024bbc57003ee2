"""The work behind `fanfold runs delete` and `prune`: the question, the deletion, and what it has freed."""

from collections.abc import Sequence

import msgspec

from fanfold.cli.ask import ask_yes_no
from fanfold.cli.console import Console
from fanfold.contracts.record import JsonObject
from fanfold.errors import UsageError, WorkflowInputError
from fanfold.kernel.counted import counted
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.upkeep import remove_run


class Deleted(msgspec.Struct):
    """What came of a deletion."""

    runs: list[str]
    left: dict[str, WorkflowInputError]
    """Refused, by run id: somebody runs them by now, say."""
    freed_bytes: int = 0

    def to_json(self) -> JsonObject:
        return {
            "schema": "fanfold/runs-deleted/v1",
            "runs": self.runs,
            "left": left_json(self.left),
            "freed_bytes": self.freed_bytes,
        }


async def is_wanted(console: Console, run_ids: Sequence[str]) -> bool:
    """What a person says. Raises UsageError: nobody can be asked here."""
    if not console.may_ask:
        raise UsageError("nobody can be asked here whether to delete; --yes says so")
    named = run_ids[0] if len(run_ids) == 1 else counted(len(run_ids), "run")
    return await ask_yes_no(console, f"Delete {named}, with all that its agents have answered?")


async def delete_runs(console: Console, files: WorkflowFiles, run_ids: Sequence[str], *, untold: bool) -> Deleted:
    """Delete them one by one, each as a whole. Raises LogWriteError: the file system refuses."""
    deleted = Deleted(runs=[], left={})
    try:
        for run_id in run_ids:
            try:
                deleted.freed_bytes += await remove_run(files, run_id, untold=untold)
            except WorkflowInputError as error:
                deleted.left[run_id] = error
            else:
                deleted.runs.append(run_id)
                console.say(f"deleted {run_id}")
    finally:
        # Though nothing was deleted: of runs that were before, while somebody held one, there may be something left.
        deleted.freed_bytes += await _swept(files)
    return deleted


async def _swept(files: WorkflowFiles) -> int:
    try:
        return await files.sweep_blobs()
    except WorkflowInputError as error:
        raise error.with_hint(
            "the runs that could be are deleted; what no other run needs of their large values is not"
        ) from None


def left_json(left: dict[str, WorkflowInputError]) -> list[JsonObject]:
    return [{"run_id": run_id, "code": error.code, "message": str(error)} for run_id, error in left.items()]


def size_text(count: int) -> str:
    """`940 bytes`, `3.2 kB`, `1.5 GB`."""
    if count < 1_000:
        return "1 byte" if count == 1 else f"{count} bytes"
    size, unit = count / 1_000, "kB"
    for larger in ("MB", "GB", "TB"):
        if size < 999.95:
            break
        size, unit = size / 1_000, larger
    return f"{size:.1f} {unit}"
