"""Calls of agents of workflow runs that wait for a person: found in the runs' journals, and answered there."""

from collections.abc import Sequence

import msgspec

from fanfold.contracts.codec import decode_fact, encode_fact
from fanfold.contracts.facts import Fact
from fanfold.contracts.run_journal import Turns
from fanfold.contracts.workflow_runs import RunSummary
from fanfold.control.parked_calls import Answer, Parked, answers_of, new_fact, open_calls, prompt_of, require_waiting
from fanfold.control.waiting import Waiting, of_parked_call, waiting_id
from fanfold.env import Clock
from fanfold.errors import AlreadyActiveError, ControlError, FanfoldError, ParkedError, WorkflowInputError
from fanfold.foreign import logger
from fanfold.kernel.run_entries import RunEntry
from fanfold.kernel.run_journal import encode_line, read_run_journal
from fanfold.kernel.run_view import RunJournalView
from fanfold.kernel.workflow_meta import agent_id_of
from fanfold.protocols import HeldRun, WorkflowFiles
from fanfold.workflow.runs import read_view, run_summary

WAIT_SECONDS = 2.0
"""For somebody else who records an answer just now."""
POLL_SECONDS = 0.05


async def look_at_runs(files: WorkflowFiles, parked: Parked) -> None:
    """Add what waits in the runs of `files`."""
    try:
        run_ids = await files.run_ids()
    except (FanfoldError, OSError) as error:
        parked.unreadable[files.directory] = error
        return
    for run_id in run_ids:
        try:
            run = await run_summary(files, run_id)
            if _may_wait(run):
                _add(run, await read_view(files, run_id), parked)
        except (FanfoldError, OSError) as error:
            if not (isinstance(error, WorkflowInputError) and error.code == "run_not_found"):  # deleted meanwhile
                parked.unreadable[run_id] = error


async def parked_agents(files: WorkflowFiles, run_id: str) -> list[Waiting]:
    """All that waits in one run.

    Raises:
        WorkflowInputError: there is no such run, or its journal cannot be used.
        StorageError: its files cannot be read.
    """
    parked = Parked([], {}, {})
    _add(await run_summary(files, run_id), await read_view(files, run_id), parked)
    return parked.waiting


def _may_wait(run: RunSummary) -> bool:
    """Somebody may want to go on with it: it is not over, and nobody has stopped it."""
    snapshot = run.snapshot
    if snapshot is None:
        return False
    is_given_up = run.status == "stopped" and snapshot.reason == "requested"
    return not is_given_up and run.status not in ("completed", "completed_with_failures")


def _add(run: RunSummary, view: RunJournalView, parked: Parked) -> None:
    snapshot = run.snapshot
    for entry in _unanswered(view):
        facts, step = _facts_of(entry), agent_id_of(entry.key)
        calls = open_calls(facts)
        if not calls and view.rejected_lines and _was_parked(entry) and not entry.has_been_answered:
            parked.lost.append((run.run_id, entry.label or step))
        for call in calls:
            waiting = of_parked_call(
                call,
                "run",
                run.run_id,
                step=step,
                about=entry.label or prompt_of(facts),
                since_ms=None if snapshot is None else snapshot.updated_ms,
            )
            if run.is_alive and snapshot is not None and entry.result is None:  # otherwise it was left parked
                waiting = msgspec.structs.replace(waiting, process=snapshot.process)
            parked.waiting.append(waiting)
        told = answers_of(facts)
        parked.answered.update({waiting_id(run.run_id, f"{step}/{call_id}"): what for call_id, what in told})


def waits_for_person(entry: RunEntry) -> bool:
    """Its agent has a call that wants an approval or an answer."""
    return bool(open_calls(_facts_of(entry)))


def _unanswered(view: RunJournalView) -> Sequence[RunEntry]:
    entries = [each for each in view.entries.values() if not each.is_answer and not each.is_superseded]
    return [each for each in entries if each.turns or _was_parked(each)]


def _was_parked(entry: RunEntry) -> bool:
    return entry.result is not None and entry.result.error is not None and entry.result.error.code == ParkedError.code


def _facts_of(entry: RunEntry) -> list[Fact]:
    """None of those that a later version has written: they are not gone on from either."""
    try:
        return [decode_fact(bytes(fact)) for fact in entry.turns]
    except ValueError:
        return []


async def record_in_run(waiting: Waiting, answer: Answer, files: WorkflowFiles, clock: Clock) -> str | None:
    """As `parked.record_answer`."""
    held = await _held(waiting, files, clock)
    try:
        return await _record(waiting, answer, held)
    finally:
        await held.release()


async def _held(waiting: Waiting, files: WorkflowFiles, clock: Clock) -> HeldRun:
    """The run, also behind somebody else who records an answer just now."""
    deadline = clock.monotonic_ms() + WAIT_SECONDS * 1000
    while True:
        try:
            return await files.hold(waiting.owner)
        except WorkflowInputError as error:
            raise ControlError("NOT_WAITING", f"nothing waits as '{waiting.id}' any more: {error}") from error
        except AlreadyActiveError:
            if waiting.process is not None or clock.monotonic_ms() >= deadline:
                raise
        await clock.sleep(POLL_SECONDS)


async def _record(waiting: Waiting, answer: Answer, held: HeldRun) -> str | None:
    read = await held.read_journal()
    view = read_run_journal(read.lines, held.run_id, has_torn_end=read.has_torn_end)
    entry = next((each for each in _unanswered(view) if agent_id_of(each.key) == waiting.step), None)
    facts = [] if entry is None else _facts_of(entry)
    require_waiting(waiting, facts)
    if entry is None:
        raise ControlError("NOT_WAITING", f"nothing waits as '{waiting.id}' any more")
    torn = None if view.whole_lines is None else await held.cut_journal(view.whole_lines)
    if torn is not None:
        logger.warning("run %s: its journal had a torn end, which is put aside as %s", held.run_id, torn)
    fact = new_fact(waiting.call_id, answer, len(facts)).at(len(facts) + 1)
    turns = Turns(seq=entry.seq, facts=(msgspec.Raw(encode_fact(fact)[:-1]),), is_answer=True)
    await held.append([encode_line(turns)])
    return torn
