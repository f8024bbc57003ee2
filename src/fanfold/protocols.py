"""Every seam that a host may fill, on one page. Nothing else brings the world in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.facts import Fact, NewFact
from fanfold.contracts.messages import ModelReply, ModelRequest, ToolOutput, ToolSpec, Usage
from fanfold.contracts.policy import Decision
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, Worktree

EventSink = Callable[[AgentEvent], None]
"""Receives events in order, on the session's loop; must return at once."""


# ---- models ---------------------------------------------------------------------------------------------------------


class DeltaSink(Protocol):
    """Hears a reply while it is being written."""

    def text(self, piece: str) -> None: ...

    def reasoning(self, piece: str) -> None: ...

    def restart(self) -> None:
        """What was heard of this reply is void: the call is being repeated."""
        ...


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    structured: Literal["json_schema", "forced_tool", "prompt"] = "prompt"
    """How `ModelRequest.output_schema` is enforced. `prompt`: not at all, the caller must ask in words."""
    tools: bool = True
    context_tokens: int | None = None


class ModelClient(Protocol):
    """One model of one provider. Safe for many calls at once on one event loop."""

    @property
    def capabilities(self) -> ModelCapabilities: ...

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        """Make one call; stream it only when somebody listens. Cancelling the task ends the call at the provider.

        Raises:
            ProviderError: the call failed; `retryable` and `retry_after_ms` say what may be done.
        """
        ...

    async def close(self) -> None: ...


# ---- tools ----------------------------------------------------------------------------------------------------------


class ToolScope(msgspec.Struct, frozen=True, kw_only=True):
    """Where and for whom a tool runs."""

    session_id: str
    call_id: str
    idempotency_key: str
    """The same for each attempt at the same recorded call: at-least-once tools may deduplicate by it."""
    emit: EventSink
    workspace: str = ""
    """The folder to work in: the session's workspace, or the worktree of a step that has its own."""
    may_read: Callable[[str], bool] = lambda path: True
    """False for a workspace-relative path that a rule keeps `read` from: a tool that shows contents leaves it out."""
    fetch_decision: Callable[[str], Decision] = lambda url: "allow"
    """The gate's word on a `web_fetch` of that URL: asked where a redirect leads to another one than was judged."""


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        """Do it. `args` already match `spec.parameters`. What the model should read about a failure is an output with
        a non-zero `exit_code`; an exception is recorded as a failed result too, with the exception's text."""
        ...


@runtime_checkable
class ToolServer(Protocol):
    """Tools that live elsewhere: in a process of their own, or behind a URL (an MCP server)."""

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> Mapping[str, Tool]:
        """By the names under which models know them: `mcp__<server>__<tool>`. Calls after its death fail at once."""
        ...

    @property
    def is_alive(self) -> bool: ...

    async def close(self) -> None:
        """End it, with whatever it started; closing twice does nothing more."""
        ...


class StepFolderEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a step's folder."""

    worktree: Worktree | None = None
    """What it left behind; None when that could not be told."""
    fault: str | None = None
    """Why not all that it changed is kept in `worktree`, and where the rest is."""


