"""Laws of run control: which requests are accepted, what becomes of a steer, and from where it may come."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, FileSessionStore, HostEnv, PermissionPolicy, SequentialIds
from fanfold.contracts.messages import ModelRequest
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunControlReceipt
from fanfold.errors import ProviderError, RunCancelledError, RunControlError, UsageError
from fanfold.runs.control_request import parse_request
from fanfold.runs.run_inbox import MAX_REMEMBERED, MAX_WAITING, RunInbox
from fanfold.testing import ManualClock, Reply, ScriptedModel, as_json, calls, echo
from fanfold.testing.scripted import Answer, newest_text
from tests.support.running import (
    HeldTool,
    PacedModel,
    facts,
    keys,
    opened,
    receipt_of,
    refused,
    said,
    spoken,
    turns,
    until,
)
from tests.support.tools import RecordingTool

# ---- steer ----------------------------------------------------------------------------------------------------------


def test_a_steer_is_heard_by_the_next_model_call(tmp_path: Path) -> None:
    model = PacedModel(calls(("look", {})), "as you wish")

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            stream = await session.stream_async("go")
            await model.asked()
            receipt = await session.steer_async("the tests first", {"request_id": "r-1"})
            assert (receipt["state"], receipt["operation"], receipt["run_id"]) == ("accepted", "steer", stream.run_id)
            assert receipt["schema"] == "a3s.code.run-control-receipt.v1"
            snapshot = await session.run_control_snapshot_async()
            assert snapshot is not None
            assert snapshot["queued_controls"] == 1
            model.answer()
            assert spoken(await model.asked())[-2:] == ["tool: done", "user: the tests first"]
            snapshot = await session.run_control_snapshot_async()
            assert snapshot is not None
            assert (snapshot.queued_controls, snapshot.turn_id, snapshot.turn_revision) == (0, "turn-2", 2)
            model.answer()
            told = [item async for item in stream if item.type == "run_control_applied"]
            recorded = [
                item for item in await session.run_events_async(stream.run_id) if item.type == "run_control_applied"
            ]
            assert told == recorded
            assert told[0].payload == {
                "request_id": "r-1",
                "operation": "steer",
                "turn_id": "turn-2",
                "turn_revision": 2,
                "input": "the tests first",
            }
            now = await receipt_of(session, receipt)
            assert (now.state, now.turn_id, now.turn_revision) == ("applied", "turn-2", 2)
            assert now.applied_at_ms is not None
            assert (await stream.result_async()).text == "as you wish"

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "model:1:0", "tool-result:1:0:call-1", "steer:r-1", "model:2:0"]


def test_a_steer_that_meets_the_final_answer_gets_a_model_call_of_its_own(tmp_path: Path) -> None:
    model = PacedModel("first answer", "second answer")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            receipt = await session.steer_async("in one word")
            model.answer(2)
            assert (await run).text == "second answer"
            assert (await receipt_of(session, receipt)).state == "applied"
            assert said(session) == [
                "user: go",
                "assistant: first answer",
                "user: in one word",
                "assistant: second answer",
            ]

    asyncio.run(main())


def test_steers_are_applied_in_their_order_and_all_before_one_call(tmp_path: Path) -> None:
    model = PacedModel("one", "two")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            for number in range(3):
                await session.steer_async(f"steer {number}")
            model.answer(2)
            await run
            assert spoken(model.requests[1])[-3:] == ["user: steer 0", "user: steer 1", "user: steer 2"]
            receipts = await session.run_control_receipts_async((await run).run_id)
            assert [each.sequence for each in receipts] == [1, 2, 3]
            assert [each.turn_revision for each in receipts] == [2, 3, 4]

    asyncio.run(main())
    assert len(model.requests) == 2


def test_a_steer_during_a_tool_waits_for_the_tool(tmp_path: Path) -> None:
    tool = HeldTool()
    model = ScriptedModel([calls(("hold", {})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await tool.started.get()
            receipt = await session.steer_async("and then?")
            await turns()
            assert (await receipt_of(session, receipt)).state == "accepted"
            tool.let_go.set()
            await run
            assert spoken(model.requests[1])[-2:] == ["tool: held", "user: and then?"]

    asyncio.run(main())


def test_a_steer_while_parked_waits_for_the_person(tmp_path: Path) -> None:
    model = ScriptedModel([calls(("look", {})), "done"])
    tool = RecordingTool("look", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, model, tool, permission_policy=PermissionPolicy(ask=("look",))) as session:
            run = asyncio.create_task(session.send_async("go"))
            await until(session.pending_confirmations)
            receipt = await session.steer_async("hurry")
            await turns()
            assert (await receipt_of(session, receipt)).state == "accepted"
            assert await session.confirm_tool_use_async("call-1", True)
            await run
            assert spoken(model.requests[1])[-2:] == ["tool: done", "user: hurry"]

    asyncio.run(main())


def test_a_steer_brings_back_rounds_and_budget(tmp_path: Path) -> None:
    model = PacedModel(calls(("look", {})), "enough", calls(("look", {})), "done")

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), max_tool_rounds=1) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            model.answer()
            assert (await model.asked()).tools == ()
            await session.steer_async("once more")
            model.answer()
            assert (await model.asked()).tools
            model.answer(2)
            assert ((await run).text, (await run).tool_calls_count) == ("done", 2)

    asyncio.run(main())


def test_a_run_that_makes_no_further_model_call_takes_no_steer(tmp_path: Path) -> None:
    let_go = asyncio.Event()
    judging = asyncio.Event()

    async def answer(request: ModelRequest) -> Reply | str:
        if "progress" in str(request.output_schema):
            judging.set()
            await let_go.wait()
            return as_json({"achieved": True, "progress": 1.0, "reason": "done", "criteria_met": []})
        return as_json({"goal": "g", "criteria": ["c"]}) if request.output_schema else "answer"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(answer), goal_tracking=True) as session:
            run = asyncio.create_task(session.send_async("go"))
            await judging.wait()
            assert await refused(session.steer_async("too late")) == (
                "NO_ACTIVE_RUN",
                "there is no active run to control",
            )
            let_go.set()
            assert (await run).text == "answer"

    asyncio.run(main())


def test_a_slash_command_takes_no_steer_but_can_be_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        begun, let_go = asyncio.Event(), asyncio.Event()

        async def slow(args: str, context: Any) -> str:
            begun.set()
            await let_go.wait()
            return "never"

        async with opened(tmp_path, ScriptedModel(echo)) as session:
            session.register_command("slow", "takes its time", slow)
            run = asyncio.create_task(session.send_async("/slow"))
            await begun.wait()
            assert (await refused(session.steer_async("x")))[0] == "NO_ACTIVE_RUN"
            await session.interrupt_async()
            with pytest.raises(RunCancelledError):
                await run
            assert said(session) == []
            assert (await session.send_async("next")).text == "next"

    asyncio.run(main())


def test_an_accepted_steer_is_settled_only_by_a_run_that_does_not_succeed(tmp_path: Path) -> None:
    fault = ProviderError("no", kind="auth", retryable=False)
    tool = HeldTool()
    script: dict[str, Answer] = {"^held by": fault, "": calls(("hold", {}))}

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(script), tool) as session:
            receipts: list[RunControlReceipt] = []
            for prompt in ("fail", "cancel", "close"):
                tool.let_go.clear()
                run = asyncio.create_task(session.send_async(prompt))
                await tool.started.get()
                receipts.append(await session.steer_async(f"held by {prompt}"))
                if prompt == "fail":
                    tool.let_go.set()
                elif prompt == "cancel":
                    await session.cancel_async()
                else:
                    await session.close_async()
                with pytest.raises((ProviderError, RunCancelledError)):
                    await run
            # The model call that failed had heard it; the others had none.
            assert [(await receipt_of(session, each)).state for each in receipts] == ["applied", "settled", "settled"]
            error = (await receipt_of(session, receipts[1])).error
            assert error is not None
            assert (error.code, error.message) == ("RUN_ENDED", "run ended before the control reached a safe point")

    asyncio.run(main())


# ---- admission ------------------------------------------------------------------------------------------------------

LONG = "x" * 131_073


@pytest.mark.parametrize(
    ("input", "options", "says"),
    [
        ("", {}, "steer input must not be empty"),
        (" \n", {}, "steer input must not be empty"),
        (LONG, {}, "steer input exceeds 131072 bytes"),
        ("ä" * 65_537, {}, "steer input exceeds 131072 bytes"),
        ("\ud800", {}, "steer input is not text that can be written as UTF-8"),
        (5, {}, "input: Expected `str`, got `int`"),
        ("x", {"request_id": ""}, "request_id must not be empty"),
        ("x", {"run_id": "  "}, "run_id must not be empty"),
        ("x", {"session_id": "a\nb"}, "session_id contains a control character"),
        ("x", {"expected_turn_id": "a\0b"}, "expected_turn_id contains a control character"),
        ("x", {"request_id": "x" * 513}, "request_id exceeds 512 bytes"),
        ("x", {"request_id": 5}, "request_id: Expected `str | null`, got `int`"),
        ("x", {"expected_turn_revision": "1"}, "expected_turn_revision: Expected `int | null`, got `str`"),
        ("x", {"expected_turn_revision": True}, "expected_turn_revision: Expected `int | null`, got `bool`"),
        ("x", {"deadline_ms": 1.5}, "deadline_ms: Expected `int | null`, got `float`"),
        ("x", {"reason": "r"}, "unknown option 'reason'; there are: deadline_ms, expected_turn_id, "),
        ("x", {"operation": "interrupt"}, "unknown option 'operation'; there are: "),
        ("x", 5, "options must be a mapping, got 5"),
        ("x", "ab", "options must be a mapping, got 'ab'"),
    ],
)
def test_a_request_of_a_wrong_shape_is_refused_first(tmp_path: Path, input: Any, options: Any, says: str) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            code, message = await refused(session.steer_async(input, options))
            assert code == "INVALID_REQUEST"
            assert message.startswith(f"invalid run-control request: {says}")

    asyncio.run(main())


def test_an_interrupt_of_a_wrong_shape_is_refused_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            for options, says in (
                ({"reason": "x" * 4_097}, "reason exceeds 4096 bytes"),
                ({"force": 1}, "force: Expected `bool`, got `int`"),
                ({"input": "x"}, "unknown option 'input'"),
            ):
                code, message = await refused(session.interrupt_async(options))
                assert (code, says in message) == ("INVALID_REQUEST", True)

    asyncio.run(main())


def test_options_that_are_none_are_as_if_left_out() -> None:
    request = parse_request("interrupt", {"reason": None, "run_id": None, "force": None, "deadline_ms": None})
    assert request == parse_request("interrupt", None)


def deny(payload: JsonObject) -> JsonObject:
    return {"action": "block", "reason": "not now"}


STALE = "stale run-control request: expected turn={}, revision={}; current turn=turn-1, revision=0"
CASES: list[tuple[JsonObject, bool, str, str]] = [
    # options of the steer, whether a hook denies; each has the faults of all rows below it, and the first one counts
    ({"request_id": "used"}, True, "DUPLICATE_REQUEST", "request id `used` was already used for a different command"),
    ({"session_id": "other"}, True, "HOOK_DENIED", "run-control request was denied by a hook: not now"),
    (
        {"session_id": "other"},
        False,
        "SESSION_MISMATCH",
        "run-control target session does not match the active session",
    ),
    ({"run_id": "other"}, False, "RUN_MISMATCH", "run-control target run `other` is not the active run"),
    ({"deadline_ms": 1}, False, "DEADLINE_EXCEEDED", "run-control request deadline has expired"),
    ({"expected_turn_id": "turn-9"}, False, "STALE_TURN", STALE.format("turn-9", "-")),
    ({"expected_turn_revision": 7}, False, "STALE_TURN", STALE.format("-", "7")),
    ({}, False, "QUEUE_FULL", "run-control inbox is full"),
]


def test_the_checks_have_their_order(tmp_path: Path) -> None:
    """Rows from below add up, so that each request has every later fault as well."""
    model = PacedModel("one", "two")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            for number in range(MAX_WAITING):
                await session.steer_async("x", {"request_id": "used"} if number == 0 else {})
            added: JsonObject = {}
            for options, is_denied, code, message in reversed(CASES):
                added = {**added, **options}
                if code == "STALE_TURN":
                    added = {**options}
                if is_denied and session.hook_count() == 0:
                    session.register_hook("h", "pre_run_control", handler=deny)
                assert await refused(session.steer_async("other", added)) == (code, message)
            code, _ = await refused(session.steer_async("", added))
            assert code == "INVALID_REQUEST"
            session.unregister_hook("h")
            model.answer(2)
            await run

    asyncio.run(main())


def test_a_run_that_is_stopping_takes_nothing_and_a_closed_session_says_so(tmp_path: Path) -> None:
    tool = HeldTool(is_slow_to_stop=True)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("hold", {}))]), tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await tool.started.get()
            await session.interrupt_async({"reason": "enough"})
            await until(lambda: tool.stopped)
            snapshot = await session.run_control_snapshot_async()
            assert snapshot is not None
            assert (snapshot.active, snapshot.interrupt_requested) == (False, True)
            late = {"deadline_ms": 1}
            assert (await refused(session.steer_async("x", late)))[0] == "NO_ACTIVE_RUN"
            assert (await refused(session.interrupt_async(late)))[0] == "NO_ACTIVE_RUN"
            assert (await refused(session.steer_async("x", {"run_id": "other"})))[0] == "RUN_MISMATCH"
            closing = asyncio.create_task(session.close_async())
            await turns(5)
            assert await refused(session.steer_async("x", late)) == ("CLOSED", "run-control inbox is closed")
            assert (await refused(session.steer_async("x", {"run_id": "other"})))[0] == "RUN_MISMATCH"
            tool.may_stop.set()
            await closing
            with pytest.raises(RunCancelledError):
                await run
            assert (await refused(session.steer_async("x")))[0] == "CLOSED"

    asyncio.run(main())


def test_an_idle_session_has_nothing_to_control(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            for _ in range(2):
                assert await session.run_control_snapshot_async() is None
                for work in (
                    session.steer_async("x"),
                    session.interrupt_async(),
                    session.steer_async("x", {"run_id": "r"}),
                ):
                    assert await refused(work) == ("NO_ACTIVE_RUN", "there is no active run to control")
                await session.send_async("hi")
                before = facts(tmp_path)
                assert not await session.cancel_async()
                assert facts(tmp_path) == before

    asyncio.run(main())


def test_a_full_inbox_has_room_for_an_interrupt(tmp_path: Path) -> None:
    model = PacedModel("never")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            for _ in range(MAX_WAITING):
                await session.steer_async("x")
            assert (await refused(session.steer_async("x")))[0] == "QUEUE_FULL"
            await session.interrupt_async()
            with pytest.raises(RunCancelledError):
                await run

    asyncio.run(main())


def test_a_hook_may_put_a_control_off(tmp_path: Path) -> None:
    asked: list[JsonObject] = []

    def later(payload: JsonObject) -> JsonObject:
        asked.append(payload)
        return {"action": "retry", "delay_ms": 250}

    model = PacedModel("done")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            session.register_hook("h", "pre_run_control", handler=later)
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            with pytest.raises(RunControlError, match="must be retried after 250 ms") as caught:
                await session.steer_async("x", {"session_id": "other"})
            assert (caught.value.code, caught.value.retry_after_ms) == ("HOOK_RETRY", 250)
            snapshot = await session.run_control_snapshot_async()
            assert snapshot is not None
            assert (snapshot.queued_controls, snapshot.last_sequence) == (0, 0)
            model.answer()
            await run

    asyncio.run(main())
    assert {key: asked[0][key] for key in ("operation", "input", "session_id")} == {
        "operation": "steer",
        "input": "x",
        "session_id": "s",
    }


def test_hooks_are_told_what_became_of_a_request(tmp_path: Path) -> None:
    told: list[JsonObject] = []
    model = PacedModel("done", "and done")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            session.register_hook("post", "post_run_control", handler=told.append)
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            for _ in range(2):
                await session.steer_async("x", {"request_id": "r"})
            await refused(session.steer_async("x", {"run_id": "other"}))
            session.register_hook("pre", "pre_run_control", handler=deny)
            await refused(session.interrupt_async())
            model.answer(2)
            await run
            await session.close_async()
            assert (await refused(session.steer_async("x")))[0] == "CLOSED"

    asyncio.run(main())
    assert [(each["operation"], each["state"]) for each in told] == [
        ("steer", "accepted"),
        ("steer", "rejected"),
        ("interrupt", "rejected"),
    ]
    assert (told[0]["request_id"], told[0]["sequence"], told[0]["input"]) == ("r", 1, "x")
    assert [each["error"]["code"] for each in told[1:]] == ["RUN_MISMATCH", "HOOK_DENIED"]


def test_no_control_waits_for_the_hooks_of_another_one(tmp_path: Path) -> None:
    """Not an interrupt for a steer that is still looked at, nor what a hook itself asks for."""
    model = PacedModel("never")

    async def main() -> None:
        is_asked, let_go = asyncio.Event(), asyncio.Event()

        async def look(payload: JsonObject) -> None:
            if payload.get("input") == "slow":
                await session.steer_async("from within")
                is_asked.set()
                await let_go.wait()

        async with opened(tmp_path, model) as session:
            session.register_hook("h", "pre_run_control", handler=look)
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            slow = asyncio.create_task(refused(session.steer_async("slow")))
            await is_asked.wait()
            await session.interrupt_async()
            with pytest.raises(RunCancelledError):
                await run
            let_go.set()
            assert (await slow)[0] == "NO_ACTIVE_RUN"

    asyncio.run(main())


def test_what_was_meant_for_a_run_is_not_given_to_the_next_one(tmp_path: Path) -> None:
    """The hook is still asked when the run ends and another begins."""
    model = PacedModel("first", "second")

    async def main() -> None:
        is_asked, let_go = asyncio.Event(), asyncio.Event()

        async def slow(payload: JsonObject) -> None:
            is_asked.set()
            await let_go.wait()

        async with opened(tmp_path, model) as session:
            session.register_hook("h", "pre_run_control", handler=slow)
            first = asyncio.create_task(session.send_async("one"))
            await model.asked()
            steering = asyncio.create_task(refused(session.steer_async("for the first")))
            await is_asked.wait()
            model.answer()
            await first
            second = asyncio.create_task(session.send_async("two"))
            await model.asked()
            let_go.set()
            assert (await steering)[0] == "NO_ACTIVE_RUN"
            model.answer()
            assert (await second).text == "second"

    asyncio.run(main())


# ---- request ids ----------------------------------------------------------------------------------------------------


def test_equal_requests_at_the_same_time_are_one(tmp_path: Path) -> None:
    asked: list[JsonObject] = []
    model = PacedModel("one", "two")

    async def main() -> None:
        async def ask(payload: JsonObject) -> None:
            asked.append(payload)
            await turns()

        async with opened(tmp_path, model) as session:
            session.register_hook("h", "pre_run_control", handler=ask)
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            equal = [session.steer_async("x", {"request_id": "r"}) for _ in range(16)]
            receipts = await asyncio.gather(*equal)
            assert len({receipt.sequence for receipt in receipts}) == len(set(map(str, receipts))) == 1
            snapshot = await session.run_control_snapshot_async()
            assert snapshot is not None
            assert (snapshot.queued_controls, snapshot.last_sequence) == (1, 1)
            model.answer(2)
            await run

    asyncio.run(main())
    assert len(asked) == 1
    assert keys(tmp_path).count("steer:r") == 1


def test_a_retry_gets_the_receipt_as_it_stands_and_sends_nothing_twice(tmp_path: Path) -> None:
    model = PacedModel("one", "two", "three")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            guarded = {"request_id": "r", "expected_turn_revision": 0}
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            assert (await session.steer_async("x", guarded)).state == "accepted"
            assert (await session.steer_async("x", guarded)).state == "accepted"
            model.answer()
            await model.asked()
            assert (await session.steer_async("x", guarded)).state == "applied"
            for changed in ({**guarded, "expected_turn_revision": 2}, {"request_id": "r"}):
                assert (await refused(session.steer_async("x", changed)))[0] == "DUPLICATE_REQUEST"
            assert (await refused(session.interrupt_async({"request_id": "r"})))[0] == "DUPLICATE_REQUEST"
            model.answer()
            first = (await run).run_id
            assert (await session.steer_async("x", guarded)).state == "applied"
            run = asyncio.create_task(session.send_async("again"))
            await model.asked()
            assert (await session.steer_async("x", guarded)).run_id == first
            model.answer()
            await run
            await session.close_async()
            assert (await session.steer_async("x", guarded)).state == "applied"

    asyncio.run(main())
    assert len(model.requests) == 3


def test_receipts_last_as_long_as_their_runs_are_kept(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model, retention_limits={"max_runs_retained": 3}) as session:
            receipts: list[RunControlReceipt] = []

            for number in range(5):
                stream = await session.stream_async(f"prompt {number}")
                receipts.append(await session.steer_async("x", {"request_id": f"r-{number}"}))
                await stream.result_async()
            known = [bool(await session.run_control_receipts_async(each.run_id)) for each in receipts]
            assert known == [False, False, True, True, True]
            assert (await session.steer_async("x", {"request_id": "r-2"})).state == "applied"

    asyncio.run(main())


def test_receipts_come_back_with_a_saved_session(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path / "store")

    async def first() -> None:
        async with opened(tmp_path, ScriptedModel(echo), session_store=store, auto_save=True) as session:
            stream = await session.stream_async("go")
            await session.steer_async("x", {"request_id": "r"})
            await stream.result_async()

    async def second() -> None:
        async with await Agent.create_async(models={"scripted/model": ScriptedModel(echo)}) as agent:
            session = await agent.resume_session_async("s", session_store=store)
            assert (await session.steer_async("x", {"request_id": "r"})).state == "applied"
            assert (await refused(session.steer_async("y", {"request_id": "r"})))[0] == "DUPLICATE_REQUEST"

    asyncio.run(first())
    asyncio.run(second())


def test_a_steer_that_the_log_has_from_another_process_is_not_sent_again(tmp_path: Path) -> None:
    async def steered(request_id: str | None, text: str) -> tuple[RunControlReceipt, list[str]]:
        model = PacedModel("one", "two")
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            receipt = await session.steer_async(text, {"request_id": request_id})
            model.answer(2)
            await run
            return await receipt_of(session, receipt), spoken(model.requests[-1])

    async def main() -> None:
        assert (await steered("r", "x"))[0].state == "applied"
        again, heard = await steered("r", "x")
        assert (again.state, heard[-1]) == ("applied", "user: go")
        other, heard = await steered("r", "y")
        assert (other.state, heard[-1]) == ("settled", "user: go")
        assert other.error is not None
        assert other.error.code == "DUPLICATE_REQUEST"
        for _ in range(2):  # ids of our own begin anew with each process, and stand for requests of their own
            receipt, heard = await steered(None, "z")
            assert (receipt.state, heard[-1]) == ("applied", "user: z")

    asyncio.run(main())


def inbox(clock: ManualClock | None = None) -> RunInbox:
    env = HostEnv(clock=clock or ManualClock(), ids=SequentialIds("id"))
    return RunInbox("run", "s", env, stop=lambda: None, tell=lambda _: None)


def test_the_oldest_request_ids_are_forgotten() -> None:
    box = inbox()
    requests = [parse_request("steer", {"request_id": f"r-{n}"}, input="x") for n in range(MAX_REMEMBERED + 1)]
    for request in requests:
        box.check(request, is_closed=False)
        box.accept(request)
        box.applied(request.request_id or "")
    assert box.known(requests[0]) is None
    assert len(box.receipts()) == MAX_REMEMBERED
    assert box.known(requests[1]) is not None


def test_a_late_acknowledgement_revives_nothing() -> None:
    box = inbox()
    receipt = box.accept(parse_request("steer", None, input="x"))
    box.close()
    box.applied(receipt.request_id)
    [now] = box.receipts()
    assert (now.state, now.turn_revision, box.snapshot().turn_revision) == ("settled", 0, 0)


def test_a_deadline_is_the_last_moment_that_counts() -> None:
    clock = ManualClock(now_ms=1_000)
    request = parse_request("steer", {"deadline_ms": 1_500}, input="x")
    clock.advance(0.5)
    inbox(clock).check(request, is_closed=False)
    clock.advance(0.001)
    with pytest.raises(RunControlError, match="deadline has expired"):
        inbox(clock).check(request, is_closed=False)


def test_an_accepted_interrupt_has_its_receipt_before_it_stops_anything() -> None:
    seen: list[str] = []
    box = RunInbox(
        "run", "s", HostEnv(), stop=lambda: seen.extend(each.state for each in box.receipts()), tell=lambda _: None
    )
    box.accept(parse_request("interrupt", None))
    assert seen == ["accepted"]


# ---- where a run stands ---------------------------------------------------------------------------------------------


def test_the_revision_rises_with_each_model_turn_and_each_control(tmp_path: Path) -> None:
    model = PacedModel(calls(("look", {})), "one", "two")

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            run = asyncio.create_task(session.send_async("go"))
            seen: list[tuple[str | None, int]] = []
            for number in range(3):
                await model.asked()
                now = await session.run_control_snapshot_async()
                assert now is not None
                seen.append((now.turn_id, now.turn_revision))
                if number == 1:
                    await session.steer_async("x", {"expected_turn_id": now.turn_id, "expected_turn_revision": 1})
                model.answer()
            await run
            assert seen == [("turn-1", 0), ("turn-1", 1), ("turn-2", 3)]

    asyncio.run(main())


def test_before_its_prompt_is_recorded_a_run_has_no_turn(tmp_path: Path) -> None:
    async def main() -> None:
        is_asked, let_go = asyncio.Event(), asyncio.Event()

        async def wait(payload: JsonObject) -> None:
            is_asked.set()
            await let_go.wait()

        async with opened(tmp_path, ScriptedModel(echo)) as session:
            await session.send_async("an earlier turn")
            session.register_hook("h", "pre_prompt", handler=wait)
            run = asyncio.create_task(session.send_async("go"))
            await is_asked.wait()
            now = await session.run_control_snapshot_async()
            assert now is not None
            assert (now.turn_id, "turn_id" in now) == (None, False)
            receipt = await session.steer_async("early", {"expected_turn_revision": 0})
            let_go.set()
            assert (await run).text == "early"
            assert (await receipt_of(session, receipt)).state == "applied"
            assert said(session)[2:4] == ["user: go", "user: early"]

    asyncio.run(main())


# ---- from elsewhere -------------------------------------------------------------------------------------------------


def test_a_run_is_steered_and_stopped_from_any_thread(tmp_path: Path) -> None:
    asked = threading.Semaphore(0)
    let_go = threading.Event()

    async def answer(request: ModelRequest) -> str:
        asked.release()
        while not let_go.is_set():
            await asyncio.sleep(0.001)
        return newest_text(request)

    with Agent.create(models={"a/b": ScriptedModel(answer)}) as agent:
        session = agent.session(tmp_path)
        stream = session.stream("go")
        assert asked.acquire(timeout=5)
        snapshot = session.run_control_snapshot()
        assert snapshot is not None
        receipt = session.steer("steered", {"run_id": snapshot["run_id"], "expected_turn_revision": 0})
        assert receipt["state"] == "accepted"
        let_go.set()
        assert stream.result().text == "steered"
        assert session.run_control_receipts(snapshot.run_id)[0].state == "applied"
        let_go.clear()
        stream = session.stream("again")
        assert asked.acquire(timeout=5)
        assert asked.acquire(timeout=5)
        session.interrupt({"reason": "enough"})
        assert [event.type for event in stream][-2:] == ["run_control_applied", "error"]
        assert session.current_run() is not None
        assert session.run_control_snapshot() is None
        with pytest.raises(RunControlError, match="no active run"):
            session.steer("idle")


def test_a_run_is_steered_from_another_loop(tmp_path: Path) -> None:
    model = PacedModel("one", "two")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            elsewhere = lambda: asyncio.run(session.steer_async("from afar"))  # noqa: E731
            assert (await asyncio.to_thread(elsewhere)).state == "accepted"
            model.answer(2)
            await run
            assert spoken(model.requests[1])[-1] == "user: from afar"
            with pytest.raises(UsageError, match="steer_async"):
                session.steer("blocking on its own loop")

    asyncio.run(main())


def test_sessions_are_controlled_each_for_itself(tmp_path: Path) -> None:
    async def main() -> None:
        models = [PacedModel("one", f"done {n}") for n in range(8)]
        async with await Agent.create_async(models={f"m/{n}": model for n, model in enumerate(models)}) as agent:
            sessions = [await agent.session_async(tmp_path, model=f"m/{n}") for n in range(8)]
            runs = [asyncio.create_task(session.send_async("go")) for session in sessions]
            for model in models:
                await model.asked()
            await asyncio.gather(*(session.steer_async(f"to {n}") for n, session in enumerate(sessions)))
            await asyncio.gather(*(session.interrupt_async() for session in sessions[::2]))
            for model in models[1::2]:
                model.answer(2)
            done = await asyncio.gather(*runs, return_exceptions=True)
            assert [isinstance(each, RunCancelledError) for each in done] == [True, False] * 4
            assert [spoken(model.requests[-1])[-1] for model in models[1::2]] == [f"user: to {n}" for n in (1, 3, 5, 7)]

    asyncio.run(main())
