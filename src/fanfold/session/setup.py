"""AgentSetup: what one agent thinks with and may use; and the Composer, which puts it together for a session."""

import logging
from collections.abc import Callable, Mapping

import msgspec

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import PermissionPolicy
from fanfold.contracts.settings import Prices
from fanfold.contracts.steps import AgentStepSpec
from fanfold.kernel.decide import Limits
from fanfold.kernel.permissions import unknown_rules, visible_tools
from fanfold.options import SessionOptions
from fanfold.protocols import ModelClient, Tool

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
    real_path: Callable[[str], str]
    """Where in the workspace a path argument really leads: what a rule about paths is compared with."""
    limits: Limits
    temperature: float | None = None
    max_output_tokens: int | None = None
    prices: Prices | None = None


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
        tools: Mapping[str, Tool],
        real_path: Callable[[str], str],
        policy: PermissionPolicy,
        options: SessionOptions,
        max_tool_rounds: int | None,
    ) -> None:
        self._resolve = resolve
        self._model = model
        self._tools = tools
        self._real_path = real_path
        self._policy = policy
        self._options = options
        self._max_tool_rounds = max_tool_rounds
        self._composed: dict[tuple[str, str, int], AgentSetup] = {}
        self._warned: set[str] = set()

    def check(self) -> None:
        """Raise now what the session's own model would raise at the first prompt; warn of rules that name no tool."""
        self._resolve(self._model)
        for warning in unknown_rules(self._policy, self._tools):
            logger.warning(warning)

    def for_session(self) -> AgentSetup:
        """The session's own agent: every tool, the session's limits."""
        return self._compose(
            self._model, "", tuple(self._tools), (self._policy,), self._max_tool_rounds, who="the session"
        )

    def for_step(self, agent: AgentDefinition, spec: AgentStepSpec) -> AgentSetup:
        """A child of the role `agent`, with what the spec says of model and rounds."""
        reference = spec.model or self._model
        rounds = agent.max_steps if spec.max_steps is None else spec.max_steps
        key = (agent.name, reference, rounds)
        setup = self._composed.get(key)
        if setup is None:
            policies = (self._policy, agent.permissions)
            setup = self._compose(reference, agent.prompt, agent.tools, policies, rounds, who=f"agent '{agent.name}'")
            self._composed[key] = setup
        return setup

    def _compose(
        self,
        reference: str,
        role: str,
        tool_names: tuple[str, ...],
        policies: tuple[PermissionPolicy, ...],
        rounds: int | None,
        *,
        who: str,
    ) -> AgentSetup:
        model = self._resolve(reference)
        capabilities = model.client.capabilities
        tools = {name: self._tools[name] for name in tool_names if name in self._tools}
        if tools and not capabilities.tools:
            self._warn_once(reference, who)
            tools = {}
        specs = tuple(tool.spec for tool in tools.values())
        for policy in policies:
            specs = visible_tools(policy, specs)
        prompts = (CORE_PROMPT if tools else ANSWER_PROMPT, role, self._options.instructions)
        return AgentSetup(
            model=model.client,
            model_id=model.model_id,
            system="\n\n".join(prompt for prompt in prompts if prompt),
            tools=tools,
            specs=specs,
            policies=policies,
            real_path=self._real_path,
            limits=Limits.of(rounds, capabilities.context_tokens),
            temperature=self._options.temperature,
            max_output_tokens=self._options.max_output_tokens,
            prices=model.prices,
        )

    def _warn_once(self, reference: str, who: str) -> None:
        if reference not in self._warned:
            self._warned.add(reference)
            logger.warning("%s cannot use tools: %s answers from its prompt alone", reference, who)
