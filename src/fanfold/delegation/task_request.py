"""What a call of `task` asks for: its arguments, checked before anything starts (notes 5.7)."""

from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fanfold.contracts.messages import TASK, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import AgentStepSpec
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.orchestration.specs import parse_spec

MAX_TASKS = 32
_MOST = 10**9


class TaskItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: str
    description: str = ""
    prompt: str
    max_steps: int | None = None
    output_schema: Any = None
    background: bool | None = None


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tasks: tuple[TaskItem, ...]
    allow_partial_failure: bool | None = None
    timeout_ms: Annotated[int, Meta(le=_MOST)] | None = None
    min_success_count: int | None = None

    @property
    def is_background(self) -> bool:
        return bool(self.tasks[0].background)

    @property
    def needed(self) -> int:
        """How many of its tasks have to succeed for the call to do so."""
        if not self.allow_partial_failure:
            return len(self.tasks)
        return self.min_success_count or 1

    def specs(self, task_ids: list[str], parent_session_id: str) -> list[AgentStepSpec]:
        """Its tasks as steps.

        Raises:
            InvalidTaskError: what only a step is checked for, such as a schema that is none.
        """
        return [
            _spec(item, index, task_id, parent_session_id)
            for index, (item, task_id) in enumerate(zip(self.tasks, task_ids, strict=True))
        ]


class InvalidTaskError(UsageError):
    """Its text is the tool's answer."""

    code = "INVALID_ARGUMENT"


def parse_request(args: JsonObject) -> TaskRequest:
    """The arguments of one call, checked. A single task may stand for the list of it, as older callers write it.

    Raises:
        InvalidTaskError: worded for the model that asked.
    """
    if "tasks" not in args and ("prompt" in args or "agent" in args):
        item = {key: value for key, value in args.items() if key in TaskItem.__struct_fields__}
        args = {"tasks": [item], **{key: value for key, value in args.items() if key not in item}}
    try:
        request = msgspec.convert(args, TaskRequest)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        place = place.strip("`").removeprefix("$").removeprefix(".")
        raise InvalidTaskError(f"Invalid task parameters: {place + ': ' if place else ''}{reason}") from None
    fault = _fault(request)
    if fault is not None:
        raise InvalidTaskError(fault)
    return request


def _fault(request: TaskRequest) -> str | None:
    count = len(request.tasks)
    if count == 0:
        return "task requires at least 1 task"
    if count > MAX_TASKS:
        return f"task accepts at most {MAX_TASKS} tasks"
    behind = [number for number, item in enumerate(request.tasks, 1) if item.background]
    if behind and count > 1:
        return (
            f"task {behind[0]} sets background=true, which only a call with a single task can; call task for it alone"
        )
    if request.timeout_ms is not None and request.timeout_ms < 1:
        return "task timeout_ms must be at least 1"
    if request.min_success_count is None:
        return None
    if not request.allow_partial_failure:
        return "task min_success_count requires allow_partial_failure=true"
    if not 1 <= request.min_success_count <= count:
        return f"task min_success_count must be between 1 and the task count ({count})"
    return None


def _spec(item: TaskItem, index: int, task_id: str, parent_session_id: str) -> AgentStepSpec:
    step = AgentStepSpec(
        task_id=task_id,
        agent=item.agent,
        description=item.description,
        prompt=item.prompt,
        max_steps=item.max_steps,
        output_schema=item.output_schema,
        parent_session_id=parent_session_id,
    )
    try:
        return parse_spec(step)
    except InvalidSpecError as error:
        place = f"tasks[{index}]" + (f".{error.field}" if error.field else "")
        raise InvalidTaskError(f"Invalid task parameters: {place}: {error.reason}") from None


# What the tool checks itself, and words better, is no part of the schema: there the gate would come first.
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "tasks": {
            "type": "array",
            "description": f"1 to {MAX_TASKS} tasks; they run at the same time",
            "items": {
                "type": "object",
                "properties": {
                    "agent": {"type": "string", "description": "name of the agent that does it"},
                    "description": {"type": "string", "description": "a label of a few words"},
                    "prompt": {
                        "type": "string",
                        "description": "all that the agent needs to know: it sees nothing of this conversation",
                    },
                    "max_steps": {"type": "integer", "description": "most tool rounds; left out: the agent's own"},
                    "output_schema": {"description": "JSON Schema that the result has to match"},
                    "background": {
                        "type": "boolean",
                        "description": "do not wait: a message tells of its end; only for the single task of a call",
                    },
                },
                "required": ["agent", "prompt"],
            },
        },
        "allow_partial_failure": {
            "type": "boolean",
            "description": "true: one success is enough; else each task has to succeed",
        },
        "timeout_ms": {"type": "integer", "description": "then take what there is, and cancel the rest"},
        "min_success_count": {
            "type": "integer",
            "description": "with allow_partial_failure: stop at so many successes, and cancel the rest",
        },
    },
}


@lru_cache(maxsize=64)
def task_spec(agents: str) -> ToolSpec:
    """The tool as a model is told of it; `agents` lists them."""
    return ToolSpec(
        name=TASK,
        description="Have agents do tasks of their own, and get their final answers. Give several tasks in one call "
        f"to have them done at the same time. Agents:\n{agents}",
        parameters=PARAMETERS,
        is_read_only=True,  # what its agents do is asked about at each of their calls
        is_parallel_safe=True,
    )
