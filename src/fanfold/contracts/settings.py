"""What a configuration says, whatever its file format: providers, models, defaults."""

from typing import Literal

import msgspec

from fanfold.contracts.messages import Usage
from fanfold.contracts.policy import PermissionPolicy

ProviderKind = Literal["openai", "anthropic", "local"]
StructuredMode = Literal["auto", "json_schema", "forced_tool", "prompt"]


class Secret(msgspec.Struct, frozen=True):
    """A key that never shows in a repr or an error. Empty `value`: it was looked up and is not there."""

    value: str
    source: str = ""
    """Where it comes from, for messages: `env OPENAI_API_KEY`, `agent.acl:4`."""

    def __repr__(self) -> str:
        return f"Secret({'***' if self.value else 'missing'}, {self.source!r})"


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float | None = None
    """None: as `input`."""
    cache_write: float | None = None

    def of(self, usage: Usage) -> float:
        """What `usage` costs; its prompt tokens include the cached ones."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        fresh = usage.prompt_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        dollars = (
            fresh * self.input
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
            + usage.completion_tokens * self.output
        )
        return dollars / 1_000_000


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    api_key: Secret | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}
    tool_call: bool = True
    structured_output: StructuredMode = "auto"
    temperature: float | None = None
    context_tokens: int | None = None
    """`limit.context`"""
    max_output_tokens: int | None = None
    """`limit.output`"""
    cost: Prices | None = None


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ProviderKind
    """The wire it speaks: chat-completions (`openai`), Messages (`anthropic`), or llama.cpp in process (`local`)."""
    api_key: Secret | None = None
    """None: the endpoint needs no key."""
    base_url: str | None = None
    headers: dict[str, str] = {}
    timeout_ms: int = 600_000
    """Longest wait for more of an answer (keep-alives do not count), not the length of a call."""
    max_attempts: int = 5
    structured_output: StructuredMode = "auto"
    models: dict[str, ModelSettings] = {}
    """Empty: any model id is passed on as it is."""
    threads: int | None = None
    """`local` only: CPU threads of the model."""
    slots: int = 4
    """`local` only: requests decoded at once."""
    place: str = "built-in"
    """file:line, for messages."""


class McpServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server: a command that speaks over its standard streams, or a URL (streamable HTTP)."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Beside a minimal environment, not beside this process's own."""
    url: str | None = None
    headers: dict[str, str] = {}
    timeout_ms: int = 60_000
    """Of one call, and of the start."""
    place: str = ""
    """file:line, for messages."""

    def __repr__(self) -> str:
        # What stands in its environment, headers and address may be secret.
        what = f"command={self.command!r}" if self.url is None else "url=..."
        return f"McpServerSettings(name={self.name!r}, {what})"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    default_model: str = "local/default"
    providers: dict[str, ProviderSettings] = {}
    max_parallel_tasks: int = 8
    max_tool_rounds: int | None = None
    permissions: PermissionPolicy = PermissionPolicy()
    agent_dirs: tuple[str, ...] = ()
    """Folders of agent definitions, beside those that every workspace has."""
    mcp_servers: dict[str, McpServerSettings] = {}
    allow_unsandboxed_bash: bool = False
    """Run `bash` without bubblewrap where there is none. Off: the tool refuses and says why."""
    source: str = "built-in defaults"
    """The file (or `inline text`) that this came from."""
