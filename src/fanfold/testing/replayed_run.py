"""replay_run: today's script over the journal of a finished run, with no agent at all (spec-workflow 4, 5)."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import WorkflowInputError
from fanfold.kernel.call_identity import CallMeaning
from fanfold.kernel.run_entries import NOTHING, Claim
from fanfold.kernel.run_journal import miss_reason
from fanfold.kernel.run_view import RunJournalView
from fanfold.stores.run_files import open_run_files
from fanfold.workflow.host import AgentProfile, PlacedCall, Profiles, RunHost
from fanfold.workflow.lanes import Lane
from fanfold.workflow.playing import Nested, play_script, ready
from fanfold.workflow.progress import Progress
from fanfold.workflow.registry import Registry
from fanfold.workflow.runs import read_view, snapshot_of
from fanfold.workflow.scripts import Script, read_script, registered


class ReplayMissError(AssertionError):
    """The script asked for something that the journal does not have."""


class _NoAgents:
    def __init__(self, view: RunJournalView) -> None:
        self._view = view

    async def skipped(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        return None  # as a resume answers it, with no agent either

    async def undecided(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        raise self._miss(placed, claim, "would wait for a decision")

    async def settled(self) -> None:
        """At once: nothing is recorded here."""

    async def __call__(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        raise self._miss(placed, claim, "would be run")

    def _miss(self, placed: PlacedCall, claim: Claim, what: str) -> ReplayMissError:
        reason, changes = miss_reason(self._view, claim, placed.identity, placed.where, placed.written)
        lines = "\n".join(changes or ())
        return ReplayMissError(f"'{placed.title}' at {placed.where} {what}: {reason}\n{lines}".rstrip())


class _NoFolder:
    def files(self) -> list[Any]:
        return []

    def is_approved(self, path: str, sha256: str) -> bool:
        return False

    def approve(self, path: str, sha256: str) -> None:
        raise WorkflowInputError("denied", "a replay approves nothing")


async def replay_run(
    workspace: str | Path,
    run_id: str,
    script: str | Callable[[Any, Any], Awaitable[Any]] | None = None,
    *,
    meta: Mapping[str, Any] | None = None,
    args: JsonObject | None = None,
    nested: Mapping[str, Callable[[Any, Any], Awaitable[Any]]] | None = None,
    profiles: Profiles | None = None,
) -> JsonValue:
    """What the script returns for the recorded answers of `run_id`; nothing is run and nothing written.

    So a test can hold that a changed script still resumes an old run for nothing.

    Args:
        script: the text of a script, or a function `(ctx, args)`; None: the text that the run kept (inline ones do).
        meta: of a function; by default that of the run.
        args: by default those of the run.
        nested: functions by the names of the workflows that the script runs, beside the shipped ones.
        profiles: model and digest of an agent, by (name, model that is asked for); by default those of the recorded
            calls, so that a changed agent or model is no miss.

    Raises:
        ReplayMissError: it asks for a call that is not recorded; the text says why.
        WorkflowInputError: there is no such run, or its journal cannot be read.
    """
    files = open_run_files(Path(workspace))
    snapshot, view = await snapshot_of(files, run_id), await read_view(files, run_id)
    registry = Registry(_NoFolder())
    for name, function in (nested or {}).items():
        registry.register({"name": name, "description": "nested"}, function)
    known_as = meta or {"name": snapshot.workflow, "description": "a replay"}
    what = await ready(_script(script, known_as, await files.script(run_id)))
    limits = WorkflowLimits(max_items=1_000_000)
    host = RunHost(
        view=view,
        read_blob=lambda blob: files.blob(run_id, blob),
        progress=Progress(run_id, snapshot.task_id, lambda told: None, lambda: 0),
        profiles=profiles or _recorded_profiles(view),
        limits=limits,
        ask=_NoAgents(view),
        play_nested=Nested(registry, lambda name: "allow", limits),
        budget=lambda: (None, view.usage.total_tokens),
        moved=lambda record: None,
    )
    return await play_script(what, snapshot.args if args is None else args, host, Lane())


def _script(given: Any, meta: Mapping[str, Any], kept: str | None) -> Script:
    if callable(given):
        return registered(dict(meta), given)
    text = kept if given is None else given
    if text is None:
        raise WorkflowInputError("bad_script", "the run kept no text of its script: give the script")
    return read_script(text, "inline" if given is None else "file")


def _recorded_profiles(view: RunJournalView) -> Profiles:
    known: dict[str, AgentProfile] = {}
    for entry in view.entries.values():
        if entry.call != NOTHING:
            call = msgspec.json.decode(entry.call, type=CallMeaning)
            known[call.agent] = AgentProfile(call.model, call.agent_sha)

    def profile(name: str, model: str | None) -> AgentProfile:
        recorded = known.get(name, AgentProfile())
        return AgentProfile(model or recorded.model, recorded.sha256)

    return profile
