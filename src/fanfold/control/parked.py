"""What waits for a person where nobody runs it: in the logs of sessions, in the journals of workflows (`orchestration`)
and of workflow runs.

Looking locks nothing and needs no configuration. An answer is recorded as the fact that the session itself would have
recorded, under the lock of its log or of its run or the lease of its workflow, so that the next run goes on from it.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fanfold.control.parked_calls import (
    Answer,
    Parked,
    answers_of,
    new_fact,
    open_calls,
    prompt_of,
    require_waiting,
)
from fanfold.control.parked_runs import POLL_SECONDS, WAIT_SECONDS, look_at_runs, record_in_run
from fanfold.control.waiting import Waiting, of_parked_call
from fanfold.env import HostEnv
from fanfold.errors import AlreadyActiveError, CorruptLogError, FanfoldError
from fanfold.kernel.journal import asked_specs
from fanfold.live_sessions import LOG_DIRECTORY
from fanfold.orchestration.journal import KIND, WorkflowJournal, read_journal
from fanfold.protocols import HeldThread, SessionStore
from fanfold.regular_file import read_regular
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.stores.run_files import open_run_files
from fanfold.stores.thread_index import ThreadIndex
from fanfold.stores.thread_name import file_name

# ---- looking ----


async def parked_in(workspace: Path, store: SessionStore) -> Parked:
    """All that waits in the session logs and the workflow runs of `workspace`, and in the workflows of `store`."""
    parked = Parked([], {}, {}, set())
    for thread in await _threads(workspace):
        try:
            _look_at_log(workspace, thread, parked)
        except (FanfoldError, OSError) as error:
            parked.unreadable[thread] = error
    for workflow_id in await store.logs(KIND):
        try:
            await _look_at_journal(store, workflow_id, parked)
        except (FanfoldError, OSError) as error:
            parked.unreadable[workflow_id] = error
    await look_at_runs(open_run_files(workspace), parked)
    return parked


async def parked_steps(store: SessionStore, workflow_id: str) -> list[Waiting]:
    """All that waits in one workflow.

    Raises:
        StorageError: its journal cannot be read, or not be trusted.
    """
    parked = Parked([], {}, {})
    await _look_at_journal(store, workflow_id, parked)
    return parked.waiting


async def _threads(workspace: Path) -> Sequence[str]:
    log = JsonlFactLog(workspace / LOG_DIRECTORY)
    try:
        return await log.threads()
    finally:
        await log.close()


def _look_at_log(workspace: Path, thread: str, parked: Parked) -> None:
    path = workspace / LOG_DIRECTORY / file_name(thread)
    try:
        data, since_ms = read_regular(path), path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return  # it was removed meanwhile
    facts, fault = ThreadIndex().absorb(data)
    if fault is not None and not fault.is_torn:
        raise CorruptLogError(thread=thread, line=len(facts) + 1, reason=fault.reason)
    parked.sessions.add(thread)
    for call in open_calls(facts):
        parked.waiting.append(of_parked_call(call, "session", thread, since_ms=since_ms))
    parked.answered.update({f"{thread}/{call_id}": what for call_id, what in answers_of(facts)})


async def _look_at_journal(store: SessionStore, workflow_id: str, parked: Parked) -> None:
    view = await read_journal(store, workflow_id)
    specs = None
    for place, thread in view.threads.items():
        calls = open_calls(thread.facts)
        if calls and specs is None:
            specs = asked_specs(view)
        end = view.failed.get(place)
        spec = None if specs is None else specs.get(place)
        for call in calls:
            parked.waiting.append(
                of_parked_call(
                    call,
                    "workflow",
                    workflow_id,
                    step=place,
                    about=(spec.description if spec is not None else "") or prompt_of(thread.facts),
                    since_ms=view.newest_ms if end is None else end.ms,
                )
            )
        found = {f"{workflow_id}/{place}/{call_id}": what for call_id, what in answers_of(thread.facts)}
        parked.answered.update(found)


# ---- answering ----


async def record_answer(
    waiting: Waiting, answer: Answer, workspace: Path, store: SessionStore, env: HostEnv
) -> str | None:
    """Record the answer to a call that `parked_in` has found. The file, if any, in which a torn end is now that the
    journal of its run had.

    Raises:
        ControlError: `ALREADY_ANSWERED` or `NOT_WAITING`, it does not wait any more.
        SessionBusyError, AlreadyActiveError: somebody runs that session, workflow or run just now.
        StorageError: it cannot be recorded.
    """
    if waiting.source == "workflow":
        await _record_in_journal(waiting, answer, store, env)
    elif waiting.source == "run":
        return await record_in_run(waiting, answer, open_run_files(workspace), env.clock)
    else:
        await _record_in_log(waiting, answer, workspace)
    return None


async def _record_in_log(waiting: Waiting, answer: Answer, workspace: Path) -> None:
    async with _held(workspace, waiting.owner) as held:
        facts = await held.read()
        require_waiting(waiting, facts)
        await held.append([new_fact(waiting.call_id, answer, held.last_seq)])


@asynccontextmanager
async def _held(workspace: Path, thread: str) -> AsyncGenerator[HeldThread]:
    log = JsonlFactLog(workspace / LOG_DIRECTORY)
    try:
        held = await log.hold(thread, wait_seconds=WAIT_SECONDS)
        try:
            yield held
        finally:
            await asyncio.shield(held.release())
    finally:
        await log.close()


async def _record_in_journal(waiting: Waiting, answer: Answer, store: SessionStore, env: HostEnv) -> None:
    journal = await _taken(store, waiting.owner, env)
    try:
        place = waiting.step or ""
        thread = journal.view.threads.get(place)
        facts = [] if thread is None else thread.facts
        require_waiting(waiting, facts)
        if thread is not None:
            new = new_fact(waiting.call_id, answer, len(facts))
            await journal.record_facts(place, thread.identity, [new.at(len(facts) + 1)])
    finally:
        await asyncio.shield(journal.close())


async def _taken(store: SessionStore, workflow_id: str, env: HostEnv) -> WorkflowJournal:
    deadline = env.clock.monotonic_ms() + WAIT_SECONDS * 1000
    while True:
        try:
            return await WorkflowJournal.open(store, workflow_id, env)
        except AlreadyActiveError:
            if env.clock.monotonic_ms() >= deadline:
                raise
        await env.clock.sleep(POLL_SECONDS)
