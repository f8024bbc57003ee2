"""SessionOptions: what a caller may set for one session."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from fanfold.contracts.agents import WorkerAgentSpec
from fanfold.contracts.policy import ConfirmationPolicy, PermissionPolicy
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.env import HostEnv
from fanfold.errors import UsageError
from fanfold.protocols import SessionStore

BUDGET_GUARD_TIMEOUT_MS = 5_000
MOST = 2**53
"""Of anything that is counted or waited for: what a loop's clock can count, and a float holds exactly."""
Positive = Annotated[int, Meta(ge=1, le=MOST)]


class AutoDelegation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Handing a prompt to fitting agents without the model's asking for it (notes 7.5); off by default."""

    enabled: bool = False
    max_tasks: Annotated[int, Meta(ge=1, le=32)] = 4
    min_confidence: Annotated[float, Meta(ge=0, le=1)] = 0.72
    allow_parallel: bool = True


class SessionOptions(msgspec.Struct, kw_only=True):
    """Fill it by keywords or by attributes; an attribute that does not exist is an error, not a silent typo."""

    model: str | None = None
    """`provider/model-id`; None: the configuration's `default_model`."""
    session_id: str | None = None
    """Also names the fact log's thread. None: a new id."""
    max_parallel_tasks: Positive | None = None
    max_tool_rounds: Annotated[int, Meta(ge=0, le=MOST)] | None = None

    # ---- governance ----
    permission_policy: PermissionPolicy | None = None
    confirmation_policy: ConfirmationPolicy | None = None
    approvals: Literal["park", "refuse"] | None = None
    """What a call that needs a person does: `park` (default) waits for `confirm_tool_use`; `refuse` ends the run with
    `ParkedError`, for hosts where nobody can answer. The log stays parked either way."""
    budget_guard: Any = None
    """A `BudgetGuard`, or an object with some of its methods."""
    budget_guard_timeout_ms: Positive | None = None
    duplicate_tool_call_threshold: Annotated[int, Meta(ge=2, le=MOST)] | None = None
    """The call that would be the n-th of a turn with the same arguments and, so far, the same results is not made:
    the model is told to try something else. None: no such limit."""

    # ---- persistence ----
    session_store: SessionStore | None = None
    """Where resumable calls keep what is finished, runs their checkpoints and `save` the session. It stays the
    caller's to close."""
    auto_save: bool | None = None
    """Save after each operation that changed the conversation."""
    retention_limits: SessionRetentionLimits | None = None
    host_env: HostEnv | None = None
    """Or `{"sequential_id_prefix": ..., "fixed_time_ms": ...}` for a replay: what is left out stays the system's."""

    # ---- the loop ----
    planning_mode: Literal["auto", "enabled", "disabled"] | None = None
    """Whether a plan is made before a prompt is worked on, by one model call more. `auto` (the default): when the
    prompt lists several steps, see `kernel.planning`."""
    planning: bool | None = None
    """None: as `planning_mode`, which wins; True: `enabled`; False: `disabled`."""
    goal_tracking: bool | None = None
    """Take the goal from the prompt, and judge after the answer whether it was reached: two model calls more."""
    auto_compact: bool | None = None
    """Compact the conversation when it nears the context window. None: yes, where its size is known."""
    auto_compact_threshold: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of the window at which that happens."""
    max_context_tokens: Positive | None = None
    """Size of the context window, when it is not the model's own."""
    tool_timeout_ms: Positive | None = None
    """Longest run of one tool call; then it is cancelled and has failed."""
    llm_api_timeout_ms: Positive | None = None
    """Longest model call, all attempts together."""
    stream_partials: bool | None = None
    """Stream the answers of steps with an `output_schema`, so that the listener of their call hears a
    `structured_partial` event, with what is there of the value, while it arrives."""
    instructions: str | None = None
    """Appended to the system prompt."""
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    max_output_tokens: Positive | None = None
    allow_unsandboxed_bash: bool | None = None

    wake_on_notice: bool | None = None
    """Whether an idle session starts a run by itself when work in the background has ended. None: yes; otherwise it is
    told of it in its next run."""

    # ---- agents ----
    agent_dirs: tuple[str, ...] | None = None
    worker_agents: tuple[WorkerAgentSpec, ...] | None = None
    manual_delegation_enabled: bool | None = None
    """Whether the model sees the `task` tool. None: yes, where the model can use tools."""
    workflow_tool: bool | None = None
    """Whether the model sees the `Workflow` tool. None: yes, where the model can use tools."""
    inline_workflows: bool | None = None
    """Whether workflows may be scripts that the model wrote; they run in a sandbox (extra `sandbox`). None: no."""
    workflow_limits: WorkflowLimits | None = None
    auto_delegation: AutoDelegation | None = None
    auto_parallel: bool | None = None
    """False: automatic delegation takes the one best agent only. What was asked for explicitly still fans out."""

    # ---- tags of the host, never read by fanfold ----
    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None

    def filled(self, saved: Mapping[str, Any]) -> "SessionOptions":
        """A copy in which what is None has the value that `saved` has under the same name. What is no option, or not
        any more, is left out."""
        unset = {name for name in self.__struct_fields__ if getattr(self, name) is None}
        return self.merged(**{name: value for name, value in saved.items() if name in unset})

    def merged(self, **overrides: Any) -> "SessionOptions":
        """A copy in which every override that is not None wins, with every value checked.

        Raises:
            UsageError: an override is no option, or a value is none that its option can have.
        """
        unknown = sorted(set(overrides) - set(self.__struct_fields__))
        if unknown:
            raise UsageError(f"unknown session option '{unknown[0]}'; there are: {', '.join(self.__struct_fields__)}")
        given = {name: value for name, value in overrides.items() if value is not None}
        if isinstance(given.get("session_store"), type) or isinstance(self.session_store, type):
            raise UsageError("session option session_store: it is a class, not a store such as FileSessionStore(dir)")
        merged = msgspec.structs.replace(self, **given)
        merged.host_env = parse_host_env(merged.host_env)
        chosen = ((name, getattr(merged, name)) for name in merged.__struct_fields__)
        values = {name: _unchecked(value) for name, value in chosen if value is not None}
        try:
            return msgspec.convert(values, SessionOptions)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at ")
            name = place.strip("`").removeprefix("$.")
            more = f"; there are: {', '.join(_CHOICES[name])}" if name in _CHOICES else ""
            raise UsageError(f"session option {name}: {reason}{more}") from None


