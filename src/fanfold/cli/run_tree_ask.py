"""What an agent of a workflow run waits for, and the command that answers it."""

import shlex
from typing import Literal, NamedTuple, cast

from fanfold.cli.event_fields import text_of
from fanfold.contracts.record import JsonObject


class Ask(NamedTuple):
    """What an agent waits for."""

    verb: Literal["approve", "answer"]
    id: str
    """What the command of that name takes."""
    about: str

    @property
    def command(self) -> str:
        """The one that answers it; of an approval also `deny` does."""
        return f"fanfold {self.verb} {shlex.quote(self.id)}" + (" TEXT" if self.verb == "answer" else " (or deny)")


def ask_of(payload: JsonObject) -> Ask:
    """Of a `workflow_waiting`."""
    id = text_of(payload.get("id"))
    if payload.get("waits_for") == "approval":
        return Ask("approve", id, f"{text_of(payload.get('tool'))} {text_of(payload.get('args'))}")
    options: object = payload.get("options")
    listed = cast("list[object]", options) if isinstance(options, list) else []
    numbered = ", ".join(f"{number}. {text_of(option)}" for number, option in enumerate(listed, 1))
    return Ask("answer", id, text_of(payload.get("question")) + (f" ({numbered})" if numbered else ""))
