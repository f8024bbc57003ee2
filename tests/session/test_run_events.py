"""Laws of a run's record of events: sequences, pages, limits, and what is kept of texts that stream."""

import asyncio
import random
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold import AgentEvent, Session
from fanfold.contracts.events import event
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.errors import UsageError
from fanfold.protocols import ToolScope
from fanfold.runs.run_events import MAX_JOINED_CHARS, RunEvents
from fanfold.testing import ManualClock, Reply, ScriptedModel, calls, echo
from tests.support.running import opened
from tests.support.tools import RecordingTool


def events_of(**limits: Any) -> RunEvents:
    return RunEvents("r", "s", ManualClock(), SessionRetentionLimits(**limits))


def filled(count: int, **limits: Any) -> RunEvents:
    events = events_of(**limits)
    for number in range(count):
        events(event("tick", n=number))
    return events


def numbers(events: list[AgentEvent]) -> list[int]:
    return [item.payload["n"] for item in events]


def sequences(events: list[AgentEvent]) -> list[int]:
    return [(item.metadata or {})["sequence"] for item in events]


def test_each_event_says_of_which_run_it_is_and_when_it_came() -> None:
    clock = ManualClock(now_ms=7)
    events = RunEvents("r", "s", clock, SessionRetentionLimits())
    heard: list[AgentEvent] = []
    listening = RunEvents("r", "s", clock, SessionRetentionLimits(), heard.append)
    for each in (events, listening):
        each(event("tick", n=0))
        each(AgentEvent(type="tick", payload={"n": 1}, metadata={"task_id": "t", "sequence": 99}))
    own = {"run_id": "r", "session_id": "s", "timestamp_ms": 7}
    assert [item.metadata for item in events.all()] == [{**own, "sequence": 0}, {**own, "sequence": 1, "task_id": "t"}]
    assert heard == events.all()


def test_what_was_told_cannot_be_changed_afterwards() -> None:
    events = events_of()
    payload: JsonObject = {"n": 1, "deep": {"list": [1]}}
    events(AgentEvent(type="tick", payload=payload))
    payload["deep"]["list"].append(2)
    events.all()[0].payload["n"] = 5
    assert events.all()[0].payload == {"n": 1, "deep": {"list": [1]}}


# ---- texts that stream ----------------------------------------------------------------------------------------------


def test_neighbouring_deltas_of_one_kind_are_one_event_of_the_record() -> None:
    heard: list[AgentEvent] = []
    events = RunEvents("r", "s", ManualClock(), SessionRetentionLimits(), heard.append)
    for kind, text in [("text_delta", "a"), ("text_delta", "b"), ("reasoning_delta", "c"), ("text_delta", "d")]:
        events(event(kind, text=text))
    events(event("tick"))
    assert [(item.type, item.text) for item in events.all()] == [
        ("text_delta", "ab"),
        ("reasoning_delta", "c"),
        ("text_delta", "d"),
        ("tick", None),
    ]
    assert [item.text for item in heard] == ["a", "b", "c", "d", None]
    assert sequences(heard) == [0, 0, 1, 2, 3]
    assert sequences(events.all()) == [0, 1, 2, 3]


def test_whoever_looks_in_the_middle_of_a_text_gets_all_of_it_once() -> None:
    events = events_of()
    events(event("text_delta", text="a"))
    page = events.page(None, 10)
    assert [item.text for item in page.events] == ["a"]
    events(event("text_delta", text="b"))
    events(event("tick"))
    rest = events.page(page.next_after_sequence, 10)
    assert [(item.type, item.text) for item in rest.events] == [("text_delta", "b"), ("tick", None)]


def test_a_text_without_an_end_is_kept_within_the_limits() -> None:
    events = events_of(max_events_per_run=3)
    for _ in range(1_000):
        events(event("text_delta", text="x" * 1_000))
    kept = events.all()
    assert len(kept) == 3
    assert all(len(item.text or "") < MAX_JOINED_CHARS + 1_000 for item in kept)
    assert events.count == 16


# ---- pages ----------------------------------------------------------------------------------------------------------


