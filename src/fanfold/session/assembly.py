"""Assembly: a session put together from what its agent gives it."""

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.messages import TASK, WORKFLOW
from fanfold.contracts.policy import PermissionPolicy
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.delegation.task_tool import TaskTool
from fanfold.delegation.tracker import Tracker
from fanfold.env import HostEnv
from fanfold.foreign import logger
from fanfold.governance.budget import BudgetGate
from fanfold.governance.hooks import Hooks
from fanfold.options import BUDGET_GUARD_TIMEOUT_MS, SessionOptions
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.limiter import Limiter
from fanfold.portal import Portal
from fanfold.protocols import FactLog, StepFolders, Tool, ToolServer, WorkflowFiles
from fanfold.runs.operations import Operations
from fanfold.runs.run_control import RunControls
from fanfold.runs.runs import Runs
from fanfold.session.child import TaskExecutor
from fanfold.session.conversation import Conversation
from fanfold.session.hosted import ConnectServer, ReadAgents
from fanfold.session.inbox import Inbox
from fanfold.session.notices import Notices
from fanfold.session.prompting import Prompting
from fanfold.session.saved_session import SavedConversation
from fanfold.session.saving import SessionSaves
from fanfold.session.session import Session
from fanfold.session.setup import Composer, ResolveModel
from fanfold.session.toolbox import Toolbox
from fanfold.session.workflows import WorkflowParts, Workflows
from fanfold.workflow.tool import WorkflowTool

if TYPE_CHECKING:
    from fanfold.workflow.registry import ScriptFolder


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session gets from its agent."""

    portal: Portal
    session_id: str
    workspace: Path
    options: SessionOptions
    env: HostEnv
    log: FactLog
    resolve: ResolveModel
    model: str
    role: AgentDefinition | None
    """What the session's own agent is, when it is a named one."""
    policy: PermissionPolicy
    tools: Mapping[str, Tool]
    servers: Mapping[str, ToolServer]
    agents: dict[str, AgentDefinition]
    real_path: Callable[[str], str]
    folders: StepFolders | None
    new_child_log: Callable[[], FactLog]
    max_parallel_tasks: int
    max_tool_rounds: int | None
    connect: ConnectServer
    read_agents: ReadAgents
    keep_text: Callable[[str], Awaitable[str | None]]
    """Keeps what is too long to be shown to a model; where it can read it, or None."""
    workflow_files: Callable[[], WorkflowFiles]
    workflow_folder: "Callable[[], ScriptFolder]"
    on_close: Callable[[Session], Coroutine[Any, Any, None]]
    warnings: Sequence[str] = ()


def assemble(parts: Parts) -> Session:
    """Raises ConfigError: the session's model is unknown, or its key is missing."""
    options, env, session_id, workspace = parts.options, parts.env, parts.session_id, str(parts.workspace)
    limits = options.retention_limits or SessionRetentionLimits()
    operations, inbox = Operations(session_id), Inbox()
    hooks = Hooks(common=_tags(options), real_path=parts.real_path)
    budget = BudgetGate(options.budget_guard, options.budget_guard_timeout_ms or BUDGET_GUARD_TIMEOUT_MS)
    toolbox = Toolbox(parts.tools, parts.servers)
    composer = Composer(
        resolve=parts.resolve,
        model=parts.model,
        toolbox=toolbox,
        real_path=parts.real_path,
        policy=parts.policy,
        role=parts.role,
        options=options,
        max_tool_rounds=parts.max_tool_rounds,
    )
    notices = Notices(operations, wakes=options.wake_on_notice is not False)
    runs, tracker = Runs(session_id, env, limits), Tracker(limits, env.clock)
    executor = TaskExecutor(
        agents=parts.agents,
        setup_for=composer.for_step,
        new_log=parts.new_child_log,
        limiter=Limiter(parts.max_parallel_tasks),
        inbox=inbox,
        env=env,
        hooks=hooks,
        budget=budget,
        tracker=tracker,
        workspace=workspace,
        folders=parts.folders,
        approvals=options.approvals or "park",
        streams_partials=bool(options.stream_partials),
        parent_session_id=session_id,
    )
    fan_outs: weakref.WeakSet[FanOutControl] = weakref.WeakSet()
    if options.manual_delegation_enabled is not False:
        toolbox.offer(
            TASK,
            TaskTool(
                executor=executor,
                env=env,
                agents=parts.agents,
                tracker=tracker,
                launch=notices.launch_task,
                notify=notices.post,
                new_control=lambda: _known(FanOutControl(), fan_outs),
                keep=parts.keep_text,
            ),
        )
    workflows = Workflows(
        WorkflowParts(
            portal=parts.portal,
            session_id=session_id,
            options=options,
            policy=parts.policy,
            agents=parts.agents,
            composer=composer,
            executor=executor,
            env=env,
            notices=notices,
            files=parts.workflow_files,
            folder=parts.workflow_folder,
        )
    )
    if options.workflow_tool is not False:
        toolbox.offer(WORKFLOW, WorkflowTool(workflows.runtime))
    composer.check()
    saved = _saved(parts, composer, runs, tracker)
    prompting = Prompting(options=options, agents=parts.agents)
    conversation = Conversation(
        session_id=session_id,
        workspace=workspace,
        options=options,
        env=env,
        log=parts.log,
        composer=composer,
        operations=operations,
        inbox=inbox,
        hooks=hooks,
        budget=budget,
        runs=runs,
        notices=notices,
        saved=saved,
        finish=prompting.finish,
        prepare=prompting.prepare,
    )
    return Session(
        portal=parts.portal,
        session_id=session_id,
        workspace=workspace,
        is_named=options.session_id is not None,
        options=options,
        env=env,
        executor=executor,
        store=options.session_store,
        operations=operations,
        fan_outs=fan_outs,
        inbox=inbox,
        conversation=conversation,
        prompting=prompting,
        runs=runs,
        controls=RunControls(session_id, hooks, lambda: [run.inbox for run in runs.all()]),
        tracker=tracker,
        saved=saved,
        hooks=hooks,
        budget=budget,
        toolbox=toolbox,
        composer=composer,
        agents=parts.agents,
        connect=parts.connect,
        read_agents=parts.read_agents,
        workflows=workflows,
        on_close=parts.on_close,
        warnings=parts.warnings,
    )


def _known(control: FanOutControl, fan_outs: "weakref.WeakSet[FanOutControl]") -> FanOutControl:
    fan_outs.add(control)
    return control


def _saved(parts: Parts, composer: Composer, runs: Runs, tracker: Tracker) -> SavedConversation | None:
    store = parts.options.session_store
    if store is None:
        if parts.options.auto_save:
            logger.warning("session %s: auto_save saves nothing without a session_store", parts.session_id)
        return None
    return SavedConversation(
        saves=SessionSaves(store, parts.session_id),
        session_id=parts.session_id,
        workspace=str(parts.workspace),
        options=parts.options,
        role=parts.role,
        model=lambda: composer.model,
        runs=runs,
        tracker=tracker,
        env=parts.env,
    )


def _tags(options: SessionOptions) -> JsonObject:
    """The host's own labels, which hooks are told with every event (seed 003)."""
    tags = {
        "tenant_id": options.tenant_id,
        "principal": options.principal,
        "agent_template_id": options.agent_template_id,
        "correlation_id": options.correlation_id,
    }
    return {name: value for name, value in tags.items() if value is not None}
