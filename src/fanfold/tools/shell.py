"""`bash`: one command line, in the sandbox, or without one where the host allowed that."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import ToolScope
from fanfold.tools.artifacts import Capture
from fanfold.tools.guard import Guard, guard
from fanfold.tools.process_group import run_group
from fanfold.tools.refusal import ToolRefusal, failed_output
from fanfold.tools.sandbox import plain_environment, sandbox_fault, sandboxed
from fanfold.tools.workspace import Workspace

DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 600_000
TIMED_OUT = 124
"""Exit code of a command that ran out of time, as of coreutils' `timeout`."""

SPEC = ToolSpec(
    name="bash",
    description=(
        "Run a bash command in the workspace; gives stdout and stderr together. Normally sandboxed: no "
        "network, writes only in the workspace and /tmp. Nothing it starts outlives it."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1},
            "timeout": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_TIMEOUT_MS,
                "description": f"milliseconds, default {DEFAULT_TIMEOUT_MS}",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class BashTool:
    workspace: Workspace
    allow_unsandboxed: bool
    """Run commands directly where there is no sandbox; where there is one it is used."""
    bwrap: str = "bwrap"
    readable: tuple[Path, ...] = ()
    """Folders outside of the workspace that commands need, wherever they lie: its repository's."""
    spec: ToolSpec = SPEC

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        fault = await asyncio.to_thread(sandbox_fault, self.bwrap)
        if os.name != "posix" or (fault and not self.allow_unsandboxed):
            return ToolOutput(output=_refusal(fault), exit_code=1)
        shell = [shutil.which("bash") or "sh", "-c", args["command"]]
        environment = plain_environment(os.environ)
        try:
            if fault is not None:
                return await self._run(shell, environment, args)
            line, guarded = await asyncio.to_thread(_prepare, self.workspace, shell, self.readable, self.bwrap)
            try:
                answer = await self._run(line, {**environment, "TMPDIR": "/tmp"}, args)
            finally:
                # Also when cancelled, even twice: what is in the executor's hands runs, whoever stops waiting for it.
                work = asyncio.get_running_loop().run_in_executor(None, guarded.set_aside)
                notes = await asyncio.shield(work)
            return msgspec.structs.replace(answer, output="\n".join([answer.output, *notes]))
        except (ToolRefusal, OSError) as error:
            return failed_output("run the command", error)

    async def _run(self, argv: list[str], environment: Mapping[str, str], args: JsonObject) -> ToolOutput:
        timeout_ms: int = args.get("timeout", DEFAULT_TIMEOUT_MS)
        if "\0" in args["command"]:
            raise ToolRefusal("the command holds a NUL byte")
        with Capture(self.workspace) as capture:
            code = await run_group(
                argv,
                folder=self.workspace.root,
                environment=environment,
                timeout_ms=timeout_ms,
                hear=capture.write,
            )
            output, artifact = await asyncio.to_thread(capture.finish, SPEC.name)
        if code is None:
            output = _with_line(output, f"[Command timed out after {timeout_ms}ms]")
            return ToolOutput(output=output, exit_code=TIMED_OUT, artifact=artifact)
        code = 128 - code if code < 0 else code  # the shell's way to name a signal
        if code != 0:
            output = _with_line(output, f"[exit code {code}]")
        return ToolOutput(output=output or "[no output]", exit_code=code, artifact=artifact)


def _refusal(fault: str | None) -> str:
    if os.name != "posix":
        return "bash is refused: it needs a POSIX system"
    return (
        f"bash is refused: there is no sandbox ({fault}). Install bubblewrap, or set allow_unsandboxed_bash "
        "= true in the configuration or SessionOptions to run commands on this machine as they are"
    )


def _with_line(output: str, line: str) -> str:
    return output + ("\n" if output and not output.endswith("\n") else "") + line


def _prepare(workspace: Workspace, shell: list[str], readable: tuple[Path, ...], bwrap: str) -> tuple[list[str], Guard]:
    workspace.resolve(".a3s").mkdir(exist_ok=True)  # so that it can be guarded
    guarded = guard(workspace)
    home = Path(os.path.expanduser("~"))
    seen = (*guarded.paths, *readable)
    return sandboxed(workspace.root, shell, home=home, guarded=seen, bwrap=bwrap), guarded
