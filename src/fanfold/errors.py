"""The whole error tree; catch by what you can do about it.

    FanfoldError (RuntimeError)
    ├── UsageError              fix the calling code
    │   ├── InvalidSpecError    an AgentStepSpec that cannot run (also a ValueError)
    │   ├── ConfigError         agent.acl / agent.toml / options (also a ValueError)
    │   ├── InvalidHookError    a hook that cannot be registered (also a ValueError)
    │   ├── MissingExtraError   an optional dependency is not installed
    │   ├── MissingStoreError   the operation needs a session store
    │   ├── WorkflowInputError  a workflow, its arguments or a call cannot be (also a ValueError; see `code`)
    │   └── StepChangedError    a strict resume met a step that is not the one it recorded
    ├── LifecycleError          right call, wrong moment
    │   ├── SessionBusyError    another operation holds the session or its thread
    │   ├── RunControlError     a steer or interrupt that was not accepted (`code` says why)
    │   ├── RunIdentityError    a run id that stands for other input
    │   ├── AlreadyActiveError  somebody runs the workflow (or whatever has that name) just now
    │   ├── ControlError        a live session of another process could not be asked, or refused (`code` says why)
    │   └── SessionClosedError
    ├── RunError                this run ended; the session lives on
    │   ├── StepLimitError
    │   ├── BudgetExhaustedError
    │   ├── ProviderError       the model's side failed (`retryable` says whether waiting may help)
    │   ├── HookBlockedError    a hook of the host stopped it
    │   ├── ParkedError         it waits for a person, and nobody can answer here
    │   ├── WorkflowAgentError  an agent that a workflow called has failed
    │   ├── ScriptError         an inline script raised (`code` is the name of what it raised)
    │   ├── SandboxError        an inline script was ended: a limit, or the sandbox died
    │   └── RunCancelledError
    ├── StorageError            the facts on disk
    │   ├── CorruptLogError
    │   ├── AppendConflictError
    │   ├── LogWriteError       disk full, permission, I/O error
    │   ├── StoreConflictError  a log or document is not at the place that the writer expected
    │   ├── FencedError         the writer's lease was taken over or given back
    │   ├── SessionNotFoundError  nothing was saved under that id
    │   ├── CheckpointNotFoundError  nothing is recorded that a run could go on from
    │   ├── RunCheckpointRefusedError  a run's checkpoint that this session may not build on
    │   └── CheckpointRefusedError  a workflow's journal that no run may build on
    ├── ToolError               a tool that the host called itself has failed
    ├── McpError                an MCP server could not be started, or has died
    ├── ExecutorError           a step executor broke its contract
    └── InternalError           our bug, with the story that led to it

Every class has a stable wire `code`; every error survives pickling with its fields.
"""

import re
from collections.abc import Sequence
from typing import Literal, Self


def _revive(cls: type["FanfoldError"], args: tuple[object, ...], fields: dict[str, object]) -> "FanfoldError":
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error


class FanfoldError(RuntimeError):
    """Root of everything that fanfold raises on purpose."""

    code: str = "FANFOLD_ERROR"
    """Stable: branch on it, not on the text."""
    hint: str | None = None
    """What the reader may do about it, where there is one thing to do."""

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only constructors cannot be replayed from `args`, so pickle the finished object instead.
        return (_revive, (type(self), self.args, dict(self.__dict__)))

    def with_hint(self, hint: str) -> Self:
        self.hint = hint
        return self


class UsageError(FanfoldError):
    code = "USAGE_ERROR"


class InvalidSpecError(UsageError, ValueError):
    """`invalid AgentStepSpec: ...`, raised before any step of the call has started."""

    code = "INVALID_SPEC"

    def __init__(self, reason: str, *, index: int | None = None, field: str | None = None) -> None:
        where = ".".join(part for part in ("" if index is None else f"specs[{index}]", field) if part)
        super().__init__(f"invalid AgentStepSpec: {where}: {reason}" if where else f"invalid AgentStepSpec: {reason}")
        self.reason = reason
        self.index = index
        self.field = field