class StepFolder(Protocol):
    """A folder of its own in which one step works, a copy of the workspace as it was last committed."""

    @property
    def root(self) -> str: ...

    @property
    def is_taken_up(self) -> bool:
        """It is that of an earlier attempt at the step, with what that one did."""
        ...

    def bound(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """The same tools, those of the workspace working in this folder."""
        ...

    def real_path(self, path: str) -> str:
        """Where in it a path argument really leads, as rules about paths name it."""
        ...

    async def end(self, *, message: str, now_ms: int) -> StepFolderEnd:
        """Keep what was changed, with `message`, and let the folder go. It raises nothing, and comes to its end though
        the task is cancelled meanwhile, which is left for the caller to look for."""
        ...


class StepFolders(Protocol):
    """Gives the steps that have `isolation` their folders."""

    async def begin(self, task_id: str, *, key: str, goes_on: bool, now_ms: int) -> StepFolder:
        """A fresh one, or, if the step `goes_on` from recorded turns, that of an earlier attempt, if there is one.

        Args:
            key: the same for each attempt at a step that may go on, else empty.

        Raises:
            UsageError: why there can be none.
        """
        ...


# ---- governance -----------------------------------------------------------------------------------------------------


class BudgetGuard(Protocol):
    """A host's policy for each model and tool call (seed 003). Any of the three may be missing: then it allows.

    They are plain functions and are called in a thread of their own. A check answers None, `{"decision": "allow"}`,
    `{"decision": "soft", "resource", "consumed", "limit", "message"?}` or `{"decision": "deny", "resource", "reason"}`;
    whatever else it does (raise, answer otherwise, take longer than its timeout) is a denial.
    """

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> JsonObject | None: ...

    def record_after_llm(self, session_id: str, usage: JsonObject) -> None:
        """After each successful call; what it raises is ignored."""
        ...

    def check_before_tool(self, session_id: str, tool_name: str) -> JsonObject | None: ...


HookHandler = Callable[[JsonObject], Any]
"""Gets one event as a dict, plain or `async`; answers None or `{"action": "continue" | "block" | "skip" | "retry"}`
with `modified`, `reason` or `delay_ms`. Plain handlers are called in a thread."""


# ---- facts ----------------------------------------------------------------------------------------------------------


class HeldThread(Protocol):
    """The exclusive right to one thread's log, from `FactLog.hold` until `release`."""

    @property
    def last_seq(self) -> int: ...

    @property
    def lineage(self) -> object:
        """An identity (compare it with `is`) of the past that this log has.

        It stays the same object only while this process knows that the log has only grown since it was last read. A
        reader that meets another one forgets what it folded and reads from the beginning.
        """
        ...

    @property
    def torn_tail(self) -> str | None:
        """Where the torn end of the log was put, when taking the thread had to cut one off."""
        ...

    async def read(self, after_seq: int = 0) -> Sequence[Fact]: ...

    async def append(self, facts: Sequence[NewFact]) -> Sequence[Fact]:
        """Write all or nothing, durable when it returns.

        Facts whose keys all exist already with equal payloads are a no-op (returns the stored ones).

        Raises:
            AppendConflictError: a key exists with another payload.
            LogWriteError: nothing of the batch will be seen by a later reader.
        """
        ...

    async def set_aside(self) -> None:
        """Keep all facts of the thread under a name of their own, where no session finds them; the thread is empty
        then, and its lineage another one."""
        ...

    async def release(self) -> None: ...


class FactLog(Protocol):
    async def hold(self, thread: str, *, wait_seconds: float = 0.0) -> HeldThread:
        """Take the thread for one operation, after repairing a torn tail.

        Raises:
            SessionBusyError: another holder, here or in another process, did not let go within `wait_seconds`.
            CorruptLogError: the log cannot be trusted; nothing was changed.
        """
        ...

    async def threads(self) -> Sequence[str]: ...

    async def close(self) -> None: ...


# ---- stores ---------------------------------------------------------------------------------------------------------


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The exclusive right to `name`, until it is released or its holder's process ends."""

    name: str
    epoch: int
    """The fencing token: greater than that of every earlier lease of the name."""


class Document(msgspec.Struct, frozen=True):
    revision: int
    """1 for the first version, rising by one with each."""
    data: bytes


@runtime_checkable
class SessionStore(Protocol):
    """What sessions and workflows keep for later, and for other nodes: logs, documents and leases.

    Logs, documents and leases have names of the form `<kind>/<id>`: the kind is `[a-z-]+`, the id any text that is not
    empty. The three do not share names. Whatever changes something is durable when it returns, all or nothing; with a
    `lease` it is refused unless that lease is the newest of its name and still held.

    Raises (each operation):
        UsageError: a name that is none (`invalid name ...`), a record or a document that is no bytes or, for a record,
            holds a newline (the message has the name).
        LifecycleError: the store is closed.
        LogWriteError, CorruptLogError: the storage refuses, or cannot be trusted.
    """

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        """Write `records` (bytes without a newline) behind the record `expected_seq`, 0 for a new log; returns the
        seq of the last one.

        Raises:
            StoreConflictError: the log's last seq is another one; nothing was written.
            FencedError: the lease is not in force any more; nothing was written.
        """
        ...

    async def read(self, log: str, after_seq: int = 0) -> Sequence[bytes]:
        """The records behind `after_seq`, a prefix of what was written; none for a log that does not exist."""
        ...

    async def delete(self, log: str, lease: Lease | None = None) -> bool:
        """Remove a log with all its records; False when there was none. Raises FencedError."""
        ...

    async def logs(self, kind: str) -> Sequence[str]:
        """Ids of the logs `<kind>/...` that have records, sorted."""
        ...

    async def load(self, document: str) -> Document | None: ...

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        """Replace the document (None: remove it) when it is at `expected_revision`, 0 for one that does not exist;
        returns its new revision, 0 after a removal. Raises StoreConflictError and FencedError as `append`."""
        ...

    async def documents(self, kind: str) -> Sequence[str]:
        """Ids of the documents `<kind>/...`, sorted."""
        ...

    async def acquire(self, name: str) -> Lease:
        """Take the lease of `name`, at once or not at all.

        Raises:
            AlreadyActiveError: somebody has it, here or in another process.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not in force any more is ignored."""
        ...

    async def close(self) -> None:
        """Release everything; closing twice does nothing more."""
        ...


# ---- workflow runs --------------------------------------------------------------------------------------------------


class RunLook(msgspec.Struct, frozen=True, kw_only=True):
    """A run's files as anybody may see them at any time."""

    snapshot: bytes | None
    is_held: bool
    """Somebody runs it just now, here or in another process."""


class JournalRead(msgspec.Struct, frozen=True, kw_only=True):
    lines: Sequence[bytes]
    """Whole lines without their newline, split at newlines alone."""
    has_torn_end: bool = False
    """The file ends within a line, which is not among `lines`."""


class HeldRun(Protocol):
    """The exclusive right to one run's files, until it is released or its process ends.

    Raises (each operation):
        LogWriteError: the file system refuses; what was written before stands.
    """

    @property
    def run_id(self) -> str: ...

    async def read_journal(self) -> JournalRead:
        """All of it. None of a journal that is not there: `JournalRead(lines=())`; see `has_journal`."""
        ...

    async def has_journal(self) -> bool: ...

    async def cut_journal(self, whole_lines: int) -> str | None:
        """Keep the first `whole_lines` lines; what stands behind them is put aside, and the name of that file is
        returned; None when nothing stood there."""
        ...

    async def append(self, lines: Sequence[bytes], *, is_durable: bool = True) -> None:
        """Write lines (without their newline) behind the journal in one go: all or nothing. Synced when it returns,
        unless it need not be durable."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """Keep `data`, durable when it returns, under its SHA-256, which is returned. The same data is kept once."""
        ...

    async def blob(self, name: str) -> bytes | None:
        """None when there is none, or its bytes are not those of its name."""
        ...

    async def write_snapshot(self, data: bytes) -> None:
        """Replace `<runId>.json` atomically."""
        ...

    async def write_output(self, data: bytes) -> None:
        """Replace `<runId>.output.json` atomically."""
        ...

    async def write_script(self, text: str) -> None:
        """Keep the text of an inline script, `<runId>.script.py`."""
        ...

    async def append_events(self, lines: Sequence[bytes]) -> None:
        """Write lines behind the event file, not synced. The file keeps the newest ones, within its bound."""
        ...

    async def requested(self) -> bytes | None:
        """What another process has asked of the run since it is held, see `WorkflowFiles.request`."""
        ...

    async def delete(self) -> int:
        """Remove all files of the run but its blobs, which others may share (see `WorkflowFiles.sweep_blobs`), and let
        it go, as `release`; returns how many bytes they had. Cut off or refused in the middle, it leaves a run without
        a snapshot, which can be held and deleted again."""
        ...

    async def release(self) -> None: ...


class WorkflowFiles(Protocol):
    """Where the runs of one workspace keep their files: journal, snapshot, output, blobs, events (decisions 4.3).

    A run id is `wf_<name>_<16 hex digits>`; anything else is refused before a file is touched.

    Raises (each operation):
        WorkflowInputError: `bad_run_id`.
        LogWriteError: the file system refuses.
    """

    @property
    def directory(self) -> str:
        """For people, and for tools that read an output."""
        ...

    async def create(self, run_id: str) -> HeldRun:
        """Hold a run that there is not yet.

        Raises:
            StoreConflictError: that id has files already.
        """
        ...

    async def hold(self, run_id: str) -> HeldRun:
        """Hold a run that there is.

        Raises:
            AlreadyActiveError: somebody has it.
            WorkflowInputError: `run_not_found`.
        """
        ...

    async def run_ids(self) -> Sequence[str]:
        """Newest first, as far as the file system tells."""
        ...

    async def look(self, run_id: str) -> RunLook | None:
        """None when there is no such run."""
        ...

    async def journal(self, run_id: str) -> JournalRead | None:
        """Without holding the run; None when it has no journal."""
        ...

    async def blob(self, run_id: str, name: str) -> bytes | None: ...

    async def output(self, run_id: str) -> bytes | None: ...

    async def script(self, run_id: str) -> str | None: ...

    async def events(self, run_id: str, after: int = 0) -> tuple[Sequence[bytes], int]:
        """Event lines behind the position `after`, and the position behind them. One that the file has not any more
        counts as its beginning."""
        ...

    async def request(self, run_id: str, data: bytes) -> None:
        """Leave a request for whoever holds the run."""
        ...

    def output_path(self, run_id: str) -> str: ...

    async def sweep_blobs(self) -> int:
        """Remove the blobs that no journal names as a JSON string; returns how many bytes they had. Nothing is removed
        while somebody holds a run: it may be about to name any of them."""
        ...

    # Notices: what a conversation is still to be told of (the outbox of spec-workflow 1.2).

    async def put_notice(self, session_id: str, run_id: str, data: bytes) -> None:
        """Keep it, durable when it returns; it replaces the one of the same run."""
        ...

    async def notices(self, session_id: str) -> Sequence[tuple[str, bytes]]:
        """(run id, data), oldest first."""
        ...

    async def remove_notice(self, session_id: str, run_id: str, data: bytes | None = None) -> None:
        """Remove it; with `data` only while it still is that one."""
        ...

    async def has_notice(self, run_id: str) -> bool:
        """Some session is still to be told of the run."""
        ...

    async def remove_notices(self, run_id: str) -> None:
        """Remove those of the run, whichever sessions they are for."""
        ...


# ---- orchestration --------------------------------------------------------------------------------------------------


@runtime_checkable
class AgentExecutor(Protocol):
    """Where steps run: the one seam of the orchestration grammar (seed 001)."""

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        """Run one step. A failure is an outcome with `success: false`, not an exception.

        Cancelling the task ends the step. `timeout_ms` and `retries` of the spec are kept by the callers of this seam.
        """
        ...

    def concurrency_hint(self) -> int: ...


class StepFacts(Protocol):
    """What a resumable call keeps of one step while it is under way."""

    @property
    def key(self) -> str:
        """The same for each attempt at this step of this workflow: tools may deduplicate by it."""
        ...

    @property
    def recorded(self) -> Sequence[Fact]:
        """The facts of the step so far, from its first on; none when it begins."""
        ...

    @property
    def has_failed(self) -> bool:
        """An attempt has ended behind the recorded facts."""
        ...

    def go_on(self) -> Usage:
        """Tell that the attempt goes on from the recorded facts; returns what of their usage is its own to tell, for
        no earlier attempt of this call has."""
        ...

    async def record(self, facts: Sequence[Fact]) -> None:
        """Keep the facts that follow; facts that begin with seq 1 replace all earlier ones. Durable when it returns."""
        ...


@runtime_checkable
class ResumableExecutor(AgentExecutor, Protocol):
    """An executor whose steps can go on from their recorded facts.

    It tells `subagent_start` when a step really starts, and its outcomes, unlike those of any other, are taken as they
    are: they must be JSON data of the types that `StepOutcome` says.
    """

    def within(self, facts: StepFacts) -> AgentExecutor:
        """This executor for one step, which begins where `facts` stand and tells them what comes after."""
        ...