def paged(events: RunEvents, limit: int) -> Iterator[AgentEvent]:
    after: int | None = None
    while True:
        page = events.page(after, limit)
        yield from page.events
        if not page.has_more:
            return
        after = page.next_after_sequence


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 40))
def test_pages_together_are_all_that_is_kept(count: int, limit: int, most: int) -> None:
    events = filled(count, max_events_per_run=most)
    assert list(paged(events, limit)) == events.all()
    assert numbers(events.all()) == list(range(max(0, count - most), count))
    assert events.count == count


@pytest.mark.parametrize(
    ("after", "numbers_", "next_", "gap", "more"),
    [
        (None, [6, 7], 7, True, True),
        (-1, [6, 7], 7, True, True),
        (4, [6, 7], 7, True, True),
        (5, [6, 7], 7, False, True),
        (7, [8, 9], 9, False, False),
        (8, [9], 9, False, False),
        (9, [], 9, False, False),
        (50, [], 50, False, False),
    ],
)
def test_a_page_says_what_it_lacks(after: int | None, numbers_: list[int], next_: int, gap: bool, more: bool) -> None:
    page = filled(10, max_events_per_run=4).page(after, 2)
    assert numbers(page.events) == numbers_
    assert (page.next_after_sequence, page.retention_gap, page.has_more) == (next_, gap, more)
    assert (page.first_available_sequence, page.latest_sequence_exclusive) == (6, 10)


def test_a_page_of_nothing_kept_is_a_gap_unless_the_reader_has_it_all() -> None:
    events = filled(3, max_events_per_run=0)
    assert [events.page(after, 9).retention_gap for after in (None, 0, 1, 2)] == [True, True, True, False]
    assert not events_of().page(None, 9).retention_gap


def test_pages_of_a_session_are_those_of_its_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("look", {})), "done"]), RecordingTool("look")) as session:
            run_id = (await session.send_async("go")).run_id
            found: list[AgentEvent] = []
            after: int | None = None
            while (page := await session.run_event_page_async(run_id, after, 2)) is not None and page.events:
                found += page.events
                after = page["next_after_sequence"]
            assert found == await session.run_events_async(run_id)
            snapshot = await session.run_snapshot_async(run_id)
            assert snapshot is not None
            assert snapshot.event_count == len(found) == (after or 0) + 1
            assert await session.run_event_page_async("unknown") is None
            await refuses(session, run_id)

    asyncio.run(main())


async def refuses(session: Session, run_id: str) -> None:
    wrong: Any
    for wrong in (0, -1, 10_001, "5", 1.0, True, None):
        with pytest.raises(UsageError, match="limit must be a whole number from 1 to 10000"):
            await session.run_event_page_async(run_id, None, wrong)
    for wrong in (-2, "5", 0.5, False):
        with pytest.raises(UsageError, match="after_sequence must be a whole number from -1"):
            await session.run_event_page_async(run_id, wrong)


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_the_oldest_events_go_when_there_are_too_many_or_too_large_ones() -> None:
    assert numbers(filled(10, max_events_per_run=3).all()) == [7, 8, 9]
    assert numbers(filled(10, max_events_per_run=3, unbounded=True).all()) == list(range(10))
    one = len(msgspec.json.encode(filled(1).all()[0]))
    assert numbers(filled(10, max_event_bytes_per_run=3 * one).all()) == [7, 8, 9]
    assert filled(10, max_event_bytes_per_run=one - 1).all() == []


def test_limits_hold_for_restored_events_too() -> None:
    first, saved = filled(10).saved()
    events = events_of(max_events_per_run=3)
    events.restore(first, saved, 5)
    assert numbers(events.all()) == [7, 8, 9]
    assert (events.count, events.first) == (10, 7)
    events(event("tick", n=10))
    assert sequences(events.all()) == [8, 9, 10]


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8))
def test_a_restored_record_goes_on_where_it_was(before: int, after: int, most: int) -> None:
    whole = filled(before + after, max_events_per_run=most)
    events = events_of(max_events_per_run=most)
    first, saved = filled(before, max_events_per_run=most).saved()
    events.restore(first, saved, 0)
    for number in range(before, before + after):
        events(event("tick", n=number))
    assert events.all() == whole.all()
    assert events.page(None, 9) == whole.page(None, 9)


