"""What a user may do about an error that says nothing of it itself."""

import shlex

from fanfold.cli.endings import StoppedBySignal
from fanfold.errors import (
    AlreadyActiveError,
    CheckpointRefusedError,
    FanfoldError,
    FencedError,
    LogWriteError,
    StepChangedError,
    StoreConflictError,
)


def hint_of(error: BaseException) -> str | None:
    if isinstance(error, FanfoldError | StoppedBySignal):
        return error.hint or _by_kind(error)
    return None


def _by_kind(error: BaseException) -> str | None:
    match error:
        case AlreadyActiveError():
            return f"wait until it has ended, or stop it; what it has so far: {_checkpoints('show', error.name)}"
        case CheckpointRefusedError():
            again = _checkpoints("delete", f"workflow/{error.workflow_id}")
            return f"nothing was changed; a checkpoint of a newer fanfold needs that one; to begin anew: {again}"
        case StepChangedError():
            return "see what changed with --plan; without --strict they run again"
        case FencedError() | StoreConflictError():
            seen = _checkpoints("show", error.name)
            return f"somebody else runs it now, or its files were moved; see {seen}, then run the same command again"
        case LogWriteError(action="read"):
            return "nothing was changed; let it be read, or move it aside"
        case LogWriteError():
            return (
                "make room there, or let it be written; what was recorded before is kept, so the same command goes on"
            )
        case _:
            return None


def _checkpoints(action: str, name: str) -> str:
    return f"fanfold checkpoints {action} {shlex.quote(name.partition('/')[2])}"
