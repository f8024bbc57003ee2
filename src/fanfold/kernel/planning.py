"""Plans: when one is made, what a model is asked for, and how its answer is read, shown and told.

With `planning_mode="auto"` a plan is made for a prompt that itself lists what to do, and for no other: so everybody can
say beforehand how many model calls a prompt costs. It lists when, outside of fenced blocks and quotes, it has

* lines numbered 1, 2, ... in this order (`1.`, `2)`, `Step 3:`), at least two of them, or
* three bulleted lines (all `-`, all `*` or all `•`), with nothing but blank and indented lines between them,

each of at least two words. One model call too many is all that a wrong guess costs.
"""

import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from fanfold.contracts.record import JsonObject
from fanfold.kernel.plain_text import plain

PlanningMode = Literal["auto", "enabled", "disabled"]

MAX_STEPS = 12
MAX_STEP_CHARACTERS = 480
NUMBERED_LINES = 2
BULLETED_LINES = 3

PLANNING_PROMPT = (
    "You plan work and do none of it. Break the user's request into the steps that it needs, in the order in which "
    f"they have to be done: as few as will do, at most {MAX_STEPS}. Each step is one short sentence that says what to "
    "do and how one sees that it is done. Add nothing that the request does not ask for. Reply with JSON only."
)
PLAN_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_STEPS,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_STEP_CHARACTERS},
        }
    },
    "required": ["steps"],
    "additionalProperties": False,
}

_FENCE = re.compile(r" {0,3}(```|~~~)")
_NUMBERED = re.compile(r"(?i) {0,3}(?:(\d{1,2})[.)]|step\s+(\d{1,2})[.:)])\s+(\S.*)")
_BULLETED = re.compile(r" {0,3}([-*•])\s+(\S.*)")


class Plan(msgspec.Struct, frozen=True):
    steps: tuple[str, ...]

    @property
    def tasks(self) -> list[JsonObject]:
        """As `task_updated` tells them: what `update_plan` would write, none of it begun."""
        return [
            {"id": f"plan-{number}", "step": step, "status": "pending"} for number, step in enumerate(self.steps, 1)
        ]


def planning_mode(mode: PlanningMode | None, planning: bool | None) -> PlanningMode:
    """What the two options of a session mean together: `mode` wins (seed 002)."""
    if mode is not None:
        return mode
    if planning is None:
        return "auto"
    return "enabled" if planning else "disabled"


def wants_plan(mode: PlanningMode, prompt: str) -> bool:
    return mode == "enabled" or (mode == "auto" and lists_several_steps(prompt))


def lists_several_steps(prompt: str) -> bool:
    """Whether `prompt` is a list of things to do; the rule stands at the head of this module."""
    numbers = 0
    mark, bullets = "", 0
    for line in _own_lines(prompt):
        if (numbered := _NUMBERED.match(line)) and _says_something(numbered[3]):
            number = int(numbered[1] or numbered[2])
            numbers = number if number in (1, numbers + 1) else 0
        bulleted = _BULLETED.match(line)
        if bulleted is not None and _says_something(bulleted[2]):
            bullets = bullets + 1 if bulleted[1] == mark else 1
            mark = bulleted[1]
        elif line[:1].strip():
            mark, bullets = "", 0
        if numbers >= NUMBERED_LINES or bullets >= BULLETED_LINES:
            return True
    return False


def _says_something(item: str) -> bool:
    """More than a name, as in a list of data or of answers to choose from."""
    return len(item.split()) > 1


def _own_lines(prompt: str) -> Sequence[str]:
    """The lines in the prompt's own voice: not what is pasted into it as a fenced block, a quote or a diff."""
    lines: list[str] = []
    fence = ""
    for line in prompt.splitlines():
        if line.startswith("@@ "):
            return ()
        if found := _FENCE.match(line):
            fence = "" if fence == found[1] else fence or found[1]
        elif not fence and not line.startswith(">"):
            lines.append(line)
    return lines


def read_plan(answer: object) -> Plan | None:
    """The plan in a model's answer, its steps trimmed and cut; None where there is none."""
    steps = cast("JsonObject", answer).get("steps") if isinstance(answer, dict) else None
    if not isinstance(steps, list):
        return None
    given = cast("list[object]", steps)
    texts = (" ".join(plain(step).split())[:MAX_STEP_CHARACTERS] for step in given if isinstance(step, str))
    kept = tuple(text for text in texts if text)[:MAX_STEPS]
    return Plan(kept) if kept else None


def shown_plan(plan: Plan) -> str:
    """The plan as the model that does the work is shown it, behind the prompt that it was made for."""
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(plan.steps, 1))
    return (
        f"## Plan\n{steps}\n\nWork through it in this order. Leave the plan where what you find shows it to be wrong, "
        "and say so."
    )
