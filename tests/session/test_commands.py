"""Slash commands: what is one, what the built-in ones say, and that nothing a handler does leaves the answer."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fanfold.contracts.record import JsonObject
from fanfold.errors import ConfigError, UsageError
from fanfold.protocols import Tool, ToolServer
from fanfold.session.builtin_commands import builtin_commands
from fanfold.session.commands import CommandContext, CommandRegistry
from tests.support.tools import RecordingTool


class Server:
    def __init__(self, name: str, *tools: str, is_alive: bool = True) -> None:
        self.name = name
        self.tools: Mapping[str, Tool] = {tool: RecordingTool(tool) for tool in tools}
        self.is_alive = is_alive

    async def close(self) -> None:
        self.is_alive = False


class Actions:
    def __init__(self, messages: Sequence[JsonObject] = (), servers: Sequence[ToolServer] = ()) -> None:
        self.done: list[Any] = []
        self.compacts_to = (10, 3)
        self._messages = messages
        self._servers = servers

    async def compact(self) -> tuple[int, int]:
        self.done.append("compact")
        return self.compacts_to

    async def clear(self) -> None:
        self.done.append("clear")

    async def set_model(self, reference: str) -> None:
        if reference != "openai/gpt":
            raise ConfigError(f"there is no model {reference}")
        self.done.append(reference)

    def history(self) -> Sequence[JsonObject]:
        return self._messages

    def servers(self) -> Sequence[ToolServer]:
        return self._servers


def context(actions: Actions | None = None, **fields: Any) -> CommandContext:
    given: dict[str, Any] = {
        "session_id": "s",
        "workspace": "/w",
        "model": "local/default",
        "history_len": 4,
        "total_tokens": 1234,
        "tool_names": ("write", "read"),
        **fields,
    }
    return CommandContext(actions=actions or Actions(), **given)


def answer(prompt: str, registry: CommandRegistry | None = None, about: CommandContext | None = None) -> str:
    registry = registry or builtin_commands()
    parsed = registry.parse(prompt)
    assert parsed is not None
    return asyncio.run(registry.run(*parsed, about or context()))


# ---- what is a command ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("/help", ("help", "")),
        ("  /help  \n", ("help", "")),
        ("/model openai/gpt", ("model", "openai/gpt")),
        ("/note first\nsecond  ", ("note", "first\nsecond")),
        ("/note\nbelow", ("note", "below")),
        ("/a-b_c2 x", ("a-b_c2", "x")),
        ("/halp", ("halp", "")),
        ("/tmp is full", ("tmp", "is full")),
        ("", None),
        ("help", None),
        ("/", None),
        ("/ help", None),
        ("//help", None),
        ("/Help", None),
        ("/2nd", None),
        ("/etc/passwd is missing", None),
        ("/usr/bin", None),
        ("/help.", None),
        ("see /help", None),
        ("/" + "a" * 64, ("a" * 64, "")),
        ("/" + "a" * 65, None),
    ],
)
def test_a_command_is_a_slash_and_a_name_up_to_a_space_or_the_end(prompt: str, parsed: Any) -> None:
    assert CommandRegistry.parse(prompt) == parsed


def test_an_unknown_command_is_told_with_the_one_that_was_probably_meant() -> None:
    said = answer("/hlep me")
    assert said.startswith("Unknown command: /hlep; did you mean '/help'?")
    assert "Type /help" in said
    assert answer("/zzz").startswith("Unknown command: /zzz; known: /clear, /compact, ")


# ---- the host's own -------------------------------------------------------------------------------------------------


async def async_handler(args: str, about: CommandContext) -> str:
    return f"{about.session_id}: {args}"


def plain_handler(args: str, about: CommandContext) -> str:
    return f"{about['session_id']}: {args}"


@pytest.mark.parametrize(
    "handler",
    [async_handler, plain_handler, lambda args, about: async_handler(args, about)],
    ids=["async", "plain", "awaitable"],
)
def test_a_registered_command_answers_and_is_listed(handler: Any) -> None:
    registry = builtin_commands()
    registry.register("deploy", "Deploys it", handler)
    assert answer("/deploy to production", registry) == "s: to production"
    infos = registry.list()
    assert [info.name for info in infos] == sorted(info.name for info in infos)
    assert {"name": "deploy", "description": "Deploys it", "usage": "/deploy"} in [dict(info) for info in infos]


def test_a_plain_handler_does_not_block_the_loop() -> None:
    threads: list[threading.Thread] = []
    registry = CommandRegistry()

    def who(args: str, about: CommandContext) -> str:
        threads.append(threading.current_thread())
        return "done"

    registry.register("who", "", who)
    assert answer("/who", registry) == "done"
    assert threads[0] is not threading.main_thread()


def raising(error: BaseException, *, is_async: bool) -> Any:
    async def raise_on_the_loop(args: str, about: CommandContext) -> str:
        raise error

    def raise_in_a_thread(args: str, about: CommandContext) -> str:
        raise error

    return raise_on_the_loop if is_async else raise_in_a_thread


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_what_a_handler_raises_becomes_the_answer(error: BaseException, is_async: bool) -> None:
    registry = CommandRegistry()
    registry.register("x", "", raising(error, is_async=is_async))
    assert answer("/x", registry).startswith(f"Command /x failed: it raised {type(error).__name__}")


@pytest.mark.parametrize("given", [None, 5, b"x", ["text"]])
def test_an_answer_that_is_no_text_is_told(given: Any) -> None:
    registry = CommandRegistry()
    registry.register("x", "", lambda args, about: given)
    assert answer("/x", registry) == f"Command /x failed: it gave {type(given).__name__}, not text"


def test_an_answer_that_no_log_could_hold_is_made_plain() -> None:
    registry = CommandRegistry()
    registry.register("x", "", lambda args, about: "a\ud800")
    assert answer("/x", registry) == "a\ufffd"


def test_cancelling_a_command_is_no_answer() -> None:
    begun = asyncio.Event()

    async def wait(args: str, about: CommandContext) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        registry = CommandRegistry()
        registry.register("wait", "", wait)
        running = asyncio.create_task(registry.run("wait", "", context()))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "/deploy", "Deploy", "two words", "2nd", "a" * 65, "a\n", None])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="a command's name is a small letter"):
        CommandRegistry().register(name, "", plain_handler)


def test_a_name_that_is_taken_is_refused_and_a_handler_must_be_a_function() -> None:
    registry = builtin_commands()
    none: Any = None
    with pytest.raises(UsageError, match="there is a command '/help' already"):
        registry.register("help", "", plain_handler)
    with pytest.raises(UsageError, match="handler must be a function"):
        registry.register("x", "", none)
    assert "x" not in [info.name for info in registry.list()]


def test_a_context_reads_as_a_mapping_without_its_actions() -> None:
    about = context(total_cost=0.5)
    assert dict(about) == {
        "session_id": "s",
        "workspace": "/w",
        "model": "local/default",
        "history_len": 4,
        "total_tokens": 1234,
        "total_cost": 0.5,
        "tool_names": ("write", "read"),
    }
    assert context().get("total_cost") is None


# ---- the built-in ones ----------------------------------------------------------------------------------------------


def test_the_built_in_commands_are_those_of_the_notes() -> None:
    names = [info.name for info in builtin_commands().list()]
    assert names == ["clear", "compact", "cost", "help", "history", "mcp", "model", "tools"]


def test_help_lists_every_command_and_explains_one() -> None:
    registry = builtin_commands()
    registry.register("deploy", "Deploys it", plain_handler, "/deploy [where]")
    lines = answer("/help", registry).splitlines()
    assert [line.split()[0] for line in lines] == [f"/{info.name}" for info in registry.list()]
    assert answer("/help /deploy", registry) == "/deploy [where]  Deploys it"
    assert answer("/help nothing", registry).startswith("There is no command /nothing")


@pytest.mark.parametrize(("prompt", "word"), [("/clear", "cleared"), ("/compact", "10 messages became 3")])
def test_clear_and_compact_do_it_and_say_so(prompt: str, word: str) -> None:
    actions = Actions()
    assert word in answer(prompt, about=context(actions))
    assert actions.done == [prompt[1:]]


@pytest.mark.parametrize("prompt", ["/clear the cache, please", "/compact now"])
def test_a_sentence_that_begins_like_clear_or_compact_changes_nothing(prompt: str) -> None:
    actions = Actions()
    assert answer(prompt, about=context(actions)) == f"Usage: {prompt.split()[0]}"
    assert actions.done == []


def test_compact_says_when_there_was_nothing_to_do() -> None:
    actions = Actions()
    actions.compacts_to = (1, 1)
    assert answer("/compact", about=context(actions)) == "Nothing to compact: the conversation has 1 message."


def test_cost_tells_tokens_and_dollars_or_that_they_are_unknown() -> None:
    assert answer("/cost", about=context(total_cost=0.01234)) == "1234 tokens used, $0.0123."
    assert answer("/cost", about=context(total_cost=0.0, total_tokens=1)) == "1 token used, $0.0000."
    assert "not known, for local/default has no prices" in answer("/cost")


def test_model_shows_the_model_and_sets_it_if_it_can() -> None:
    actions = Actions()
    assert answer("/model") == "Model: local/default"
    assert answer("/model openai/gpt", about=context(actions)) == "Model: openai/gpt (it was local/default)"
    assert actions.done == ["openai/gpt"]
    refused = answer("/model nope/x", about=context(actions))
    assert refused.startswith("The model stays local/default.")
    assert "there is no model nope/x" in refused
    assert actions.done == ["openai/gpt"]


def test_tools_are_listed_by_name() -> None:
    assert answer("/tools").splitlines() == ["2 tools:", "read", "write"]
    assert answer("/tools", about=context(tool_names=())) == "There are no tools."


def test_mcp_lists_servers_with_their_tools_and_whether_they_run() -> None:
    servers = [Server("web", "mcp__web__get", is_alive=False), Server("files", "mcp__files__b", "mcp__files__a")]
    assert answer("/mcp", about=context(Actions(servers=servers))).splitlines() == [
        "files: 2 tools",
        "  mcp__files__a",
        "  mcp__files__b",
        "web: 1 tool, not running",
        "  mcp__web__get",
    ]
    assert answer("/mcp") == "There are no MCP servers."


def message(role: str, *parts: JsonObject) -> JsonObject:
    return {"role": role, "content": list(parts)}


def test_history_shows_the_newest_messages_a_line_each() -> None:
    messages = [
        message("user", {"type": "text", "text": "read\nit  please " + "x" * 200}),
        message("assistant", {"type": "text", "text": "I do"}, {"type": "tool_use", "name": "read", "input": {}}),
        message("user", {"type": "tool_result", "content": "line 1\nline 2"}),
        message("user", {"type": "image"}),
    ]
    about = context(Actions(messages))
    opening, *lines = answer("/history", about=about).splitlines()
    assert opening == "4 messages, the newest 4:"
    assert lines[0].startswith("user: read it please xxx")
    assert lines[0].endswith("…")
    assert lines[1:] == ["assistant: I do [calls read]", "user: [result] line 1 line 2", "user: [image]"]
    assert answer("/history 1", about=about).splitlines() == ["4 messages, the newest 1:", "user: [image]"]
    assert answer("/history") == "0 messages."


@pytest.mark.parametrize("args", ["0", "-1", "x", "1 2", "²", "1" * 5000])
def test_a_count_that_is_none_is_told(args: str) -> None:
    assert answer(f"/history {args}") == "Usage: /history [count]"
