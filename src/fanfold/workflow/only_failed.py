"""Only what failed: where a resume may run agents that is to leave everything else as it is recorded.

Those are the lanes in which something failed or was cut off, with all that lies in them, and the lanes around them,
which go on with what comes out.
"""

import re
from collections.abc import Callable

from fanfold.kernel.run_view import RunJournalView

_CALL = re.compile(r"#\d+$")
_STAGE = re.compile(r"(/\d+\.\d+)\.\d+$")
"""A stage belongs to its item: when one fails, the next ones follow from it."""


def failed_lanes(view: RunJournalView) -> Callable[[str], bool]:
    """Whether an agent may run at a place."""
    lanes = {_item_of(entry.path) for entry in view.entries.values() if entry.is_open and not entry.is_answer}

    def may_run(where: str) -> bool:
        lane = _CALL.sub("", where)
        return any(_is_within(lane, failed) or _is_within(failed, lane) for failed in lanes)

    return may_run


def _item_of(path: str) -> str:
    return _STAGE.sub(r"\1", _CALL.sub("", path))


def _is_within(lane: str, outer: str) -> bool:
    return not outer or lane == outer or lane.startswith((f"{outer}/", f"{outer}.", f"{outer}:"))
