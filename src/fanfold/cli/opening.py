"""Agents and sessions as commands open them: from --config, --model, --allow and the rest."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from fanfold.agent import Agent
from fanfold.contracts.policy import PermissionPolicy
from fanfold.errors import ConfigError, UsageError
from fanfold.kernel.permissions import parse_rule
from fanfold.options import SessionOptions
from fanfold.session.session import Session


async def open_agent(config: Path | None) -> Agent:
    """The agent of the configuration file, or of the one that is found from here."""
    return await Agent.create_async(config)


async def open_session(agent: Agent, allow: Sequence[str], options: SessionOptions) -> Session:
    """A session on the current directory whose policy allows `allow` too.

    Raises:
        UsageError: an --allow that is no rule.
    """
    options = options.merged(permission_policy=_allowing(agent.settings.permissions, allow))
    return await agent.session_async(Path.cwd(), options)


def _allowing(policy: PermissionPolicy, rules: Sequence[str]) -> PermissionPolicy:
    try:
        for rule in rules:
            parse_rule(rule)
    except ConfigError as error:
        raise UsageError(f"--allow: {error.problems[0]}") from error
    return replace(policy, allow=(*policy.allow, *rules))
