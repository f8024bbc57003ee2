"""Slash commands: prompts that the session itself answers, without a model (notes 9.6).

A prompt is a command when, trimmed, it is `/`, a name of `[a-z][a-z0-9_-]*`, and then its end or white space before
arguments. So `/etc/passwd is missing` and `/Help` are prompts for the model, while `/halp` is an unknown command.
"""

import inspect
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from fanfold.contracts.record import JsonObject, Record
from fanfold.errors import UsageError
from fanfold.foreign import call_foreign
from fanfold.governance.callback_threads import CallbackThreads, NoAnswer, has_raised, is_async
from fanfold.kernel.plain_text import plain
from fanfold.nearest import did_you_mean
from fanfold.protocols import ToolServer

NAME = r"[a-z][a-z0-9_-]{0,63}"
_COMMAND = re.compile(rf"(?s)/({NAME})(?:\s+(.*))?")


class CommandActions(Protocol):
    """What built-in commands do to their session. Each is called within the command's own turn at the conversation."""

    async def compact(self) -> tuple[int, int]:
        """Replace the older messages by a summary; the numbers of messages before and after."""
        ...

    async def clear(self) -> None:
        """Let the next prompt begin a new conversation."""
        ...

    async def set_model(self, reference: str) -> None:
        """Use the model from the next prompt on.

        Raises:
            ConfigError: there is none of that name, or it cannot be used; the model stays as it was.
        """
        ...

    def history(self) -> Sequence[JsonObject]:
        """The conversation, as `Session.history` tells it."""
        ...

    def servers(self) -> Sequence[ToolServer]: ...


class CommandContext(Record, frozen=True, kw_only=True):
    """What a command's handler may know; its keys are the fields without `actions`."""

    session_id: str
    workspace: str
    model: str
    """`provider/model-id`"""
    history_len: int
    total_tokens: int
    total_cost: float | None = None
    """US dollars; None where the prices of the model are not known."""
    tool_names: tuple[str, ...] = ()
    actions: CommandActions

    def keys(self) -> list[str]:
        return [name for name in Record.keys(self) if name != "actions"]


CommandHandler = Callable[[str, CommandContext], object]
"""Gets what stands behind the command's name and the context; returns the text to answer with, or an awaitable of it.
Plain functions are called in a thread of their own, `async def` ones on the session's loop."""


class CommandInfo(Record, frozen=True, kw_only=True):
    name: str
    """Without its slash."""
    description: str
    usage: str


CommandInfos = list[CommandInfo]


class _Command(msgspec.Struct, frozen=True, eq=False):
    info: CommandInfo
    handler: CommandHandler


class CommandRegistry:
    """The commands of one session; registering is for any thread."""

    def __init__(self) -> None:
        self._commands: dict[str, _Command] = {}
        self._lock = threading.Lock()
        self._threads = CallbackThreads()

    def register(self, name: str, description: str, handler: CommandHandler, usage: str | None = None) -> None:
        """Answer `/name` with what `handler` returns.

        Raises:
            UsageError: a name that is none or taken, or a handler that cannot be called.
        """
        if not isinstance(name, str) or re.fullmatch(NAME, name) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a command's name is a small letter, then small letters, digits, - or _; got {name!r}")
        if not callable(handler):
            raise UsageError(f"command '/{name}': handler must be a function of (args, context), got {handler!r}")
        info = CommandInfo(name=name, description=str(description), usage=usage or f"/{name}")
        with self._lock:
            if name in self._commands:
                raise UsageError(f"there is a command '/{name}' already; take another name")
            self._commands = {**self._commands, name: _Command(info, handler)}

    def list(self) -> CommandInfos:
        """All commands, by name."""
        return [command.info for _, command in sorted(self._commands.items())]

    @staticmethod
    def parse(prompt: str) -> tuple[str, str] | None:
        """The name and the arguments of a prompt that is a command, known or not; None for one for the model."""
        found = _COMMAND.fullmatch(prompt.strip())
        return None if found is None else (found[1], (found[2] or "").strip())

    async def run(self, name: str, args: str, context: CommandContext) -> str:
        """The answer of `/name args`. What goes wrong in its handler is told in the answer, nothing is raised."""
        command = self._commands.get(name)
        if command is None:
            near = did_you_mean(f"/{name}", [f"/{known}" for known in self._commands])
            return f"Unknown command: /{name}{near}\nType /help for what each of them does."
        return await call_foreign(
            self._answer(command, args, context), lambda error: _failure(name, f"it {has_raised(error).reason}")
        )

    async def _answer(self, command: _Command, args: str, context: CommandContext) -> str:
        handler = command.handler
        answer = (
            handler(args, context) if is_async(handler) else await self._threads.call(partial(handler, args, context))
        )
        if isinstance(answer, NoAnswer):
            return _failure(command.info.name, f"it {answer.reason}")
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, str):
            return _failure(command.info.name, f"it gave {type(answer).__name__}, not text")
        return plain(answer)


def _failure(name: str, why: str) -> str:
    return f"Command /{name} failed: {why}"
