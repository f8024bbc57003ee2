"""`update_plan`: the model's own list of steps, told to whoever watches the session."""

from dataclasses import dataclass

from fanfold.contracts.events import event
from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import ToolScope
from fanfold.tools.refusal import ToolRefusal, failed_output

MAX_STEPS = 256
MAX_STEP_CHARACTERS = 480
STATUSES = ("pending", "in_progress", "completed", "failed", "skipped", "cancelled")
_ALIASES = {
    "todo": "pending",
    "open": "pending",
    "queued": "pending",
    "not_started": "pending",
    "active": "in_progress",
    "doing": "in_progress",
    "running": "in_progress",
    "started": "in_progress",
    "done": "completed",
    "complete": "completed",
    "finished": "completed",
    "error": "failed",
    "errored": "failed",
    "skip": "skipped",
    "canceled": "cancelled",
    "aborted": "cancelled",
}

SPEC = ToolSpec(
    name="update_plan",
    description="Replace your plan, the steps that the user sees. Call it when the status of a step changes.",
    parameters={
        "type": "object",
        "properties": {
            "plan": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_STEPS,
                "items": {
                    "type": "object",
                    "properties": {
                        "step": {"type": "string"},
                        "status": {"type": "string", "description": ", ".join(STATUSES)},
                        "id": {"type": "string"},
                    },
                    "required": ["step", "status"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["plan"],
        "additionalProperties": False,
    },
    is_read_only=True,
)


@dataclass(frozen=True, slots=True)
class PlanTool:
    """Keeps nothing: the newest call's arguments are the plan, and they are in the log."""

    spec: ToolSpec = SPEC

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        """Emits `task_updated` with `tasks`: a list of `{id, step, status}`."""
        try:
            tasks = [_task(number, item) for number, item in enumerate(args["plan"], 1)]
            _refuse_same_ids(tasks)
        except ToolRefusal as error:
            return failed_output("update_plan", error)
        scope.emit(event("task_updated", session_id=scope.session_id, tasks=tasks))
        done = sum(task["status"] == "completed" for task in tasks)
        return ToolOutput(output=f"Plan updated: {len(tasks)} step(s), {done} completed")


def _task(number: int, item: JsonObject) -> JsonObject:
    word = item["status"].strip().lower().replace(" ", "_").replace("-", "_")
    status = _ALIASES.get(word, word)
    if status not in STATUSES:
        raise ToolRefusal(f"step {number} has the unknown status '{item['status']}'; use one of: {', '.join(STATUSES)}")
    return {
        "id": item.get("id") or f"plan-{number}",
        "step": item["step"][:MAX_STEP_CHARACTERS],
        "status": status,
    }


def _refuse_same_ids(tasks: list[JsonObject]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task["id"] in seen:
            raise ToolRefusal(f"two steps have the id '{task['id']}'; ids must be unique")
        seen.add(task["id"])
