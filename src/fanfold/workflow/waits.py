"""Waits: which agents wait for a person, told of while they do.

Of one that waits no longer than `SETTLED_SECONDS`, because a rule answers or because nobody can be asked and it ends,
nothing is told.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.steps import child_session_id
from fanfold.workflow.host import PlacedCall
from fanfold.workflow.progress import Progress

SETTLED_SECONDS = 0.1
SHOWN_CHARACTERS = 1_000
"""Of a call's arguments or a question: whoever answers reads all of it elsewhere."""
_CHILD_PREFIX = child_session_id("")


class Waits:
    """Hears of the agents of the run `run_id`, on its loop."""

    def __init__(self, run_id: str, progress: Progress) -> None:
        self._run_id = run_id
        self._progress = progress
        self._new: dict[str, tuple[PlacedCall, AgentEvent]] = {}
        """By the id of what waits: of those nobody was told yet."""
        self._told: dict[str, PlacedCall] = {}
        self._is_telling_soon = False

    def hear(self, item: AgentEvent, placed: PlacedCall) -> None:
        told = item.payload
        id = str(told.get("tool_id") or told.get("question_id"))
        if item.type in ("confirmation_required", "user_question"):
            self._new[id] = (placed, item)
            if not self._is_telling_soon:
                self._is_telling_soon = True
                asyncio.get_running_loop().call_later(SETTLED_SECONDS, self._tell)
        elif self._new.pop(id, None) is None and self._told.pop(id, None) is not None:
            self._say("workflow_waited", id, placed, {})

    def end(self, placed: PlacedCall) -> None:
        """The agent has ended, and waits for nobody."""
        if self._new or self._told:
            self._new = {id: each for id, each in self._new.items() if each[0] is not placed}
            self._told = {id: each for id, each in self._told.items() if each is not placed}

    def _tell(self) -> None:
        self._is_telling_soon = False
        new, self._new = self._new, {}
        for id, (placed, item) in new.items():
            self._told[id] = placed
            self._say("workflow_waiting", id, placed, _about(item.payload))

    def _say(self, kind: str, id: str, placed: PlacedCall, more: Mapping[str, Any]) -> None:
        own = id.removeprefix(_CHILD_PREFIX).removeprefix(f"{self._run_id}-")
        told = {"where": placed.where, "label": placed.title, "phase": placed.phase, "id": f"{self._run_id}/{own}"}
        self._progress.tell("task_progress", type=kind, **told, **more)


def _about(asked: dict[str, Any]) -> dict[str, Any]:
    if "question" in asked:
        options = [str(each)[:SHOWN_CHARACTERS] for each in asked["options"]]
        return {"waits_for": "answer", "question": asked["question"][:SHOWN_CHARACTERS], "options": options}
    args = asked["args"]
    text = args if isinstance(args, str) else encode_json(args).decode()
    return {"waits_for": "approval", "tool": asked["tool_name"], "args": text[:SHOWN_CHARACTERS]}