class ConfigError(UsageError, ValueError):
    """Configuration that cannot be used. `problems` lists every fault found, each with its place."""

    code = "CONFIG_ERROR"

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("Config error: " + "\n".join(self.problems))


class InvalidHookError(UsageError, ValueError):
    """A hook that cannot be registered; the ones that are stay as they were."""

    code = "INVALID_HOOK"


class MissingExtraError(UsageError):
    code = "MISSING_EXTRA"

    def __init__(self, *, feature: str, install: str, reason: str = "") -> None:
        tail = f" ({reason})" if reason else ""
        super().__init__(f"{feature} is not installed{tail}; install it with: {install}")
        self.feature = feature
        self.install = install


class MissingStoreError(UsageError):
    code = "MISSING_STORE"


class WorkflowInputError(UsageError, ValueError):
    """A workflow that is not launched, or a call in one that is refused; nothing was run or written by it.

    `code` is one of `bad_meta`, `denied`, `unknown_workflow`, `needs_approval`, `bad_script`, `bad_args`, `bad_run_id`,
    `run_not_found`, `journal_missing`, `journal_refused`, `wrong_workflow`, `args_mismatch`, `script_changed`,
    `already_active`, `store_unwritable`, `bad_call`, `nesting`, `fanout_limit`, `agent_cap`, `not_serialisable`,
    `nondeterministic`, `wrong_moment` (spec-workflow 5.1). A spent budget is a `BudgetExhaustedError`.
    """

    code = "workflow_input"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StepChangedError(UsageError):
    """`strict=True` met a step whose meaning is not the recorded one; nothing has started."""

    code = "STEP_CHANGED"

    def __init__(self, *, workflow_id: str, task_ids: Sequence[str]) -> None:
        named = ", ".join(f"'{each}'" for each in task_ids[:5]) + (", ..." if len(task_ids) > 5 else "")
        super().__init__(f"workflow '{workflow_id}' recorded other steps than these: {named} changed since")
        self.workflow_id = workflow_id
        self.task_ids = tuple(task_ids)


class LifecycleError(FanfoldError):
    code = "LIFECYCLE_ERROR"


class SessionBusyError(LifecycleError):
    code = "SESSION_BUSY"

    def __init__(self, *, session_id: str, holder: str | None = None) -> None:
        tail = f" in {holder}" if holder else ""
        super().__init__(f"Session '{session_id}' already has an active operation{tail}")
        self.session_id = session_id
        self.holder = holder