def _held_bytes(events: RunEvents) -> int:
    return sum(sys.getsizeof(each) for each in events.saved()[1])


def test_memory_stays_flat_over_100_000_events() -> None:
    """What is held after 100,000 events is what is held after 10,000, and within the limits of the seeds."""
    limits = SessionRetentionLimits()
    events = RunEvents("r", "s", ManualClock(), limits)
    chance = random.Random(1)
    held: list[int] = []
    tracemalloc.start()
    try:
        for number in range(100_000):
            if number % 3:
                events(event("text_delta", text="x" * chance.randrange(64)))
            else:
                events(event("tick", n=number, text="y" * chance.randrange(256)))
            if number in (9_999, 99_999):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(events.all()) == limits.max_events_per_run
    assert events.count > 60_000
    assert _held_bytes(events) < limits.max_event_bytes_per_run
    assert held[1] < 1.1 * held[0]


def test_large_events_are_kept_within_their_bytes() -> None:
    limits = SessionRetentionLimits()
    events = RunEvents("r", "s", ManualClock(), limits)
    for number in range(1_000):
        events(event("tick", n=number, text="z" * 100_000))
    kept = sum(len(each) for each in events.saved()[1])
    assert limits.max_event_bytes_per_run - 110_000 < kept <= limits.max_event_bytes_per_run


def test_a_run_of_100_000_events_holds_only_what_its_limits_allow(tmp_path: Path) -> None:
    class Ticking(RecordingTool):
        async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
            for number in range(100_000):
                scope.emit(event("tick", n=number))
            return ToolOutput(output="done")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("tick", {})), "done"]), Ticking("tick")) as session:
            run_id = (await session.send_async("go")).run_id
            snapshot = await session.run_snapshot_async(run_id)
            assert snapshot is not None
            kept = await session.run_events_async(run_id)
            assert len(kept) == 2_048
            assert sequences(kept) == list(range(snapshot.event_count - 2_048, snapshot.event_count))
            assert snapshot.event_count > 100_000
            assert kept[-1].type == "agent_end"

    asyncio.run(main())


# ---- the same events ------------------------------------------------------------------------------------------------


def test_two_replays_tell_the_same_events_byte_by_byte(tmp_path: Path) -> None:
    def script() -> ScriptedModel:
        return ScriptedModel(
            [calls(("look", {})), Reply(text="a long answer", pieces=["a ", "long ", "answer"]), "two"]
        )

    async def told(workspace: Path) -> list[bytes]:
        workspace.mkdir()
        async with opened(workspace, script(), RecordingTool("look")) as session:
            streams = [await session.stream_async("go")]
            await session.steer_async("steered")
            heard = [item async for item in streams[0]]
            recorded = await session.run_events_async(streams[0].run_id)
            runs = await session.runs_async()
            return [msgspec.json.encode(each) for each in (*heard, *recorded, *runs)]

    assert asyncio.run(told(tmp_path / "a")) == asyncio.run(told(tmp_path / "b"))


def test_the_types_of_a_plain_run_come_in_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(
            tmp_path, ScriptedModel([calls(("look", {}), text="hm"), "done"]), RecordingTool("look")
        ) as session:
            run_id = (await session.send_async("go")).run_id
            assert [item.type for item in await session.run_events_async(run_id)] == [
                "agent_start",
                "turn_start",
                "turn_end",
                "tool_start",
                "tool_execution_start",
                "tool_end",
                "turn_start",
                "turn_end",
                "agent_end",
            ]
            [stored] = [item for item in await session.run_events_async(run_id) if item.type == "agent_end"]
            assert stored.payload["usage"]["total_tokens"] == stored.total_tokens == 30
            await session.send_async("/help")

    asyncio.run(main())


def test_a_session_without_listeners_still_records(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), retention_limits={"max_events_per_run": 0}) as session:
            result = await session.send_async("go")
            assert await session.run_events_async(result.run_id) == []
            snapshot = await session.run_snapshot_async(result.run_id)
            assert snapshot is not None
            assert snapshot.event_count == 4

    asyncio.run(main())
