"""AgentSetup: what one agent thinks with and may use; and the Composer, which puts it together for a session."""

import logging
import re
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from fanfold.contracts.agents import AgentDefinition, ConfirmationInheritance
from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import ConfirmationPolicy, PermissionPolicy
from fanfold.contracts.settings import Prices
from fanfold.contracts.steps import AgentStepSpec
from fanfold.kernel.decide import Limits
from fanfold.kernel.globs import compile_glob
from fanfold.kernel.permissions import unknown_rules, visible_tools
from fanfold.kernel.plain_text import plain
from fanfold.options import SessionOptions
from fanfold.protocols import ModelClient, Tool
from fanfold.session.toolbox import Toolbox

CORE_PROMPT = (
    "You are an agent working in a workspace through tools. Use a tool when you need a fact or a change; "
    "otherwise answer. Never claim what you did not see. Be brief and concrete."
)
ANSWER_PROMPT = "Answer the request briefly and concretely, from what it says."

logger = logging.getLogger("fanfold")


class AgentSetup(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelClient
    model_id: str
    system: str
    tools: Mapping[str, Tool]
    """Every tool it may call, by name; empty for an agent that only answers."""
    specs: tuple[ToolSpec, ...]
    """Those of them that the model is shown."""
    policies: tuple[PermissionPolicy, ...]
    """All must allow a call: the session's own, then each narrower one."""
    inheritance: ConfirmationInheritance = "inherit_parent"
    """What an "ask" of the narrower ones comes to."""
    confirmation: ConfirmationPolicy = ConfirmationPolicy()
    real_path: Callable[[str], str]
    """Where in the workspace a path argument really leads: what a rule about paths is compared with."""
    limits: Limits
    temperature: float | None = None
    max_output_tokens: int | None = None
    prices: Prices | None = None
    tool_timeout_seconds: float | None = None
    model_timeout_seconds: float | None = None
    duplicate_threshold: int | None = None


class ResolvedModel(msgspec.Struct, frozen=True):
    reference: str
    """`provider/model-id`"""
    client: ModelClient
    prices: Prices | None = None

    @property
    def model_id(self) -> str:
        return self.reference.partition("/")[2]


ResolveModel = Callable[[str], ResolvedModel]
"""Raises ConfigError for an unknown reference or a missing key."""


class Composer:
    """Puts setups together. Equal roles share one setup: a thousand children of one agent hold one tuple of tools."""

    def __init__(
        self,
        *,
        resolve: ResolveModel,
        model: str,
        toolbox: Toolbox,
        real_path: Callable[[str], str],
        policy: PermissionPolicy,
        options: SessionOptions,
        max_tool_rounds: int | None,
        role: AgentDefinition | None = None,
    ) -> None:
        self._resolve = resolve
        self._model = model
        self._toolbox = toolbox
        self._real_path = real_path
        self._policy = policy
        self._options = options
        self._max_tool_rounds = max_tool_rounds
        self._role = role
        self._own: AgentSetup | None = None
        self._composed: dict[tuple[int, str, int], tuple[AgentDefinition, AgentSetup]] = {}
        """By the identity of the definition, which is kept for it: two may have one name, and different permissions."""
        self._warned: set[str] = set()
        toolbox.on_change = self.forget

    @property
    def model(self) -> str:
        """`provider/model-id` of the session's own agent."""
        return self._model

    def change_model(self, reference: str) -> None:
        """From the next run on. Raises ConfigError for a model that there is not; the old one stays then."""
        self._resolve(reference)
        self._model = reference
        self.forget()

    def forget(self) -> None:
        """Tools, agents or the model have changed: compose anew."""
        self._own = None
        self._composed.clear()

    def _look(self) -> None:
        if self._toolbox.has_changed():
            self.forget()

    def check(self) -> None:
        """Raise now what the session's own model would raise at the first prompt; warn of rules that name no tool."""
        self._resolve(self._model)
        if self._policy.allow or self._policy.deny or self._policy.ask:
            for warning in unknown_rules(self._policy, self._toolbox.all()):
                logger.warning(warning)

    def for_session(self) -> AgentSetup:
        """The session's own agent: every tool and the session's limits, or those of the role it was opened for."""
        self._look()
        if self._own is None:
            self._own = self._for_all() if self._role is None else self._for_role(self._role)
        return self._own

    def _for_all(self) -> AgentSetup:
        rounds, tools = self._max_tool_rounds, self._toolbox.all()
        return self._compose(self._model, "", tools, (self._policy,), rounds, who="the session")

    def _for_role(self, role: AgentDefinition) -> AgentSetup:
        rounds = role.max_steps if self._max_tool_rounds is None else self._max_tool_rounds
        tools, policies = _named(self._toolbox.all(), role.tools), (self._policy, role.permissions)
        setup = self._compose(self._model, role.prompt, tools, policies, rounds, who=f"agent '{role.name}'")
        return replace(setup, inheritance=role.confirmation_inheritance)

    def for_host(self) -> AgentSetup:
        """For calls that the host makes itself: every tool, also those that the session's own agent cannot use."""
        return replace(self.for_session(), tools=self._toolbox.all())

    def for_step(self, agent: AgentDefinition, spec: AgentStepSpec) -> AgentSetup:
        """A child of the role `agent`, with what the spec says of model and rounds."""
        self._look()
        reference = spec.model or agent.model or self._model
        rounds = agent.max_steps if spec.max_steps is None else spec.max_steps
        key = (id(agent), reference, rounds)
        known = self._composed.get(key)
        if known is not None:
            return known[1]
        self._warn_of_unknown(agent)
        policies, tools = (self._policy, agent.permissions), _named(self._toolbox.for_children(), agent.tools)
        setup = self._compose(reference, agent.prompt, tools, policies, rounds, who=f"agent '{agent.name}'")
        setup = replace(setup, inheritance=agent.confirmation_inheritance)
        self._composed[key] = agent, setup
        return setup

    def _compose(
        self,
        reference: str,
        role: str,
        tools: dict[str, Tool],
        policies: tuple[PermissionPolicy, ...],
        rounds: int | None,
        *,
        who: str,
    ) -> AgentSetup:
        model, options = self._resolve(reference), self._options
        capabilities = model.client.capabilities
        if tools and not capabilities.tools:
            self._warn_once(reference, who)
            tools = {}
        specs = tuple(tool.spec for tool in tools.values())
        for policy in policies:
            specs = visible_tools(policy, specs)
        prompts = (CORE_PROMPT if tools else ANSWER_PROMPT, role, options.instructions)
        return AgentSetup(
            model=model.client,
            model_id=model.model_id,
            system=plain("\n\n".join(prompt for prompt in prompts if prompt)),
            tools=tools,
            specs=specs,
            policies=policies,
            confirmation=options.confirmation_policy or ConfirmationPolicy(),
            real_path=self._real_path,
            limits=self._limits(rounds, capabilities.context_tokens),
            temperature=options.temperature,
            max_output_tokens=options.max_output_tokens,
            prices=model.prices,
            tool_timeout_seconds=_seconds(options.tool_timeout_ms),
            model_timeout_seconds=_seconds(options.llm_api_timeout_ms),
            duplicate_threshold=options.duplicate_tool_call_threshold,
        )

    def _limits(self, rounds: int | None, window: int | None) -> Limits:
        options = self._options
        limits = Limits.of(rounds, options.max_context_tokens or window)
        return replace(
            limits,
            compacts=options.auto_compact is not False,
            compact_at=options.auto_compact_threshold or limits.compact_at,
        )

    def _warn_of_unknown(self, agent: AgentDefinition) -> None:
        known = self._toolbox.for_children()
        unknown = [name for name in agent.tools if name not in known and not re.search(r"[*?]|^mcp__", name)]
        if unknown and agent.name not in self._warned:
            self._warned.add(agent.name)
            logger.warning("agent '%s' names tools that there are not: %s", agent.name, ", ".join(unknown))

    def _warn_once(self, reference: str, who: str) -> None:
        if reference not in self._warned:
            self._warned.add(reference)
            logger.warning("%s cannot use tools: %s answers from its prompt alone", reference, who)


def _named(tools: dict[str, Tool], patterns: tuple[str, ...]) -> dict[str, Tool]:
    """Those that one of `patterns` names, in the order of the patterns."""
    found: dict[str, Tool] = {}
    for pattern in patterns:
        if pattern in tools:
            found[pattern] = tools[pattern]
        elif "*" in pattern or "?" in pattern:
            found |= {name: tool for name, tool in tools.items() if compile_glob(pattern).matches(name)}
    return found


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
