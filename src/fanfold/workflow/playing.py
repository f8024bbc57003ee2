"""How a script is played: one that is trusted here, one that a model wrote in the sandbox, with the same places."""

import msgspec

from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import WorkflowInputError
from fanfold.kernel.workflow_meta import json_fault, parse_args
from fanfold.workflow.context import WorkflowContext, play
from fanfold.workflow.host import RunHost
from fanfold.workflow.lanes import Lane
from fanfold.workflow.registry import LaunchGate, Registry, require_admission
from fanfold.workflow.sandbox import check_inline, run_inline
from fanfold.workflow.scripts import Script, ScriptFunction, function_of


class ReadyScript(msgspec.Struct, frozen=True):
    script: Script
    function: ScriptFunction | None
    """None for one that runs in the sandbox."""


async def ready(script: Script) -> ReadyScript:
    """The script, checked, its module executed.

    Raises:
        WorkflowInputError: `bad_script`.
    """
    if script.kind == "inline" and script.text is not None:
        await check_inline(script.text)
        return ReadyScript(script, None)
    return ReadyScript(script, function_of(script))


async def play_script(what: ReadyScript, args: JsonObject, host: RunHost, root: Lane) -> JsonValue:
    """What the script returns. Raises what it raises, or `SandboxError`."""
    script = what.script
    at_once = host.limits.concurrency
    if what.function is None:
        return await run_inline(
            script.text or "",
            args,
            host,
            entry=script.entry,
            seed=host.seed,
            first_ms=host.now_ms(),
            name=script.meta.name,
            root=root,
            width=16 * at_once,  # so that it asks for many while it is told of many: each way there and back costs
        )
    # Not more branches than that: their agents would only wait for their places.
    ctx = WorkflowContext(host, args, root, file_name=script.file_name, width=at_once)
    value: JsonValue = await play(what.function, ctx, root)
    return value


class Nested:
    """`ctx.workflow`: the same gate as a launch, one level deep, on the limits of the run around it (D11)."""

    def __init__(self, registry: Registry, gate: LaunchGate, limits: WorkflowLimits) -> None:
        self._registry = registry
        self._gate = gate
        self._limits = limits

    async def __call__(self, name: object, args: object, host: RunHost, where: str, phase: str | None) -> JsonValue:
        script = self._registry.script(name)
        given = parse_args(args, script.meta, self._limits.max_args_bytes)
        require_admission(self._registry, self._gate, script, was_asked=False)
        value = await play_script(await ready(script), given, host, Lane(where, phase))
        fault = json_fault(value)
        if fault is not None:
            raise WorkflowInputError("not_serialisable", f"what workflow '{name}' returned is not JSON: {fault}")
        return value
