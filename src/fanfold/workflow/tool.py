"""`Workflow`: the tool by which a model starts a whole team with one call, and is told of its end later."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import WORKFLOW, ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import WorkflowInfo
from fanfold.errors import LifecycleError, WorkflowInputError
from fanfold.kernel.call_ids import HOST_PREFIX
from fanfold.kernel.plain_text import plain
from fanfold.protocols import ToolScope

if TYPE_CHECKING:
    from fanfold.workflow.runtime import WorkflowRuntime

_DESCRIPTION = """\
Start a workflow: a script that directs many agents in parallel, in the background. Use it when the user asks for one \
or when the task fits one of the listed workflows and is worth a team of agents; do small things yourself. One call \
starts the whole run and answers at once with its run_id; the result comes later, by itself, as one task_notification \
message. Do not wait or poll for it. To go on with a run that was stopped, paused, cut off or has failed agents, give \
resume_from_run_id: what it has finished is not run again.

Workflows:
"""
_SCRIPT_HELP = """\
A Python script instead of a name, run in a sandbox without files, network or imports. It must have \
META = {"name": ..., "description": ...} and one `async def main(ctx, args)`, which returns JSON. It has \
`await ctx.agent(prompt, schema=, label=, phase=, agent_type=)` (the agent's text, or an object that matches the JSON \
Schema; raises when it fails), `await ctx.parallel([lambda: ..., ...])` (a failed slot is None), \
`await ctx.pipeline(items, stage, ...)` (stage(value, item, index)), `ctx.phase(title)`, `ctx.log(text)`, \
`await ctx.workflow(name, args)`, `ctx.budget`. Agents do all the work on files; the script only directs them."""
_DESCRIPTION_CHARACTERS = 400
_SHARED_SPECS = 32


class WorkflowTool:
    __slots__ = ("_runtime",)

    def __init__(self, runtime: "Callable[[], WorkflowRuntime]") -> None:
        self._runtime = runtime

    @property
    def spec(self) -> ToolSpec:
        """With the workflows that there are now."""
        runtime = self._runtime()
        return workflow_spec(runtime.available(), takes_inline=runtime.takes_inline)

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        is_hosts = scope.call_id.startswith(HOST_PREFIX)  # nobody makes that call again, or waits to be told
        try:
            launch = await self._runtime().launch_once_async(
                None if is_hosts else scope.idempotency_key,
                args.get("name"),
                args.get("args"),
                script=args.get("script"),
                resume_from_run_id=args.get("resume_from_run_id"),
                events=scope.emit,
                notify=not is_hosts,
            )
        except (WorkflowInputError, LifecycleError) as error:
            return ToolOutput(output=f"Error ({error.code}): {error}", exit_code=1, metadata={"code": error.code})
        told: dict[str, Any] = launch.to_dict()
        return ToolOutput(output=encode_json(told).decode(), metadata=told)


def workflow_spec(there: Sequence[WorkflowInfo], *, takes_inline: bool) -> ToolSpec:
    """The tool as a model is told of it, with the workflows that are `there`."""
    lines = [f"- {info.name}: {_brief(info)}" for info in there if info.problem is None]
    return _spec(plain(_DESCRIPTION + ("\n".join(lines) or "(none)")), takes_inline=takes_inline)


@lru_cache(maxsize=_SHARED_SPECS)
def _spec(description: str, *, takes_inline: bool) -> ToolSpec:
    """One for all sessions that are told the same."""
    properties: JsonObject = {
        "name": {"type": "string", "description": "Which workflow."},
        "args": {
            "type": ["object", "string"],
            "description": "Its arguments, an object; see the list for what it takes.",
        },
        "resume_from_run_id": {"type": "string", "description": "Go on with this run instead of starting a new one."},
    }
    if takes_inline:
        properties["script"] = {"type": "string", "description": _SCRIPT_HELP}
    return ToolSpec(
        name=WORKFLOW,
        description=description,
        parameters={"type": "object", "properties": properties, "additionalProperties": False},
        is_read_only=True,  # it changes nothing itself: what its agents do is judged by their own calls
    )


def _brief(info: WorkflowInfo) -> str:
    text = " ".join(f"{info.description} {info.when_to_use or ''}".split())
    if len(text) > _DESCRIPTION_CHARACTERS:
        text = f"{text[: _DESCRIPTION_CHARACTERS - 1]}…"
    if info.args_schema is None:
        return text
    schema = msgspec.json.encode(info.args_schema).decode()
    return f"{text} args: {schema}" if len(schema) <= 2 * _DESCRIPTION_CHARACTERS else f"{text} args: see its page"
