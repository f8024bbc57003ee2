"""Hosted: what a host adds to a session while it lives, and the tools that it calls itself."""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec
from fanfold.contracts.codec import decode_json, encode_json
from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.governance import HookConfig, HookMatcher
from fanfold.contracts.messages import TASK, ToolResult
from fanfold.contracts.record import JsonObject
from fanfold.delegation.worker_agents import parse_worker, worker_definition
from fanfold.errors import ToolError, UsageError
from fanfold.governance.budget import BudgetGate
from fanfold.governance.hooks import Hooks
from fanfold.kernel.call_ids import HOST_PREFIX
from fanfold.options import BUDGET_GUARD_TIMEOUT_MS
from fanfold.portal import blocking, on_loop
from fanfold.protocols import EventSink, HookHandler, ToolServer
from fanfold.session.builtin_commands import builtin_commands
from fanfold.session.commands import CommandHandler, CommandInfo, CommandRegistry
from fanfold.session.setup import Composer
from fanfold.session.toolbox import Toolbox
from fanfold.session.watched import Watched

ConnectServer = Callable[[Mapping[str, Any]], Awaitable[ToolServer]]
"""Starts an MCP server from what `add_mcp` was given."""
ReadAgents = Callable[[str], Mapping[str, AgentDefinition]]
"""The agent definitions in a folder, by name."""