_CHOICES = {"planning_mode": ("auto", "enabled", "disabled"), "approvals": ("park", "refuse")}


def _unchecked(value: Any) -> Any:
    """In a form that is checked as a whole: a record that was made by hand is not."""
    if isinstance(value, list | tuple):
        return [_unchecked(each) for each in cast("list[Any]", value)]
    is_record = isinstance(value, AutoDelegation | SessionRetentionLimits | WorkerAgentSpec | WorkflowLimits)
    return msgspec.structs.asdict(value) if is_record else value


class _Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fixed_time_ms: Annotated[int, Meta(ge=0, le=MOST)] | None = None
    sequential_id_prefix: str | None = None


_SEAMS = {"clock": ("now_ms", "monotonic_ms", "sleep"), "ids": ("new_id",), "random": ("random",)}


def parse_host_env(given: object) -> HostEnv | None:
    """A `HostEnv`, or the replay that a dict means.

    Raises:
        UsageError: it is none, or lacks what one needs.
    """
    if isinstance(given, HostEnv):
        for seam, methods in _SEAMS.items():
            for method in methods:
                if not callable(getattr(getattr(given, seam), method, None)):
                    raise UsageError(f"session option host_env: its {seam} has no method {method}()")
        return given
    if given is None:
        return None
    try:
        replay = msgspec.convert(given, _Replay)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        field = place.strip("`").removeprefix("$.").removeprefix("$")
        keys = ", ".join(_Replay.__struct_fields__)
        raise UsageError(
            f"session option host_env: {field + ': ' if field else ''}{reason}; it is a HostEnv, or a dict with {keys}"
        ) from None
    if not (replay.sequential_id_prefix or "").isascii():
        raise UsageError("session option host_env: sequential_id_prefix: it becomes a part of ids; use ASCII")
    return HostEnv.for_replay(replay.sequential_id_prefix, replay.fixed_time_ms)
