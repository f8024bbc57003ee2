"""What nobody runs: found in logs and journals without locking them, and answered with the very facts of a session."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from fanfold import FileSessionStore, HostEnv, StepOutcome
from fanfold.contracts.messages import ASK_USER, ModelRequest, ToolMessage
from fanfold.control.parked import parked_in, parked_steps, record_answer
from fanfold.control.parked_calls import Answer, Parked
from fanfold.control.waiting import Waiting
from fanfold.errors import AlreadyActiveError, ControlError, CorruptLogError, ParkedError, SessionBusyError
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.session.inbox import Approval
from fanfold.testing import Reply, ScriptedModel, calls
from tests.control.served import CHANGE, changer, facts_of, opened, until_waiting, write_then

YES, NO = Approval(True, ""), Approval(False, "not today")
QUESTION = calls((ASK_USER, {"question": "which?", "options": ["a", "b"]}))


def store_of(workspace: Path) -> FileSessionStore:
    return FileSessionStore(workspace / ".a3s" / "sessions")


async def looked(workspace: Path) -> Parked:
    async with store_of(workspace) as store:
        return await parked_in(workspace, store)


async def recorded(workspace: Path, waiting: Waiting, answer: Answer) -> None:
    async with store_of(workspace) as store:
        await record_answer(waiting, answer, workspace, store, HostEnv())


async def park(workspace: Path, reply: Reply = CHANGE, session_id: str = "s") -> None:
    model = ScriptedModel([reply])
    async with opened(workspace, model, changer(), session_id=session_id, approvals="refuse") as session:
        with pytest.raises(ParkedError):
            await session.send_async("go")


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_what_a_session_waits_for_is_found_in_its_log(tmp_path: Path) -> None:
    async def main() -> None:
        await park(tmp_path, session_id="one")
        await park(tmp_path, QUESTION, session_id="odd / name")
        parked = await looked(tmp_path)
        log = tmp_path / ".a3s/effect-log/one.jsonl"
        one, odd = sorted(parked.waiting, key=lambda each: each.kind)
        assert one.to_dict() == {
            "id": "one/call-1",
            "kind": "approval",
            "source": "session",
            "owner": "one",
            "call_id": "call-1",
            "tool": "change",
            "args": {"to": 1},
            "since_ms": log.stat().st_mtime_ns // 1_000_000,
        }
        assert (odd.id, odd.question, odd.options, odd.allow_free_text) == (
            "odd / name/call-1",
            "which?",
            ["a", "b"],
            False,
        )
        assert (parked.answered, parked.unreadable) == ({}, {})

    asyncio.run(main())


def test_an_empty_workspace_has_nothing_and_gets_nothing(tmp_path: Path) -> None:
    assert asyncio.run(looked(tmp_path)) == Parked([], {}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [YES, NO, "a"])
def test_an_answer_is_the_very_fact_that_the_session_would_record(tmp_path: Path, answer: Answer) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"

    async def main() -> None:
        ours.mkdir()
        await park(ours, QUESTION if isinstance(answer, str) else CHANGE)
        shutil.copytree(ours, theirs)
        [waiting] = (await looked(ours)).waiting
        await recorded(ours, waiting, answer)
        async with opened(theirs, ScriptedModel([]), changer()) as session:
            if isinstance(answer, str):
                assert await session.answer_question_async("call-1", answer)
            else:
                assert await session.confirm_tool_use_async("call-1", answer.approved, answer.reason)
        assert facts_of(ours) == facts_of(theirs)
        assert (await looked(ours)).waiting == []

    asyncio.run(main())


def test_an_approved_call_runs_once_when_the_session_goes_on(tmp_path: Path) -> None:
    tool = changer()

    async def main() -> None:
        await park(tmp_path)
        [waiting] = (await looked(tmp_path)).waiting
        await recorded(tmp_path, waiting, YES)
        async with opened(tmp_path, ScriptedModel(["changed"]), tool) as session:
            assert (await session.resume_run_async()).text == "changed"
            assert (await session.resume_run_async()).text == "changed"

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_a_denied_call_is_never_run(tmp_path: Path) -> None:
    tool = changer()

    async def main() -> None:
        await park(tmp_path)
        [waiting] = (await looked(tmp_path)).waiting
        await recorded(tmp_path, waiting, NO)
        async with opened(tmp_path, ScriptedModel([]), tool) as session:
            assert (await session.resume_run_async()).stop_reason == "denied"

    asyncio.run(main())
    assert tool.calls == []


def test_of_two_at_once_one_records_and_the_other_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        await park(tmp_path)
        [waiting] = (await looked(tmp_path)).waiting
        before = len(facts_of(tmp_path))
        both = await asyncio.gather(
            recorded(tmp_path, waiting, YES), recorded(tmp_path, waiting, NO), return_exceptions=True
        )
        [lost] = [each for each in both if each is not None]
        assert isinstance(lost, ControlError)
        assert lost.code == "ALREADY_ANSWERED"
        assert len(facts_of(tmp_path)) == before + 1
        [(id, what)] = (await looked(tmp_path)).answered.items()
        assert (id, str(lost)) == ("s/call-1", f"'s/call-1' does not wait any more: it was {what}")

    asyncio.run(main())


def test_a_call_that_was_given_up_does_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        await park(tmp_path)
        [waiting] = (await looked(tmp_path)).waiting
        async with opened(tmp_path, ScriptedModel(["other"]), changer()) as session:
            await session.send_async("something else")
        assert await looked(tmp_path) == Parked([], {}, {}, {"s"})
        with pytest.raises(ControlError) as caught:
            await recorded(tmp_path, waiting, YES)
        assert caught.value.code == "NOT_WAITING"

    asyncio.run(main())


def test_a_session_that_somebody_runs_is_busy(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([CHANGE]), changer()) as session:
            run = asyncio.create_task(session.send_async("go"))
            await until_waiting(session)
            [waiting] = (await looked(tmp_path)).waiting
            with pytest.raises(SessionBusyError):
                await recorded(tmp_path, waiting, YES)
            assert await session.cancel_async()
            await asyncio.wait({run})
            assert run.exception() is not None

    asyncio.run(main())


def test_a_damaged_log_is_told_and_the_others_are_listed(tmp_path: Path) -> None:
    async def main() -> None:
        for each in ("good", "torn", "bad"):
            await park(tmp_path, session_id=each)
        folder = tmp_path / ".a3s/effect-log"
        with (folder / "torn.jsonl").open("ab") as file:
            file.write(b'{"seq":3,"ty')
        lines = (folder / "bad.jsonl").read_bytes()
        (folder / "bad.jsonl").write_bytes(lines[:20] + b"?" + lines[21:])
        parked = await looked(tmp_path)
        assert sorted(each.owner for each in parked.waiting) == ["good", "torn"]
        assert [(name, type(error)) for name, error in parked.unreadable.items()] == [("bad", CorruptLogError)]

    asyncio.run(main())


# ---- workflows -------------------------------------------------------------------------------------------------------


def spec(task_id: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "agent": "general", "prompt": f"made-{task_id}", **more}


SPECS = [spec("a", description="tidy a"), spec("b"), {"task_id": "c", "agent": "answer", "prompt": "made-c"}]


async def run_workflow(workspace: Path, model: ScriptedModel) -> list[StepOutcome]:
    async with (
        store_of(workspace) as store,
        opened(workspace, model, session_store=store, approvals="refuse") as session,
    ):
        outcomes: list[StepOutcome] = await session.parallel_resumable_async(SPECS, "nightly")
        return outcomes


def writing(request: ModelRequest) -> Reply:
    return write_then("done")(request) if request.tools else Reply(text="answered")


def test_steps_that_failed_as_parked_are_found_and_the_same_call_goes_on_from_their_answers(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(writing)
        outcomes = await run_workflow(tmp_path, model)
        assert [outcome.error_code for outcome in outcomes] == ["PARKED", "PARKED", None]
        waiting = (await looked(tmp_path)).waiting
        assert [(each.id, each.source, each.step, each.about) for each in waiting] == [
            ("nightly/a/call-1", "workflow", "a", "tidy a"),
            ("nightly/b/call-1", "workflow", "b", "made-b"),
        ]
        assert waiting[0].args == {"file_path": "made-a", "content": "x"}
        await recorded(tmp_path, waiting[0], YES)
        await recorded(tmp_path, waiting[1], NO)
        parked = await looked(tmp_path)
        assert (parked.waiting, parked.answered) == (
            [],
            {"nightly/a/call-1": "approved", "nightly/b/call-1": "denied"},
        )
        asked_before = len(model.requests)
        again = await run_workflow(tmp_path, model)
        assert [outcome.success for outcome in again] == [True, False, True]
        assert "a tool call was denied" in again[1].output
        assert len(model.requests) == asked_before + 1
        assert isinstance(model.requests[-1].transcript.message, ToolMessage)

    asyncio.run(main())
    assert sorted(path.name for path in tmp_path.glob("made-*")) == ["made-a"]


def test_the_journal_is_as_sound_as_before(tmp_path: Path) -> None:
    async def main() -> None:
        await run_workflow(tmp_path, ScriptedModel(writing))
        for answer in (NO, YES):
            waiting = (await looked(tmp_path)).waiting
            await recorded(tmp_path, waiting[0], answer)
        async with store_of(tmp_path) as store:
            journal = await WorkflowJournal.open(store, "nightly", HostEnv())
            assert {place: len(thread.facts) for place, thread in journal.view.threads.items()} == {"a": 3, "b": 3}
            await journal.close()
            assert await parked_steps(store, "nightly") == []

    asyncio.run(main())


def test_a_workflow_that_somebody_runs_is_active(tmp_path: Path) -> None:
    async def main() -> None:
        await run_workflow(tmp_path, ScriptedModel(writing))
        [waiting, _] = (await looked(tmp_path)).waiting
        async with store_of(tmp_path) as store:
            journal = await WorkflowJournal.open(store, "nightly", HostEnv())
            with pytest.raises(AlreadyActiveError):
                await recorded(tmp_path, waiting, YES)
            await journal.close()
            await recorded(tmp_path, waiting, YES)

    asyncio.run(main())


def test_of_two_at_a_workflow_one_records_and_the_other_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        await run_workflow(tmp_path, ScriptedModel(writing))
        [waiting, _] = (await looked(tmp_path)).waiting
        both = await asyncio.gather(
            recorded(tmp_path, waiting, YES), recorded(tmp_path, waiting, YES), return_exceptions=True
        )
        [lost] = [each for each in both if each is not None]
        assert isinstance(lost, ControlError)
        assert lost.code == "ALREADY_ANSWERED"

    asyncio.run(main())


def test_a_step_that_was_forgotten_does_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        await run_workflow(tmp_path, ScriptedModel(writing))
        [waiting, _] = (await looked(tmp_path)).waiting
        async with store_of(tmp_path) as store:
            await store.delete("workflow/nightly")
        with pytest.raises(ControlError) as caught:
            await recorded(tmp_path, waiting, YES)
        assert caught.value.code == "NOT_WAITING"
        async with store_of(tmp_path) as store:
            assert await store.logs("workflow") == []

    asyncio.run(main())


def test_a_journal_that_cannot_be_trusted_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        await run_workflow(tmp_path, ScriptedModel(writing))
        await park(tmp_path, session_id="good")
        async with store_of(tmp_path) as store:
            await store.append("workflow/strange", 0, [b'{"k":"open","workflow":"other","version":1,"at_ms":1}'])
        parked = await looked(tmp_path)
        assert list(parked.unreadable) == ["strange"]
        assert {each.owner for each in parked.waiting} == {"nightly", "good"}

    asyncio.run(main())
