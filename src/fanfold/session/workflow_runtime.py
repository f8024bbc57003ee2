"""The workflow runtime of one session, made of its executor, its agents, its permissions and its files.

Loaded when a session first wants it: it is a third of all that a start would have to load.
"""

from fanfold.contracts.messages import WORKFLOW, ToolSpec
from fanfold.contracts.policy import Decision
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.delegation.builtin_agents import find_agent
from fanfold.kernel.call_identity import agent_sha
from fanfold.kernel.permissions import decide_permission
from fanfold.session.workflows import WorkflowParts
from fanfold.workflow.host import AgentProfile
from fanfold.workflow.launching import Launcher
from fanfold.workflow.registry import Registry
from fanfold.workflow.run_notices import RunNotices
from fanfold.workflow.runtime import WorkflowRuntime

_LAUNCH = ToolSpec(name=WORKFLOW, description="", parameters={}, is_read_only=True)


def make_runtime(parts: WorkflowParts, notices: RunNotices) -> WorkflowRuntime:
    options, clock = parts.options, parts.env.clock
    registry = Registry(parts.folder())

    def decide(name: str) -> Decision:
        return decide_permission(parts.policy, _LAUNCH, {"name": name})[0]

    def profile(name: str, model: str | None) -> AgentProfile:
        agent = find_agent(name, parts.agents)
        if agent is None:
            return AgentProfile(model)
        return AgentProfile(model or agent.model or parts.composer.model, agent_sha(agent))

    launcher = Launcher(
        session_id=parts.session_id,
        files=parts.files,
        registry=registry,
        gate=decide,
        executor=parts.executor,
        profiles=profile,
        env=parts.env,
        limits=options.workflow_limits or WorkflowLimits(),
        takes_inline=bool(options.inline_workflows),
        notices=notices,
        model=lambda: parts.composer.model,
    )
    return WorkflowRuntime(
        portal=parts.portal,
        files=parts.files,
        registry=registry,
        launcher=launcher,
        start=parts.notices.launch,
        now_ms=lambda: int(clock.now_ms()),
        on_change=parts.composer.forget,
    )
