"""The meaning of a configuration tree: its keys, their defaults, and what must fit together."""

from collections.abc import Mapping

from fanfold.config.mcp_servers import read_mcp_servers
from fanfold.config.model_reference import find_model
from fanfold.config.problems import Problems
from fanfold.config.reading import TableReader
from fanfold.config.tree import Table
from fanfold.contracts.policy import Decision, PermissionPolicy
from fanfold.contracts.settings import (
    ModelSettings,
    Prices,
    ProviderKind,
    ProviderSettings,
    Secret,
    Settings,
    StructuredMode,
)
from fanfold.errors import ConfigError
from fanfold.kernel.permissions import parse_rule
from fanfold.kernel.url import url_fault

_KINDS: tuple[ProviderKind, ...] = ("openai", "anthropic", "local")
_STRUCTURED_MODES: tuple[StructuredMode, ...] = ("auto", "json_schema", "forced_tool", "prompt")
_DECISIONS: tuple[Decision, ...] = ("allow", "deny", "ask")
_ONLY_LOCAL = ("threads", "slots")
_ONLY_REMOTE = ("api_key", "base_url", "headers", "timeout_ms", "max_attempts")

MAX_PARALLEL_TASKS = 10_000
MAX_ATTEMPTS = 100
MAX_TIMEOUT_MS = 24 * 60 * 60 * 1000
MAX_THREADS = 1024
MAX_SLOTS = 256


def built_in_providers(environ: Mapping[str, str]) -> dict[str, ProviderSettings]:
    """The providers that exist without any file."""
    return {
        "openai": ProviderSettings(
            name="openai",
            kind="openai",
            api_key=Secret(environ.get("OPENAI_API_KEY", "").strip(), "env OPENAI_API_KEY"),
            base_url=environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1",
        ),
        "anthropic": ProviderSettings(
            name="anthropic",
            kind="anthropic",
            api_key=Secret(environ.get("ANTHROPIC_API_KEY", "").strip(), "env ANTHROPIC_API_KEY"),
            base_url="https://api.anthropic.com",
        ),
        "local": ProviderSettings(name="local", kind="local"),
    }


def read_settings(tree: Table, environ: Mapping[str, str], problems: Problems, *, source: str) -> Settings:
    """The settings that `tree` states; whatever is wrong is added to `problems`.

    When `problems` already holds syntax errors, nothing is said about missing lines: they may be the
    broken ones.
    """
    is_whole = not problems
    top = TableReader(tree, "", environ, problems)
    built_in = built_in_providers(environ)
    providers = built_in | {
        name: _provider(name, reader, built_in.get(name), is_whole) for name, reader in top.sub_tables("providers")
    }
    defaults = Settings()
    settings = Settings(
        default_model=top.text("default_model", defaults.default_model),
        providers=providers,
        max_parallel_tasks=top.integer("max_parallel_tasks", defaults.max_parallel_tasks, at_most=MAX_PARALLEL_TASKS),
        max_tool_rounds=top.integer("max_tool_rounds", None),
        permissions=_permissions(top),
        agent_dirs=top.texts("agent_dirs", _folder),
        mcp_servers=read_mcp_servers(top),
        allow_unsandboxed_bash=top.flag("allow_unsandboxed_bash", defaults.allow_unsandboxed_bash),
        source=source,
    )
    if is_whole and "default_model" in tree.entries:
        _check_default_model(top, settings)
    top.finish()
    return settings


def _check_default_model(top: TableReader, settings: Settings) -> None:
    try:
        find_model(settings.default_model, settings.providers)
    except ConfigError as error:
        top.problems.add(top.table.entries["default_model"].value.place, f"default_model: {error.problems[0]}")


def _folder(text: str) -> None:
    if "\0" in text:
        raise ConfigError("agent_dirs must not hold a NUL character")


def _permissions(top: TableReader) -> PermissionPolicy:
    reader = top.sub_table("permissions")
    if reader is None:
        return PermissionPolicy()
    policy = PermissionPolicy(
        allow=reader.texts("allow", parse_rule),
        deny=reader.texts("deny", parse_rule),
        ask=reader.texts("ask", parse_rule),
        default_decision=reader.choice("default", "ask", _DECISIONS),
    )
    reader.finish()
    return policy