class RunControlError(LifecycleError):
    """A steer or interrupt that was not accepted; nothing has changed.

    `code` is one of `INVALID_REQUEST`, `DUPLICATE_REQUEST`, `HOOK_DENIED`, `HOOK_RETRY`, `SESSION_MISMATCH`,
    `RUN_MISMATCH`, `CLOSED`, `NO_ACTIVE_RUN`, `DEADLINE_EXCEEDED`, `STALE_TURN`, `QUEUE_FULL` (notes 5.4).
    """

    code = "RUN_CONTROL_ERROR"

    def __init__(self, code: str, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(f"Run control error: {message}")
        self.code = code
        self.retry_after_ms = retry_after_ms


class RunIdentityError(LifecycleError):
    code = "RUN_IDENTITY_CONFLICT"

    def __init__(self, *, run_id: str) -> None:
        super().__init__(f"Run '{run_id}' is already bound to different immutable input")
        self.run_id = run_id


class AlreadyActiveError(LifecycleError):
    """The lease of `name` (`<kind>/<id>`) has a holder."""

    code = "ALREADY_ACTIVE"

    def __init__(self, *, name: str, holder: str | None = None) -> None:
        kind, _, known_as = name.partition("/")
        super().__init__(f"{kind} '{known_as}' is already active" + (f" in {holder}" if holder else ""))
        self.name = name
        self.holder = holder


class ControlError(LifecycleError):
    """A live session of another process could not be asked, or refused what it was asked.

    `code` is `CONTROL_UNAVAILABLE` (no process can be reached so on this machine), `CONTROL_UNREACHABLE` (that one
    ended or kept silent), `NOT_SERVED`, `NOT_WAITING`, `ALREADY_ANSWERED`, `INVALID_REQUEST`, or that of the error that
    the session raised, such as `NO_ACTIVE_RUN`.
    """

    code = "CONTROL_ERROR"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SessionClosedError(LifecycleError):
    code = "SESSION_CLOSED"

    def __init__(self, *, session_id: str) -> None:
        super().__init__(f"Session '{session_id}' is closed")
        self.session_id = session_id


class RunError(FanfoldError):
    code = "RUN_ERROR"


class StepLimitError(RunError):
    code = "STEP_LIMIT"

    def __init__(self, *, limit: int) -> None:
        super().__init__(f"StepLimit: the run took {limit} steps and was not finished")
        self.limit = limit


class BudgetExhaustedError(RunError):
    code = "BUDGET_EXHAUSTED"

    def __init__(self, *, resource: str, reason: str) -> None:
        super().__init__(f"Budget exhausted on '{resource}': {reason}")
        self.resource = resource
        self.reason = reason

    @classmethod
    def saying(cls, text: str, *, resource: str) -> Self:
        """The error that says `text`, as an outcome tells it; `text` is its reason where it names no resource."""
        told = re.fullmatch(r"Budget exhausted on '([^']*)': (.*)", text, re.DOTALL)
        return cls(resource=resource, reason=text) if told is None else cls(resource=told[1], reason=told[2])


_BLOCKED_BY: dict[str, Literal["auth", "quota"]] = {"auth": "auth", "quota": "quota"}
"""By kind."""


class ProviderError(RunError):
    """The model's side failed.

    `kind` is one of `connection`, `timeout`, `rate_limit`, `overloaded`, `server`, `auth`, `quota`,
    `bad_request`, `not_found`, `protocol`, `circuit_open`.

    `blocked_by` is set when every further call with this key will be refused too, until somebody acts or until
    `reset_ms` (Unix ms), where the server named a moment. A kind of `auth` or `quota` says so by itself.
    """

    code = "LLM_ERROR"

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        retryable: bool,
        provider: str = "",
        status: int | None = None,
        retry_after_ms: int | None = None,
        blocked_by: Literal["auth", "quota"] | None = None,
        reset_ms: int | None = None,
    ) -> None:
        super().__init__(f"LLM error: {message}")
        self.kind = kind
        self.retryable = retryable
        self.provider = provider
        self.status = status
        self.retry_after_ms = retry_after_ms
        self.blocked_by: Literal["auth", "quota"] | None = blocked_by or _BLOCKED_BY.get(kind)
        self.reset_ms = reset_ms


class HookBlockedError(RunError):
    code = "HOOK_BLOCKED"

    def __init__(self, *, event: str, reason: str) -> None:
        super().__init__(f"a hook blocked {event}: {reason}")
        self.event = event
        self.reason = reason


class ParkedError(RunError):
    """The run waits for an approval or an answer; its log stays parked and can be resumed after the answer."""

    code = "PARKED"

    def __init__(self, *, tool_id: str, tool_name: str, what: str, args_of_call: object = None) -> None:
        super().__init__(f"waits for {what} (id {tool_id})")
        self.tool_id = tool_id
        self.tool_name = tool_name
        self.what = what
        self.args_of_call = args_of_call


class WorkflowAgentError(RunError):
    """An agent that a workflow called has failed; in a slot of `parallel` or `pipeline` it makes that slot None."""

    code = "AGENT_FAILED"

    def __init__(self, *, label: str, where: str, reason: str, agent_code: str | None = None) -> None:
        super().__init__(f"agent '{label}' failed: {reason}")
        self.label = label
        self.where = where
        """Path of the call in its run."""
        self.agent_code = agent_code
        """`error_code` of its outcome."""


class ScriptError(RunError):
    """What left an inline script; what a call of its had raised leaves it as it is instead."""

    code = "SCRIPT_ERROR"

    def __init__(self, *, error_type: str, message: str, line: int | None = None, trace: str = "") -> None:
        super().__init__(f"{error_type}: {message}" if message else error_type)
        self.code = error_type
        self.error_type = error_type
        self.message = message
        self.line = line
        """Of the script."""
        self.trace = trace


