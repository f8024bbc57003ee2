"""Agents and sessions as commands open them: from --config, --model, --allow and the rest, or one clear refusal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from fanfold.agent import Agent
from fanfold.config.model_reference import find_model
from fanfold.contracts.policy import PermissionPolicy
from fanfold.delegation.builtin_agents import find_agent
from fanfold.errors import ConfigError, UsageError
from fanfold.kernel.permissions import parse_rule
from fanfold.nearest import did_you_mean
from fanfold.options import SessionOptions
from fanfold.session.session import Session
from fanfold.stores.file_store import FileSessionStore

STORE = Path(".a3s") / "sessions"


def open_store() -> FileSessionStore:
    """Where the commands keep what is finished, below the current directory."""
    return FileSessionStore(STORE)


async def open_agent(config: Path | None) -> Agent:
    """The agent of the configuration file, or of the one that is found from here."""
    return await Agent.create_async(config)


async def open_session(agent: Agent, allow: Sequence[str], options: SessionOptions) -> Session:
    """A session on the current directory whose policy allows `allow` too.

    Raises:
        UsageError: an --allow that is no rule, or a --model that there is not.
    """
    if options.model is not None:
        _require_model(agent, options.model, "--model")
    options = options.merged(permission_policy=_allowing(agent.settings.permissions, allow))
    return await agent.session_async(Path.cwd(), options)


async def require_models(agent: Agent, named: Iterable[tuple[str, str | None]]) -> None:
    """Each model can be used, or nothing starts; `named` are places and the references that stand there, if any.

    Raises:
        UsageError: there is no such model.
        ConfigError: its key is missing.
    """
    sound: set[str] = set()
    for place, reference in named:
        if reference is not None and reference not in sound:
            sound.add(reference)
            _require_model(agent, reference, place)
            await (await open_session(agent, (), SessionOptions(model=reference))).close_async()


def _require_model(agent: Agent, reference: str, place: str) -> None:
    try:
        find_model(reference, agent.settings.providers)
    except ConfigError as error:
        raise UsageError(f"{place}: {error.problems[0]}") from error


def require_roles(session: Session, named: Iterable[tuple[str, str]]) -> None:
    """Each agent is one that the session knows, or nothing starts; `named` are places and the names that stand there.

    Raises:
        UsageError: no agent is called so.
    """
    known = session.agent_definitions()
    for place, name in named:
        if find_agent(name, known) is None:
            raise UsageError(f"{place}: there is no agent '{name}'{did_you_mean(name, known)}")


def _allowing(policy: PermissionPolicy, rules: Sequence[str]) -> PermissionPolicy:
    try:
        for rule in rules:
            parse_rule(rule)
    except ConfigError as error:
        raise UsageError(f"--allow: {error.problems[0]}") from error
    return replace(policy, allow=(*policy.allow, *rules))
