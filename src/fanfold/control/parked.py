"""What waits for a person where nobody runs it: in the logs of sessions, and in the journals of workflows.

Looking locks nothing and needs no configuration. An answer is recorded as the fact that the session itself would have
recorded, under the lock of its log or the lease of its workflow, so that the next run goes on from it.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec

from fanfold.agent import LOG_DIRECTORY
from fanfold.contracts.facts import ConfirmationAnswered, Fact, NewFact, QuestionAnswered, RecordedCall, UserMessaged
from fanfold.control.waiting import Waiting, of_parked_call
from fanfold.env import HostEnv
from fanfold.errors import AlreadyActiveError, ControlError, CorruptLogError, FanfoldError
from fanfold.kernel.fold import fold
from fanfold.kernel.journal import asked_specs
from fanfold.orchestration.journal import KIND, WorkflowJournal, read_journal
from fanfold.protocols import HeldThread, SessionStore
from fanfold.regular_file import read_regular
from fanfold.session.inbox import Approval, is_question
from fanfold.session.people import answer_fact, confirmation_fact
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.stores.thread_index import ThreadIndex
from fanfold.stores.thread_name import file_name

WAIT_SECONDS = 2.0
"""For somebody else who records an answer just now."""
_POLL_SECONDS = 0.05
_LONGEST_ABOUT = 80

Answer = Approval | str
"""Of an approval, or the text for a question."""


class Parked(msgspec.Struct, frozen=True):
    waiting: list[Waiting]
    answered: dict[str, str]
    """Ids of calls of the last turns that have their answer, and what it was: `approved`, `denied`, `answered`."""
    unreadable: dict[str, FanfoldError | OSError]
    """Sessions and workflows of which nothing can be said."""
    sessions: set[str] = set()
    """Those whose logs were read."""


# ---- looking ----


async def parked_in(workspace: Path, store: SessionStore) -> Parked:
    """All that waits in the session logs of `workspace` and the workflows of `store`."""
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
    for call in _open_calls(facts):
        parked.waiting.append(of_parked_call(call, "session", thread, since_ms=since_ms))
    parked.answered.update({f"{thread}/{call_id}": what for call_id, what in _answers(facts)})


async def _look_at_journal(store: SessionStore, workflow_id: str, parked: Parked) -> None:
    view = await read_journal(store, workflow_id)
    specs = None
    for place, thread in view.threads.items():
        calls = _open_calls(thread.facts)
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
                    about=(spec.description if spec is not None else "") or _prompt_of(thread.facts),
                    since_ms=view.newest_ms if end is None else end.ms,
                )
            )
        found = {f"{workflow_id}/{place}/{call_id}": what for call_id, what in _answers(thread.facts)}
        parked.answered.update(found)


def _prompt_of(facts: Sequence[Fact]) -> str | None:
    """The beginning of what the step was asked: the steps of a map have no other words in their journal."""
    texts = (fact.payload.text for fact in facts if isinstance(fact.payload, UserMessaged))
    return " ".join(next(texts, "").split())[:_LONGEST_ABOUT] or None


def _open_calls(facts: Iterable[Fact]) -> list[RecordedCall]:
    """Recorded calls that wait for an approval or an answer."""
    state = fold(facts)
    return [
        call
        for call in state.pending
        if call.id not in state.approved and (call.needs_confirmation or is_question(call))
    ]


def _answers(facts: Sequence[Fact]) -> list[tuple[str, Literal["approved", "denied", "answered"]]]:
    """The answers of the last turn."""
    found: list[tuple[str, Literal["approved", "denied", "answered"]]] = []
    for fact in reversed(facts):
        match fact.payload:
            case ConfirmationAnswered(tool_call_id=call_id, approved=approved):
                found.append((call_id, "approved" if approved else "denied"))
            case QuestionAnswered(question_id=call_id):
                found.append((call_id, "answered"))
            case UserMessaged():
                break
            case _:
                pass
    return found


# ---- answering ----


async def record_answer(waiting: Waiting, answer: Answer, workspace: Path, store: SessionStore, env: HostEnv) -> None:
    """Record the answer to a call that `parked_in` has found.

    Raises:
        ControlError: `ALREADY_ANSWERED` or `NOT_WAITING`, it does not wait any more.
        SessionBusyError, AlreadyActiveError: somebody runs that session or workflow just now.
        StorageError: it cannot be recorded.
    """
    if waiting.source == "workflow":
        await _record_in_journal(waiting, answer, store, env)
    else:
        await _record_in_log(waiting, answer, workspace)


async def _record_in_log(waiting: Waiting, answer: Answer, workspace: Path) -> None:
    async with _held(workspace, waiting.owner) as held:
        facts = await held.read()
        _require_waiting(waiting, facts)
        await held.append([_new_fact(waiting.call_id, answer, held.last_seq)])


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
        _require_waiting(waiting, facts)
        if thread is not None:
            new = _new_fact(waiting.call_id, answer, len(facts))
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
        await env.clock.sleep(_POLL_SECONDS)


def _require_waiting(waiting: Waiting, facts: Sequence[Fact]) -> None:
    if any(call.id == waiting.call_id for call in _open_calls(facts)):
        return
    what = dict(_answers(facts)).get(waiting.call_id)
    if what is None:
        raise ControlError("NOT_WAITING", f"nothing waits as '{waiting.id}' any more")
    raise ControlError("ALREADY_ANSWERED", f"'{waiting.id}' does not wait any more: it was {what}")


def _new_fact(call_id: str, answer: Answer, length: int) -> NewFact:
    if isinstance(answer, str):
        return answer_fact(call_id, answer, length)
    return confirmation_fact(call_id, answer, length)
