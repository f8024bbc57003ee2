"""A host that answers a script's agents by what they are asked, for scripts that run here or in the sandbox."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from fanfold.errors import WorkflowAgentError
from fanfold.workflow.context import WorkflowContext, play
from fanfold.workflow.lanes import Lane
from fanfold.workflow.registry import shipped_scripts
from fanfold.workflow.sandbox import run_inline
from fanfold.workflow.script_host import SlotFailure
from fanfold.workflow.scripts import function_of

FIRST_MS = 1_700_000_000_000
MODES = ("host", "sandbox")
Args = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    prompt: str
    where: str
    phase: str | None
    options: Mapping[str, Any]

    @property
    def label(self) -> str:
        return str(self.options["label"])


class Failed(Exception):
    """Raised by `answer`: this agent fails."""


@dataclass
class FakeHost:
    """Notes all that a script asks; `answer` says what each agent answers."""

    answer: Callable[[Asked], Any]
    asked: list[Asked] = field(default_factory=list[Asked])
    logged: list[str] = field(default_factory=list[str])
    phases: list[str] = field(default_factory=list[str])
    slots: list[SlotFailure] = field(default_factory=list[SlotFailure])
    max_items: int = 4_096

    def labelled(self, start: str) -> list[Asked]:
        return sorted((each for each in self.asked if each.label.startswith(start)), key=lambda each: each.label)

    async def settled(self) -> None:
        pass

    async def agent(
        self, where: str, phase: str | None, prompt: object, options: Mapping[str, Any], *, settles: bool = False
    ) -> Any:
        asked = Asked(str(prompt), where, options.get("phase") or phase, options)
        self.asked.append(asked)
        await asyncio.sleep(0)
        try:
            return self.answer(asked)
        except Failed as error:
            raise WorkflowAgentError(label=asked.label, where=where, reason=str(error)) from error

    async def workflow(self, where: str, phase: str | None, name: object, args: object) -> Any:
        raise NotImplementedError

    def phase(self, title: object) -> str:
        self.phases.append(str(title))
        return str(title)

    def log(self, message: object) -> None:
        self.logged.append(str(message))

    def slot_failed(self, failure: SlotFailure) -> None:
        self.slots.append(failure)

    def check_items(self, verb: str, count: int) -> None:
        assert count <= self.max_items, verb

    def now_ms(self) -> int:
        return FIRST_MS

    def random(self, where: str) -> float:
        return 0.5

    def uuid(self, where: str) -> str:
        return "00000000-0000-8000-8000-000000000000"

    def budget(self) -> tuple[int | None, int]:
        return None, 0


async def play_shipped(name: str, args: Args, host: FakeHost, mode: str = "host") -> Any:
    """What the shipped workflow returns, played here or in the sandbox."""
    script = shipped_scripts()[name]
    if mode == "host":
        root = Lane()
        ctx = WorkflowContext(host, args, root, file_name=script.file_name, width=8)
        return await play(function_of(script), ctx, root)
    return await run_inline(
        script.text or "", args, host, entry=script.entry, seed="seed", first_ms=FIRST_MS, name=name
    )


def played(name: str, args: Args, host: FakeHost, mode: str = "host") -> Any:
    """The same, from a test that is no coroutine."""
    return check(play_shipped(name, args, host, mode))


def check(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)