def _provider(name: str, reader: TableReader, built_in: ProviderSettings | None, is_whole: bool) -> ProviderSettings:
    place, problems = reader.table.place, reader.problems
    if not name or "/" in name or name != name.strip():
        problems.add(place, f"{reader.path}: a provider's name must not be empty or contain '/'")
    kind: ProviderKind = reader.choice("kind", built_in.kind if built_in else "openai", _KINDS)
    # What a built-in provider knows holds for its own wire only.
    base = built_in if built_in and built_in.kind == kind else ProviderSettings(name=name, kind=kind)
    structured_output: StructuredMode = reader.choice("structured_output", base.structured_output, _STRUCTURED_MODES)
    provider = ProviderSettings(
        name=name,
        kind=kind,
        api_key=reader.secret("api_key", base.api_key),
        base_url=_base_url(reader, base.base_url),
        headers=reader.headers("headers", base.headers),
        timeout_ms=reader.integer("timeout_ms", base.timeout_ms, at_most=MAX_TIMEOUT_MS),
        max_attempts=reader.integer("max_attempts", base.max_attempts, at_most=MAX_ATTEMPTS),
        structured_output=structured_output,
        models={
            model_id: _model(model_id, model_reader, kind, structured_output)
            for model_id, model_reader in reader.sub_tables("models")
        },
        threads=reader.integer("threads", base.threads, at_most=MAX_THREADS),
        slots=reader.integer("slots", base.slots, at_most=MAX_SLOTS),
        place=str(place),
    )
    _check_kind(reader, kind)
    if is_whole and kind != "local":
        _check_address(reader, provider)
    reader.finish()
    return provider


def _model(model_id: str, reader: TableReader, kind: ProviderKind, structured_output: StructuredMode) -> ModelSettings:
    limit = reader.sub_table("limit")
    cost = reader.sub_table("cost")
    model = ModelSettings(
        id=model_id,
        name=reader.text("name", None),
        api_key=reader.secret("api_key", None),
        base_url=_base_url(reader, None),
        headers=reader.headers("headers", {}),
        tool_call=reader.flag("tool_call", True),
        structured_output=reader.choice("structured_output", structured_output, _STRUCTURED_MODES),
        temperature=reader.number("temperature", None),
        context_tokens=limit.integer("context", None) if limit else None,
        max_output_tokens=limit.integer("output", None) if limit else None,
        cost=_prices(cost) if cost else None,
    )
    if limit:
        limit.finish()
    _check_kind(reader, kind)
    reader.finish()
    return model


def _prices(reader: TableReader) -> Prices:
    prices = Prices(
        input=reader.number("input", 0.0),
        output=reader.number("output", 0.0),
        cache_read=reader.number("cache_read", None),
        cache_write=reader.number("cache_write", None),
    )
    reader.finish()
    return prices


def _base_url(reader: TableReader, default: str | None) -> str | None:
    url = reader.text("base_url", default)
    if url is None or url == default:
        return default
    fault = url_fault(url)
    if fault is not None:
        reader.problems.add(reader.table.entries["base_url"].value.place, f"{reader.path}.base_url {fault}")
    return url


def _check_kind(reader: TableReader, kind: ProviderKind) -> None:
    """Keys that this kind would ignore are errors."""
    for key in _ONLY_REMOTE if kind == "local" else _ONLY_LOCAL:
        entry = reader.table.entries.get(key)
        if entry is not None:
            reader.problems.add(entry.place, f'{reader.path}.{key} has no meaning for kind "{kind}"')


def _check_address(reader: TableReader, provider: ProviderSettings) -> None:
    models = provider.models.values()
    has_address = provider.base_url or (models and all(model.base_url for model in models))
    if not has_address and "base_url" not in reader.table.entries:
        reader.problems.add(reader.table.place, f"{reader.path} needs base_url, the address that it calls")
