"""The commands that every session has: /clear, /compact, /cost, /help, /history, /mcp, /model, /tools."""

from functools import partial

from fanfold.contracts.record import JsonObject
from fanfold.errors import FanfoldError
from fanfold.session.commands import CommandContext, CommandRegistry

SHOWN_MESSAGES = 10
SHOWN_CHARACTERS = 100
"""Of each message in `/history`."""


def builtin_commands() -> CommandRegistry:
    """A registry with these commands; a host adds its own."""
    registry = CommandRegistry()
    registry.register("clear", "Begin a new conversation", _clear)
    registry.register("compact", "Replace the older messages by a summary", _compact)
    registry.register("cost", "Show the tokens used, and what they cost", _cost)
    registry.register("help", "List the commands, or explain one", partial(_help, registry), "/help [command]")
    registry.register("history", "Show the newest messages", _history, "/history [count]")
    registry.register("mcp", "List the MCP servers and their tools", _mcp)
    registry.register("model", "Show the model, or use another one", _model, "/model [provider/model-id]")
    registry.register("tools", "List the tools", _tools)
    return registry


async def _help(registry: CommandRegistry, args: str, _: CommandContext) -> str:
    infos = registry.list()
    wanted = args.removeprefix("/")
    if wanted:
        infos = [info for info in infos if info.name == wanted]
        if not infos:
            return f"There is no command /{wanted}. Type /help for all of them."
    width = max(len(info.usage) for info in infos)
    return "\n".join(f"{info.usage:<{width}}  {info.description}" for info in infos)


async def _clear(args: str, context: CommandContext) -> str:
    if args:
        return "Usage: /clear"  # it may be the beginning of a sentence, and there is no way back
    await context.actions.clear()
    return f"Conversation cleared: {_counted(context.history_len, 'message')} will not be sent any more."


async def _compact(args: str, context: CommandContext) -> str:
    if args:
        return "Usage: /compact"
    before, after = await context.actions.compact()
    if after >= before:
        return f"Nothing to compact: the conversation has {_counted(before, 'message')}."
    return f"Compacted: {_counted(before, 'message')} became {after}."


async def _cost(_: str, context: CommandContext) -> str:
    tokens = f"{_counted(context.total_tokens, 'token')} used"
    if context.total_cost is None:
        return f"{tokens}; what they cost is not known, for {context.model} has no prices in the configuration."
    return f"{tokens}, ${context.total_cost:.4f}."


async def _model(args: str, context: CommandContext) -> str:
    if not args:
        return f"Model: {context.model}"
    try:
        await context.actions.set_model(args)
    except FanfoldError as error:
        return f"The model stays {context.model}. {error}"
    return f"Model: {args} (it was {context.model})"


async def _tools(_: str, context: CommandContext) -> str:
    names = sorted(context.tool_names)
    return "\n".join([f"{_counted(len(names), 'tool')}:", *names]) if names else "There are no tools."


async def _mcp(_: str, context: CommandContext) -> str:
    servers = sorted(context.actions.servers(), key=lambda server: server.name)
    lines: list[str] = []
    for server in servers:
        state = "" if server.is_alive else ", not running"
        lines.append(f"{server.name}: {_counted(len(server.tools), 'tool')}{state}")
        lines += [f"  {name}" for name in sorted(server.tools)]
    return "\n".join(lines) or "There are no MCP servers."


async def _history(args: str, context: CommandContext) -> str:
    if args and not (args.isascii() and args.isdecimal() and 0 < len(args) < 10 and int(args) > 0):
        return "Usage: /history [count]"
    messages = context.actions.history()
    newest = messages[-int(args or SHOWN_MESSAGES) :]
    opening = f"{_counted(len(messages), 'message')}" + (f", the newest {len(newest)}:" if newest else ".")
    return "\n".join([opening, *map(_line, newest)])


def _line(message: JsonObject) -> str:
    parts: list[JsonObject] = message["content"]
    text = " ".join(" ".join(_part(part) for part in parts).split())
    clipped = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    return f"{message['role']}: {clipped}"


def _part(part: JsonObject) -> str:
    match part.get("type"):
        case "tool_use":
            return f"[calls {part.get('name')}]"
        case "tool_result":
            return f"[result] {part.get('content')}"
        case "text":
            return str(part.get("text", ""))
        case other:
            return f"[{other}]"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
