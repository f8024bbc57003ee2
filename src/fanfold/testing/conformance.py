"""The laws of the `FactLog` seam as a pytest suite, for any implementation of it (needs pytest and hypothesis).

class TestMyLog(DurableFactLogConformance):
    def open_log(self, directory: Path) -> FactLog:
        return MyLog(directory)
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanfold.contracts.facts import (
    Fact,
    NewFact,
    Note,
    Payload,
    QuestionTurn,
    RecordedCall,
    TextTurn,
    ToolResulted,
    ToolTurn,
    UserMessaged,
)
from fanfold.errors import AppendConflictError, LifecycleError, SessionBusyError, UsageError
from fanfold.protocols import FactLog, HeldThread

_THREAD = "thread-1"
_LAW = settings(
    max_examples=25,
    deadline=None,  # a disk may be slow
    suppress_health_check=[HealthCheck.differing_executors],  # it is the point of a suite that several classes run it
)

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_names = st.text("abcdefghij:-_", min_size=1, max_size=12)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_objects = st.dictionaries(_texts, _json, max_size=3)
_calls = st.builds(RecordedCall, id=_names, name=_names, args=_objects | _texts, needs_confirmation=st.booleans())
payloads: st.SearchStrategy[Payload] = st.one_of(
    st.builds(UserMessaged, _texts),
    st.builds(TextTurn, text=_texts, reasoning=_texts),
    st.builds(ToolTurn, text=_texts, call=_calls, also=st.lists(_calls, max_size=2).map(tuple)),
    st.builds(QuestionTurn, question_id=_names, question=_texts, options=st.lists(_texts, max_size=2).map(tuple)),
    st.builds(ToolResulted, tool_call_id=_names, ok=st.booleans(), output=_texts),
    st.builds(Note, _names.map(lambda name: f"note.{name}"), _objects),
)
new_facts: st.SearchStrategy[NewFact] = st.builds(NewFact, _names, st.none() | _names, payloads)
batches: st.SearchStrategy[list[list[NewFact]]] = st.lists(
    new_facts, max_size=12, unique_by=lambda fact: fact.key
).flatmap(lambda facts: st.integers(1, 4).map(lambda size: [facts[i : i + size] for i in range(0, len(facts), size)]))
"""Appends of a thread, one after the other; no key comes twice."""


def said(key: str, text: str = "hello", cause: str | None = None) -> NewFact:
    return NewFact(key, cause, UserMessaged(text))


class FactLogConformance:
    """What every log keeps; override `open_log`."""

    def open_log(self, directory: Path) -> FactLog:
        """A log that keeps its files, if it has any, in `directory`."""
        raise NotImplementedError

    def with_log(self, use: Callable[[FactLog], Awaitable[None]]) -> None:
        async def run(directory: Path) -> None:
            log = self.open_log(directory)
            try:
                await use(log)
            finally:
                await log.close()

        _in_directory(run)

    def with_thread(self, use: Callable[[HeldThread], Awaitable[None]]) -> None:
        async def run(log: FactLog) -> None:
            thread = await log.hold(_THREAD)
            try:
                await use(thread)
            finally:
                await thread.release()

        self.with_log(run)

    @_LAW
    @given(batches)
    def test_what_was_appended_is_read_in_order_with_rising_seqs(self, appends: list[list[NewFact]]) -> None:
        async def use(thread: HeldThread) -> None:
            returned = [fact for batch in appends for fact in await thread.append(batch)]
            expected = [fact.at(seq) for seq, fact in enumerate((f for batch in appends for f in batch), 1)]
            assert returned == expected
            assert await thread.read() == expected
            assert thread.last_seq == len(expected)
            for after in range(len(expected) + 1):
                assert await thread.read(after) == expected[after:]

        self.with_thread(use)

    @_LAW
    @given(batches)
    def test_a_replayed_append_changes_nothing_and_returns_what_is_stored(self, appends: list[list[NewFact]]) -> None:
        async def use(thread: HeldThread) -> None:
            for batch in appends:
                await thread.append(batch)
            stored = await thread.read()
            for batch in appends:
                again = [NewFact(fact.key, "another cause", fact.payload) for fact in batch]
                assert await thread.append(again) == [fact for fact in stored if fact.key in {f.key for f in batch}]
            assert await thread.read() == stored

        self.with_thread(use)

    def test_an_empty_append_changes_nothing(self) -> None:
        async def use(thread: HeldThread) -> None:
            assert await thread.append([]) == []
            assert thread.last_seq == 0

        self.with_thread(use)

    @pytest.mark.parametrize(
        "batch",
        [
            [said("a", "another text")],
            [NewFact("a", None, TextTurn(text="hello"))],
            [said("a"), said("new")],
            [said("new"), said("a")],
        ],
        ids=["other payload", "other kind", "known then new", "new then known"],
    )
    def test_a_conflicting_append_writes_nothing(self, batch: list[NewFact]) -> None:
        async def use(thread: HeldThread) -> None:
            stored = await thread.append([said("a"), said("b")])
            with pytest.raises(AppendConflictError):
                await thread.append(batch)
            assert await thread.read() == stored
            assert [fact.seq for fact in await thread.append([said("c")])] == [3]

        self.with_thread(use)

    @pytest.mark.parametrize("batch", [[said("a"), said("a")], [said("")]], ids=["a key twice", "no key"])
    def test_an_append_without_keys_of_its_own_writes_nothing(self, batch: list[NewFact]) -> None:
        async def use(thread: HeldThread) -> None:
            with pytest.raises(UsageError):
                await thread.append(batch)
            assert await thread.read() == []

        self.with_thread(use)

    def test_a_held_thread_is_refused_to_others_until_it_is_released(self) -> None:
        async def use(log: FactLog) -> None:
            first = await log.hold(_THREAD)
            with pytest.raises(SessionBusyError, match=_THREAD):
                await log.hold(_THREAD)
            other = await log.hold("thread-2")
            await first.release()
            await (await log.hold(_THREAD)).release()
            await other.release()

        self.with_log(use)

    def test_a_waiting_hold_gets_the_thread_with_all_that_its_holder_wrote(self) -> None:
        async def use(log: FactLog) -> None:
            first = await log.hold(_THREAD)
            waiting = asyncio.create_task(log.hold(_THREAD, wait_seconds=10))
            await asyncio.sleep(0)
            await first.append([said("a")])
            assert not waiting.done()
            await first.release()
            second = await waiting
            assert second.last_seq == 1
            await second.release()

        self.with_log(use)

    def test_a_released_thread_takes_no_more_facts(self) -> None:
        async def use(log: FactLog) -> None:
            thread = await log.hold(_THREAD)
            await thread.release()
            await thread.release()
            with pytest.raises(LifecycleError):
                await thread.append([said("a")])
            again = await log.hold(_THREAD)
            assert await again.read() == []
            await again.release()

        self.with_log(use)

    def test_threads_share_nothing_and_are_listed_once_they_have_facts(self) -> None:
        async def use(log: FactLog) -> None:
            names = ["a", "b c", "s-622063", "ü" * 100, "x" * 200]
            for name in names:
                await append_to(log, name, [said("key", name)])
            empty = await log.hold("empty")
            listed = await log.threads()
            assert len(listed) == len(names)
            assert {"a", "b c", "s-622063"} < set(listed)
            await empty.release()
            for name in names:
                facts = await read_all(log, name)
                assert [fact.payload for fact in facts] == [UserMessaged(name)]

        self.with_log(use)

    @pytest.mark.parametrize("name", ["", ".", "..", "\ud800"])
    def test_an_id_that_can_name_no_file_is_refused(self, name: str) -> None:
        async def use(log: FactLog) -> None:
            with pytest.raises(UsageError, match="invalid session id"):
                await log.hold(name)
            assert await log.threads() == []

        self.with_log(use)

    def test_the_lineage_of_a_thread_stays_while_it_only_grows(self) -> None:
        async def use(log: FactLog) -> None:
            await append_to(log, _THREAD, [said("a")])
            lineage = await lineage_of(log, _THREAD)
            await append_to(log, _THREAD, [said("b")])
            assert await lineage_of(log, _THREAD) is lineage
            assert await lineage_of(log, "thread-2") is not lineage

        self.with_log(use)

    def test_a_thread_that_was_set_aside_begins_anew_under_its_name(self) -> None:
        async def use(log: FactLog) -> None:
            await append_to(log, _THREAD, [said("a"), said("b")])
            await append_to(log, "thread-2", [said("a")])
            thread = await log.hold(_THREAD)
            lineage = thread.lineage
            await thread.set_aside()
            assert thread.lineage is not lineage
            assert (thread.last_seq, await thread.read()) == (0, [])
            assert await log.threads() == ["thread-2"]
            stored = await thread.append([said("c"), said("a", "another text")])
            assert [(fact.seq, fact.key) for fact in stored] == [(1, "c"), (2, "a")]
            with pytest.raises(SessionBusyError):
                await log.hold(_THREAD)
            await thread.release()
            assert await read_all(log, _THREAD) == stored
            assert await log.threads() == [_THREAD, "thread-2"]
            assert [fact.key for fact in await read_all(log, "thread-2")] == ["a"]

        self.with_log(use)

    def test_an_empty_thread_is_set_aside_without_a_trace(self) -> None:
        async def use(thread: HeldThread) -> None:
            await thread.set_aside()
            assert [fact.seq for fact in await thread.append([said("a")])] == [1]

        self.with_thread(use)

    def test_a_released_thread_is_not_set_aside(self) -> None:
        async def use(log: FactLog) -> None:
            await append_to(log, _THREAD, [said("a")])
            thread = await log.hold(_THREAD)
            await thread.release()
            with pytest.raises(LifecycleError):
                await thread.set_aside()
            assert [fact.key for fact in await read_all(log, _THREAD)] == ["a"]

        self.with_log(use)

    def test_concurrent_appends_to_one_thread_never_share_a_seq(self) -> None:
        async def use(thread: HeldThread) -> None:
            await asyncio.gather(*[thread.append([said(f"{n}-1"), said(f"{n}-2")]) for n in range(20)])
            facts = await thread.read()
            assert [fact.seq for fact in facts] == list(range(1, 41))
            assert [fact.key.split("-")[0] for fact in facts[::2]] == [fact.key.split("-")[0] for fact in facts[1::2]]

        self.with_thread(use)

    @pytest.mark.parametrize("turns", range(6))
    def test_a_cancelled_append_is_written_as_a_whole_or_not_at_all(self, turns: int) -> None:
        async def use(thread: HeldThread) -> None:
            append = asyncio.create_task(_append(thread, [said("a"), said("b")]))
            for _ in range(turns):
                await asyncio.sleep(0)
            append.cancel()
            await asyncio.wait([append])
            assert thread.last_seq in (0, 2)
            assert len(await thread.read()) == thread.last_seq
            due = thread.last_seq + 1
            assert [fact.seq for fact in await thread.append([said("c")])] == [due]

        self.with_thread(use)


def _call_with(args: Any) -> ToolTurn:
    return ToolTurn(call=RecordedCall(id="call-1", name="tool", args=args))


_unwritable: dict[str, Any] = {
    "None for text": UserMessaged(cast(str, None)),
    "bytes for text": UserMessaged(cast(str, b"bytes")),
    "half a character": UserMessaged("\ud800"),
    "a number for a truth": ToolResulted(tool_call_id="call-1", ok=cast(bool, 1), output=""),
    "a dict for a record": TextTurn(text="", usage=cast(Any, {"total_tokens": 3})),
    "arguments of bytes": _call_with({"a": b"bytes"}),
    "arguments that are no number": _call_with({"a": float("nan")}),
    "arguments with a number for a name": _call_with({1: "a"}),
    "arguments of a foreign class": _call_with({"a": object()}),
    "arguments that are a list": _call_with([1]),
    "a note that is none": Note("no.note", {}),
    "no payload": "text",
}


class DurableFactLogConformance(FactLogConformance):
    """What a log that outlives its object keeps as well: `open_log` of one directory gives one log."""

    @pytest.mark.parametrize("payload", _unwritable.values(), ids=_unwritable.keys())
    def test_a_payload_that_could_not_be_read_back_is_refused_by_its_key(self, payload: Any) -> None:
        self._is_refused(NewFact("odd", None, payload))

    @pytest.mark.parametrize(("key", "cause"), [("odd\ud800", None), ("odd", "\ud800"), ("odd", b"bytes")])
    def test_a_key_or_cause_that_could_not_be_read_back_is_refused(self, key: str, cause: Any) -> None:
        self._is_refused(NewFact(key, cause, UserMessaged("hello")))

    def _is_refused(self, odd: NewFact) -> None:
        async def run(directory: Path) -> None:
            log = self.open_log(directory)
            thread = await log.hold(_THREAD)
            await thread.append([said("a")])
            for batch in ([odd], [said("b"), odd]):
                with pytest.raises(UsageError, match="'odd"):
                    await thread.append(batch)
            assert [fact.seq for fact in await thread.append([said("c")])] == [2]
            await thread.release()
            await log.close()
            again = self.open_log(directory)
            assert [fact.key for fact in await read_all(again, _THREAD)] == ["a", "c"]
            await again.close()

        _in_directory(run)

    def test_a_replay_with_a_value_that_could_not_be_read_back_is_refused(self) -> None:
        async def use(thread: HeldThread) -> None:
            await thread.append([said("a", "eA==")])
            with pytest.raises(UsageError, match="'a'"):
                await thread.append([NewFact("a", None, UserMessaged(cast(str, b"x")))])

        self.with_thread(use)

    @_LAW
    @given(batches)
    def test_a_reopened_log_has_every_fact_that_was_reported(self, appends: list[list[NewFact]]) -> None:
        async def run(directory: Path) -> None:
            reported: list[Fact] = []
            for batch in appends:
                log = self.open_log(directory)
                reported += await append_to(log, _THREAD, batch)
                await log.close()
            log = self.open_log(directory)
            assert await read_all(log, _THREAD) == reported
            await log.close()

        _in_directory(run)

    def test_two_logs_over_one_place_exclude_each_other_and_see_each_others_facts(self) -> None:
        async def run(directory: Path) -> None:
            logs = [self.open_log(directory), self.open_log(directory)]
            for number in range(6):
                mine, other = logs[number % 2], logs[1 - number % 2]
                thread = await mine.hold(_THREAD)
                with pytest.raises(SessionBusyError):
                    await other.hold(_THREAD)
                assert [fact.seq for fact in await thread.append([said(f"key-{number}")])] == [number + 1]
                await thread.release()
            for log in logs:
                await log.close()

        _in_directory(run)

    def test_a_log_sees_that_another_one_has_set_its_thread_aside(self) -> None:
        async def run(directory: Path) -> None:
            mine, other = self.open_log(directory), self.open_log(directory)
            await append_to(mine, _THREAD, [said("a", "x" * 400), said("b", "one"), said("c", "x" * 400)])
            lineage = await lineage_of(mine, _THREAD)
            thread = await other.hold(_THREAD)
            await thread.set_aside()
            # As long as the facts of before, with the same beginning and the same end.
            stored = await thread.append([said("a", "x" * 400), said("b", "two"), said("c", "x" * 400), said("d")])
            await thread.release()
            assert await lineage_of(mine, _THREAD) is not lineage
            assert await read_all(mine, _THREAD) == stored
            with pytest.raises(AppendConflictError):
                await append_to(mine, _THREAD, [said("b", "one")])
            for log in (mine, other):
                await log.close()
            again = self.open_log(directory)
            assert await read_all(again, _THREAD) == stored
            await again.close()

        _in_directory(run)

    def test_threads_that_append_at_once_each_keep_their_own(self) -> None:
        async def run(directory: Path) -> None:
            log = self.open_log(directory)
            names = [f"thread-{number}" for number in range(20)]
            await asyncio.gather(*[append_to(log, name, [said("a", name), said("b")]) for name in names])
            await log.close()
            again = self.open_log(directory)
            for name in names:
                facts = await read_all(again, name)
                assert [(fact.seq, fact.key) for fact in facts] == [(1, "a"), (2, "b")]
                assert facts[0].payload == UserMessaged(name)
            await again.close()

        _in_directory(run)


async def append_to(log: FactLog, name: str, facts: Sequence[NewFact]) -> Sequence[Fact]:
    thread = await log.hold(name)
    try:
        return await thread.append(facts)
    finally:
        await thread.release()


async def read_all(log: FactLog, name: str) -> Sequence[Fact]:
    thread = await log.hold(name)
    try:
        return await thread.read()
    finally:
        await thread.release()


async def lineage_of(log: FactLog, name: str) -> object:
    thread = await log.hold(name)
    try:
        return thread.lineage
    finally:
        await thread.release()


async def _append(thread: HeldThread, facts: Sequence[NewFact]) -> None:
    await thread.append(facts)


def _in_directory(run: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    # Not pytest's `tmp_path`: each example of a law needs a directory of its own.
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(run(Path(name) / "log"))