class SandboxError(RunError):
    """The sandbox of an inline script ended before its script did: a limit, or its process died."""

    code = "SANDBOX"

    def __init__(self, *, reason: str, line: int | None = None) -> None:
        super().__init__(f"the script was ended: {reason}")
        self.reason = reason
        self.line = line
        """Of the script, where it is known."""


class RunCancelledError(RunError):
    code = "RUN_CANCELLED"

    def __init__(self, *, session_id: str) -> None:
        super().__init__(f"the operation of session '{session_id}' was cancelled")
        self.session_id = session_id


class StorageError(FanfoldError):
    code = "STORAGE_ERROR"


class CorruptLogError(StorageError):
    """A log that cannot be trusted. Nothing was changed; `line` is 1-based, `what` the kind of log."""

    code = "CORRUPT_LOG"

    def __init__(self, *, thread: str, line: int, reason: str, what: str = "fact log") -> None:
        super().__init__(f"{what} '{thread}' is corrupt at line {line}: {reason}")
        self.thread = thread
        self.line = line
        self.reason = reason
        self.hint = f"look at it with: fanfold log check {thread}; set it aside with: fanfold log repair {thread}"


class AppendConflictError(StorageError):
    code = "APPEND_CONFLICT"

    def __init__(self, *, thread: str, key: str, seq: int) -> None:
        super().__init__(f"key '{key}' of fact log '{thread}' already belongs to fact {seq}, with another payload")
        self.thread = thread
        self.key = key
        self.seq = seq


class LogWriteError(StorageError):
    code = "IO_ERROR"

    def __init__(self, *, path: str, reason: str, action: str = "write") -> None:
        super().__init__(f"cannot {action} {path}: {reason}")
        self.action = action
        self.path = path
        self.reason = reason


class StoreConflictError(StorageError):
    """Somebody else wrote first: `name` is at `actual`, not at `expected`."""

    code = "STORE_CONFLICT"

    def __init__(self, *, name: str, expected: int, actual: int) -> None:
        super().__init__(f"'{name}' is at {actual}, not at {expected}: somebody else has written to it")
        self.name = name
        self.expected = expected
        self.actual = actual


class FencedError(StorageError):
    """A write under a lease that is not in force any more; it was not done."""

    code = "FENCED"

    def __init__(self, *, name: str, epoch: int) -> None:
        super().__init__(f"the lease of '{name}' (epoch {epoch}) is not in force any more; nothing was written")
        self.name = name
        self.epoch = epoch


class CheckpointRefusedError(StorageError):
    """`workflow checkpoint cannot be resumed: ...`; nothing has started and nothing was changed."""

    code = "CHECKPOINT_REFUSED"

    def __init__(self, *, workflow_id: str, reason: str) -> None:
        super().__init__(f"workflow checkpoint cannot be resumed: {reason}")
        self.workflow_id = workflow_id
        self.reason = reason


class ToolError(FanfoldError):
    code = "TOOL_ERROR"

    def __init__(self, *, tool: str, message: str) -> None:
        super().__init__(f"Tool error: {tool}: {message}")
        self.tool = tool


class McpError(FanfoldError):
    code = "MCP_ERROR"

    def __init__(self, *, server: str, reason: str) -> None:
        super().__init__(f"MCP error: server '{server}': {reason}")
        self.server = server
        self.reason = reason


class RunCheckpointRefusedError(StorageError):
    """Nothing was started, and the checkpoint stays as it is."""

    code = "CHECKPOINT_REFUSED"


class SessionNotFoundError(StorageError):
    code = "SESSION_NOT_FOUND"

    def __init__(self, *, session_id: str) -> None:
        super().__init__(f"no session '{session_id}' was saved in this session store")
        self.session_id = session_id


class CheckpointNotFoundError(StorageError):
    code = "CHECKPOINT_NOT_FOUND"

    def __init__(self, *, run_id: str) -> None:
        super().__init__(f"no loop checkpoint found for run '{run_id}'")
        self.run_id = run_id
        self.hint = "the run is settled, or it never reached its first checkpoint: send a new prompt"


class ExecutorError(FanfoldError):
    code = "EXECUTOR_ERROR"


class InternalError(FanfoldError):
    code = "INTERNAL_ERROR"
