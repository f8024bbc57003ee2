"""A host for scripts in the sandbox and their twins here: notes what it is asked, in order, and answers by prompt."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fanfold.errors import WorkflowAgentError, WorkflowInputError
from fanfold.workflow.context import WorkflowContext, play
from fanfold.workflow.lanes import Lane
from fanfold.workflow.sandbox import SandboxLimits, run_inline
from fanfold.workflow.script_host import SlotFailure

FIRST_MS = 1_700_000_000_123
TIGHT = SandboxLimits(turn_seconds=1.0, total_seconds=3.0, memory_bytes=64_000_000)


def echo(prompt: str) -> Any:
    return f"re: {prompt}"


class NotingHost:
    """An agent whose prompt begins with `fail` fails; `answer` is what the others say, or raises."""

    max_items = 4_096

    def __init__(self, answer: Callable[[str], Any] = echo) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []
        self.agents: list[tuple[Any, ...]] = []
        self.logged: list[Any] = []
        self.failures: list[SlotFailure] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def settled(self) -> None:
        pass

    async def agent(
        self, where: str, phase: str | None, prompt: object, options: Mapping[str, Any], *, settles: bool = False
    ) -> Any:
        self.asked.append(("agent", where, phase, prompt, dict(options)))
        self.agents.append((where, phase, prompt))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            if not isinstance(prompt, str):
                raise WorkflowInputError("bad_call", "the prompt must be text")
            if prompt.startswith("fail"):
                raise WorkflowAgentError(label=prompt, where=where, reason="it was told to", agent_code="TOLD")
            given = self.answer(prompt)
            return await given if asyncio.iscoroutine(given) else given
        finally:
            self.in_flight -= 1

    async def workflow(self, where: str, phase: str | None, name: object, args: object) -> Any:
        self.asked.append(("workflow", where, phase, name, args))
        await asyncio.sleep(0)
        return {"name": name, "args": args}

    def phase(self, title: object) -> str:
        self.asked.append(("phase", title))
        if not isinstance(title, str):
            raise WorkflowInputError("bad_call", "a title is text")
        return title

    def log(self, message: object) -> None:
        self.logged.append(message)

    def slot_failed(self, failure: SlotFailure) -> None:
        self.failures.append(failure)

    def check_items(self, verb: str, count: int) -> None:
        if count > self.max_items:
            raise WorkflowInputError("fanout_limit", f"{verb}() was given {count} items")

    def now_ms(self) -> int:
        return FIRST_MS

    def random(self, where: str) -> float:
        return len(where) / 100

    def uuid(self, where: str) -> str:
        return f"uuid of {where}"

    def budget(self) -> tuple[int | None, int]:
        return 1_000, 10 * len(self.agents)


def module(body: str, top: str = "") -> str:
    """A script whose `main(ctx, args)` has that body; the body begins in line 3 behind the lines of `top`."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"{top}META = {{}}\nasync def main(ctx, args):\n{lines}\n"


async def in_sandbox(
    script: str,
    host: NotingHost,
    args: dict[str, Any] | None = None,
    *,
    limits: SandboxLimits | None = None,
    width: int = 8,
    root: Lane | None = None,
) -> Any:
    return await run_inline(
        script,
        args or {},
        host,
        entry="main",
        seed="seed",
        first_ms=FIRST_MS,
        name="demo",
        limits=limits,
        width=width,
        root=root,
    )


async def here(
    script: str, host: NotingHost, args: dict[str, Any] | None = None, *, width: int = 8, root: Lane | None = None
) -> Any:
    """The same text, as a script that is trusted."""
    namespace: dict[str, Any] = {}
    exec(compile(script, "<workflow demo>", "exec"), namespace)
    root = root or Lane()
    ctx = WorkflowContext(host, args or {}, root, file_name="<workflow demo>", width=width)
    return await play(namespace["main"], ctx, root)


def ran(body: str, host: NotingHost | None = None, **options: Any) -> Any:
    """What a script of that body returns in the sandbox."""
    return asyncio.run(in_sandbox(module(body), host or NotingHost(), **options))