class Hosted(Watched):
    __slots__ = ("_agents", "_budget", "_commands_made", "_composer", "_connect", "_hooks", "_read_agents", "_toolbox")

    def __init__(
        self,
        *,
        hooks: Hooks,
        budget: BudgetGate,
        toolbox: Toolbox,
        composer: Composer,
        agents: dict[str, AgentDefinition],
        connect: ConnectServer,
        read_agents: ReadAgents,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self._hooks = hooks
        self._budget = budget
        self._toolbox = toolbox
        self._composer = composer
        self._agents = agents
        self._connect = connect
        self._read_agents = read_agents
        self._commands_made: CommandRegistry | None = None

    # ---- hooks, budget, commands ----

    @property
    def _commands(self) -> CommandRegistry:
        if self._commands_made is None:  # most sessions hear no command at all
            self._commands_made = builtin_commands()
        return self._commands_made

    def register_hook(
        self,
        hook_id: str,
        event_type: str,
        matcher: HookMatcher | JsonObject | None = None,
        config: HookConfig | JsonObject | None = None,
        handler: HookHandler | None = None,
    ) -> None:
        """Have `handler` called at each `event_type` that `matcher` lets through, in this session and its children.

        Raises:
            ValueError: an argument that cannot be meant so, or an id that is taken.
        """
        self._operations.require(is_exclusive=False)
        self._hooks.register(hook_id, event_type, matcher, config, handler)

    def unregister_hook(self, hook_id: str) -> bool:
        """False when there was none of that id."""
        self._operations.require(is_exclusive=False)
        return self._hooks.unregister(hook_id)

    def hook_count(self) -> int:
        return self._hooks.count

    def set_budget_guard(self, guard: object | None, timeout_ms: int = BUDGET_GUARD_TIMEOUT_MS) -> None:
        """Ask `guard` before each model and tool call from now on, of children too; None: nobody (seed 003)."""
        self._operations.require(is_exclusive=False)
        self._budget.replace(guard, timeout_ms)

    def list_commands(self) -> list[CommandInfo]:
        """The slash commands, by name."""
        return self._commands.list()

    def register_command(self, name: str, description: str, handler: CommandHandler) -> None:
        """Answer the prompt `/name ...` with the text that `handler(args, context)` returns.

        Raises:
            UsageError: a name that is none, or taken.
        """
        self._operations.require(is_exclusive=False)
        self._commands.register(name, description, handler)

    # ---- agents and MCP servers ----

    def agent_definitions(self) -> dict[str, AgentDefinition]:
        """The agents that steps of this session can name; aliases such as `reviewer` come on top."""
        return dict(self._agents)

    def register_agent_dir(self, path: str | os.PathLike[str]) -> int:
        """Know the agents that are defined in a folder; how many there are."""
        self._operations.require(is_exclusive=False)
        if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"path must be that of a folder with agent definitions, got {path!r}")
        found = self._read_agents(str(path))
        self._agents.update(found)
        self._composer.forget()
        return len(found)

    def register_worker_agent(self, worker: WorkerAgentSpec | Mapping[str, Any]) -> None:
        """Know a disposable agent, given by value."""
        self._operations.require(is_exclusive=False)
        definition = worker_definition(parse_worker(worker))
        self._agents[definition.name] = definition
        self._composer.forget()

    @on_loop
    async def add_mcp_async(self, server: Mapping[str, Any]) -> int:
        """Start an MCP server for this session: `{"name", "transport": {"type": "stdio", "command", "args"} or
        {"type": "streamable-http", "url"}, "env", "timeout_ms"}`. How many tools it has.

        Raises:
            UsageError: what was given describes no server, or the session has one of that name.
            McpError: it could not be started.
        """
        return await self._operations.run(self._add_server(server), is_exclusive=False)

    add_mcp = blocking(add_mcp_async)

    def _taken(self, name: str) -> str | None:
        if name in {each.name for each in self._toolbox.own_servers}:
            return f"this session has an MCP server '{name}' already; remove it first"
        for other in self._toolbox.servers:
            if other != name and other.lower() == name.lower():  # rules of permission could not tell their tools apart
                return f"the name of MCP server '{name}' differs from '{other}' by case only; take another one"
        return None

    async def _add_server(self, given: Mapping[str, Any]) -> int:
        server = await self._connect(given)
        if (taken := self._taken(server.name)) is not None:
            await server.close()
            raise UsageError(taken)
        self._toolbox.add_server(server)
        return len(server.tools)

    @on_loop
    async def remove_mcp_async(self, name: str) -> bool:
        """End this session's own server of that name; False where there is none."""
        self._operations.require(is_exclusive=False)
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"name must be that of an MCP server, got {name!r}")
        server = self._toolbox.remove_server(name)
        if server is None:
            return False
        await server.close()
        return True

    remove_mcp = blocking(remove_mcp_async)

    def mcps(self) -> dict[str, JsonObject]:
        """The MCP servers that this session can reach: `{name: {"alive", "tools"}}`."""
        servers = self._toolbox.servers
        return {name: {"alive": each.is_alive, "tools": sorted(each.tools)} for name, each in servers.items()}

    def tool_names(self) -> list[str]:
        """The tools of the session's own agent, sorted."""
        return sorted(self._composer.for_session().tools)

    def tool_definitions(self) -> list[JsonObject]:
        """What a model is told of them: `{"name", "description", "parameters"}`."""
        specs = self._composer.for_session().specs
        return [{"name": each.name, "description": each.description, "parameters": each.parameters} for each in specs]

    # ---- tools that the host calls itself ----

    @on_loop
    async def tool_async(
        self, name: str, args: JsonObject | None = None, *, events: EventSink | None = None
    ) -> ToolResult:
        """Call a tool as the host, which is trusted: no permission rule is asked and no approval; hooks, budget,
        limits and cancellation hold. The conversation is not touched, so it may run beside a prompt."""
        return await self._operations.run(self._called(name, args, events, is_governed=False), is_exclusive=False)

    tool = blocking(tool_async)

    @on_loop
    async def governed_tool_async(
        self, name: str, args: JsonObject | None = None, *, events: EventSink | None = None
    ) -> ToolResult:
        """Likewise under the permission rules; a call that needs an approval waits for it (`confirm_tool_use`)."""
        return await self._operations.run(self._called(name, args, events, is_governed=True), is_exclusive=False)

    governed_tool = blocking(governed_tool_async)

    async def _called(
        self, name: str, args: JsonObject | None, events: EventSink | None, *, is_governed: bool
    ) -> ToolResult:
        call = RecordedCall(id=f"{HOST_PREFIX}{self._env.ids.new_id()}", name=name, args=_json_object(args))
        output = await self._conversation.direct(events).run_direct(call, is_governed=is_governed)
        return ToolResult(
            name=name,
            output=output.output,
            exit_code=output.exit_code,
            artifact=output.artifact,
            metadata=output.metadata or None,
        )

    # Each of these is `tool` with that tool's arguments: its output as text, or ToolError.

    @on_loop
    async def read_file_async(self, path: str, offset: int | None = None, limit: int | None = None) -> str:
        """The lines of a file, numbered."""
        return await self._output("read", file_path=path, offset=offset, limit=limit)

    read_file = blocking(read_file_async)

    @on_loop
    async def write_file_async(self, path: str, content: str) -> str:
        return await self._output("write", file_path=path, content=content)

    write_file = blocking(write_file_async)

    @on_loop
    async def edit_file_async(self, path: str, old: str, new: str, replace_all: bool = False) -> str:
        return await self._output(
            "edit", file_path=path, old_string=old, new_string=new, replace_all=replace_all or None
        )

    edit_file = blocking(edit_file_async)

    @on_loop
    async def ls_async(self, path: str | None = None) -> str:
        return await self._output("ls", path=path)

    ls = blocking(ls_async)

    @on_loop
    async def bash_async(self, command: str) -> str:
        return await self._output("bash", command=command)

    bash = blocking(bash_async)

    @on_loop
    async def glob_async(self, pattern: str) -> list[str]:
        """All paths that match."""
        found: list[str] = []
        cursor: int | None = 0
        while cursor is not None:
            page = await self._result("search", mode="glob", query=pattern, cursor=cursor)
            told: JsonObject = page.metadata or {}
            found += page.output.splitlines()[: told.get("shown")]
            cursor = told.get("next_cursor")
        return found

    glob = blocking(glob_async)

    @on_loop
    async def grep_async(self, pattern: str) -> str:
        return await self._output("search", mode="grep", query=pattern)

    grep = blocking(grep_async)

    @on_loop
    async def git_async(self, args: JsonObject | str) -> str:
        """`"status"`, or the arguments of the tool: `{"command": "log", "path": "src"}`."""
        return await self._output("git", **({"command": args} if isinstance(args, str) else args))

    git = blocking(git_async)

    @on_loop
    async def web_fetch_async(self, url: str) -> str:
        return await self._output("web_fetch", url=url)

    web_fetch = blocking(web_fetch_async)

    @on_loop
    async def task_async(self, task: JsonObject) -> ToolResult:
        """Hand one task to an agent, as the model does with the `task` tool: `{"agent", "description", "prompt"}`.

        The end of one in the background is in `subagent_task`. The conversation is not told of it: a message about what
        its model has not begun would start a run that nobody asked for.
        """
        return await self.tool_async(TASK, {"tasks": [task]})

    task = blocking(task_async)

    @on_loop
    async def tasks_async(self, tasks: list[JsonObject]) -> ToolResult:
        return await self.tool_async(TASK, {"tasks": tasks})

    tasks = blocking(tasks_async)

    @on_loop
    async def delegate_task_async(
        self, agent: str, description: str, prompt: str, background: bool = False, max_steps: int | None = None
    ) -> ToolResult:
        """The same, in words; also in the background, see `task_async`."""
        task: JsonObject = {"agent": agent, "description": description, "prompt": prompt}
        more = {"background": background or None, "max_steps": max_steps}
        return await self.task_async(task | {key: value for key, value in more.items() if value is not None})

    delegate_task = blocking(delegate_task_async)

    async def _output(self, tool: str, /, **args: Any) -> str:
        return (await self._result(tool, **args)).output

    async def _result(self, tool: str, /, **args: Any) -> ToolResult:
        result = await self.tool_async(tool, {key: value for key, value in args.items() if value is not None})
        if not result.ok:
            raise ToolError(tool=tool, message=result.output)
        return result


def _json_object(args: Any) -> JsonObject:
    """A copy of what a tool is to be called with."""
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise UsageError(f"the arguments of a tool must be a dict, got {type(args).__name__}")
    try:
        copied: JsonObject = decode_json(encode_json(dict(cast("Mapping[str, Any]", args))))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the arguments of a tool must be JSON data: {error}") from None
    return copied
