"""Laws of crash points: a dead process does nothing more, every place of a run is met, and each can be resumed from."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import MemorySessionStore, StepOutcome
from fanfold.contracts.facts import Fact, NewFact, TextTurn, ToolResulted, UserMessaged
from fanfold.contracts.messages import ModelReply, ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import AgentStepSpec
from fanfold.errors import UsageError
from fanfold.orchestration.resumable import execute_steps_parallel_resumable
from fanfold.protocols import EventSink, FactLog, ToolScope
from fanfold.stores.memory import MemoryFactLog
from fanfold.testing import CrashPoint, ScriptedModel, SimulatedCrashError, every_crash_point
from fanfold.testing.conformance import append_to, read_all, said
from tests.testing import crashing_session
from tests.testing.crashing_session import ANSWER, answer, lines
from tests.testing.model_calls import request

ROOT = Path(__file__).parents[2]


def written(log: FactLog, point: CrashPoint, *batches: list[str]) -> list[str]:
    """Keys in the log when a process that dies at `point` has tried to append the batches."""

    async def main() -> list[Fact]:
        dying = point.log(log)
        with point:
            held = await dying.hold("thread-1")
            try:
                for batch in batches:
                    await held.append([said(key) for key in batch])
            finally:
                await held.release()
                await dying.close()
        return list(await read_all(log, "thread-1"))

    return [fact.key for fact in asyncio.run(main())]


@pytest.mark.parametrize(
    ("rules", "kept", "place"),
    [
        ({"before_fact": 1}, [], "before the append of a"),
        ({"after_fact": 1}, ["a"], "after the append of a"),
        ({"before_fact": 2}, ["a"], "before the append of b, c"),
        ({"before_fact": 3}, ["a"], "before the append of b, c"),
        ({"after_fact": 2}, ["a", "b", "c"], "after the append of b, c"),
        ({"after_fact": 3}, ["a", "b", "c"], "after the append of b, c"),
        ({"before_fact": lambda fact: fact.key == "c"}, ["a"], "before the append of b, c"),
        ({"after_fact": lambda fact: fact.key == "d"}, ["a", "b", "c", "d"], "after the append of d"),
        ({"at": 1}, [], "before the append of a"),
        ({"at": 2}, ["a"], "after the append of a"),
        ({"at": 5}, ["a", "b", "c"], "before the append of d"),
        ({"at": 6}, ["a", "b", "c", "d"], "after the append of d"),
        ({"at": 7}, ["a", "b", "c", "d"], ""),
        ({"after_fact": 5}, ["a", "b", "c", "d"], ""),
        ({}, ["a", "b", "c", "d"], ""),
    ],
)
def test_a_log_has_what_was_written_before_its_process_died(rules: Any, kept: list[str], place: str) -> None:
    point = CrashPoint(**rules)
    assert written(MemoryFactLog(), point, ["a"], ["b", "c"], ["d"]) == kept
    assert (point.place, point.has_crashed) == (place, bool(place))


def test_a_dead_process_does_nothing_more_but_lets_go() -> None:
    log = MemoryFactLog()
    point = CrashPoint(before_fact=1)
    dying = point.log(log)

    async def main() -> None:
        held = await dying.hold("thread-1")
        asked: list[Callable[[], Any]] = [
            lambda: held.append([said("a")]),
            lambda: held.append([said("b")]),
            lambda: held.read(),
            lambda: held.set_aside(),
            lambda: dying.hold("thread-2"),
            lambda: dying.threads(),
            lambda: point.model(ScriptedModel([])).generate(request("x")),
        ]
        for each in asked:
            with pytest.raises(SimulatedCrashError) as raised:
                await each()
            assert raised.value.__notes__ == ["it died before the append of a"]
        await held.release()
        await append_to(log, "thread-1", [said("of the next process")])

    asyncio.run(main())


def test_only_the_dead_are_not_heard() -> None:
    with pytest.raises(ValueError, match="heard"), CrashPoint():
        raise ValueError("heard")
    dead = CrashPoint(at=1)
    with dead:
        asyncio.run(dead.reach("here"))
    with dead:
        raise ValueError("not heard")
    with pytest.raises(KeyboardInterrupt), dead:
        raise KeyboardInterrupt


@pytest.mark.parametrize("rules", [{"at": 1, "after_fact": 1}, {"at": 0}, {"before_fact": 0}, {"after_fact": -1}])
def test_a_point_that_cannot_be_is_refused(rules: Any) -> None:
    with pytest.raises(UsageError, match=r"one of at, before_fact|counted from 1"):
        CrashPoint(**rules)


def test_a_point_tells_what_it_is_and_where_it_died() -> None:
    point = CrashPoint(after_fact=1)
    assert repr(point) == "<CrashPoint(after_fact=1): alive, 0 places>"
    written(MemoryFactLog(), point, ["a"])
    assert repr(point) == "<CrashPoint(after_fact=1): died after the append of a>"


# ---- whole runs -----------------------------------------------------------------------------------------------------


def test_a_session_goes_on_after_a_crash_at_each_of_its_places(tmp_path: Path) -> None:
    places: list[str] = []
    for number, point in enumerate(every_crash_point()):
        workspace = tmp_path / str(number)
        workspace.mkdir()
        model = ScriptedModel(answer)
        with point:
            asyncio.run(crashing_session.run(workspace, point, model, resumes=False))
        later = ScriptedModel(answer)
        assert asyncio.run(crashing_session.run(workspace, CrashPoint(), later, resumes=True)) == ANSWER
        assert lines(workspace) == ["line 1", "line 2"]
        # No recorded answer is asked for again: at most the call in which the process died is.
        assert len(model.requests) + len(later.requests) <= 3 + point.place.startswith(
            ("after a call", "before the append of model")
        )
        places.append(point.place)
    assert places[-1] == ""
    assert len(places) == 2 * 3 + 2 * 2 + 2 * 6 + 1  # model calls, tool runs, facts; and the run that lives
    assert places.count("inside the tool put") == 2


def test_a_process_that_dies_inside_a_tool_runs_it_again_with_the_same_key(tmp_path: Path) -> None:
    point = CrashPoint(in_tool="put")
    with point:
        asyncio.run(crashing_session.run(tmp_path, point, ScriptedModel(answer), resumes=False))
    assert point.place == "inside the tool put"
    assert lines(tmp_path) == ["line 1"]
    assert asyncio.run(crashing_session.run(tmp_path, CrashPoint(), ScriptedModel(answer), resumes=True)) == ANSWER
    assert lines(tmp_path) == ["line 1", "line 2"]


def test_a_rule_may_look_at_the_fact(tmp_path: Path) -> None:
    def is_second_result(fact: NewFact) -> bool:
        return isinstance(fact.payload, ToolResulted) and fact.key.split(":")[2] == "1"

    point = CrashPoint(before_fact=is_second_result)
    with point:
        asyncio.run(crashing_session.run(tmp_path, point, ScriptedModel(answer), resumes=False))
    assert point.place.startswith("before the append of tool-result:1:1:")
    assert lines(tmp_path) == ["line 1", "line 2"]


@pytest.mark.parametrize("number", range(1, 7))
def test_a_process_is_really_killed_behind_its_fact(tmp_path: Path, number: int) -> None:
    def process(*args: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tests.testing.crashing_session", str(tmp_path), *map(str, args)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=25, check=False)

    assert process(number).returncode == -9
    facts = (tmp_path / ".a3s/effect-log/s.jsonl").read_text().splitlines()
    assert len(facts) == number
    done = process()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ANSWER}\n", "")
    assert lines(tmp_path) == ["line 1", "line 2"]


# ---- stores ---------------------------------------------------------------------------------------------------------


class Counting:
    """Counts how often each step ran."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def concurrency_hint(self) -> int:
        return 1

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        self.runs.append(spec.task_id)
        for _ in range(20):  # so that the one before is written meanwhile
            await asyncio.sleep(0)
        return StepOutcome(task_id=spec.task_id, agent=spec.agent, output="x", success=True)


def test_a_resumable_fan_out_goes_on_after_a_crash_at_each_change_of_its_store() -> None:
    specs = [{"task_id": f"t{number}", "agent": "a", "prompt": "p"} for number in range(3)]
    died: list[str] = []
    for point in every_crash_point():
        steps = Counting()
        with MemorySessionStore() as store:
            with point:
                asyncio.run(execute_steps_parallel_resumable(steps, specs, "w", point.store(store)))
            outcomes = asyncio.run(execute_steps_parallel_resumable(steps, specs, "w", store))
        assert [outcome.success for outcome in outcomes] == [True] * 3
        if point.has_crashed and point.place != "after the removal of workflow/w":
            assert len(steps.runs) <= 3 + 2  # the one that was being written, and the one that ran meanwhile
        died.append(point.place)
    assert len(died) > 6
    assert all("the append to" in place or "the removal of" in place for place in died[:-1])


def test_the_leases_of_a_dead_process_are_free() -> None:
    point = CrashPoint(at=1)

    async def main(store: MemorySessionStore) -> None:
        dying = point.store(store)
        await dying.acquire("workflow/w")
        with pytest.raises(SimulatedCrashError):
            await dying.append("log/a", 0, [b"x"])
        assert await store.read("log/a") == []
        await store.acquire("workflow/w")
        with pytest.raises(SimulatedCrashError):
            await dying.read("log/a")

    with MemorySessionStore() as store:
        asyncio.run(main(store))


def test_all_that_belongs_to_a_process_dies_together() -> None:
    point = CrashPoint(after_fact=1)
    with MemorySessionStore() as inner:
        store = point.store(inner)
        assert written(MemoryFactLog(), point, ["a"]) == ["a"]
        with pytest.raises(SimulatedCrashError):
            asyncio.run(store.load("document/d"))


# ---- the loop -------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_past_its_wrappers_is_told() -> None:
    with pytest.raises(AssertionError, match="wrote nothing through the wrappers"):
        for _ in every_crash_point():
            pass


def test_every_place_is_met_once_and_in_order() -> None:
    met = []
    for point in every_crash_point():
        written(MemoryFactLog(), point, ["a"], ["b"])
        met.append(point.place)
    assert met == [
        "before the append of a",
        "after the append of a",
        "before the append of b",
        "after the append of b",
        "",
    ]


class Odd:
    spec = ToolSpec(name="odd", description="", parameters={})

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        raise ValueError("its own failure")


def test_wrappers_pass_on_what_is_theirs_to_pass() -> None:
    point = CrashPoint()
    model = ScriptedModel(["hello"])
    scope = ToolScope(session_id="s", call_id="c", idempotency_key="k", emit=lambda event: None)

    async def main() -> ModelReply:
        with pytest.raises(ValueError, match="its own failure"):
            await point.tool(Odd()).run({}, scope)
        assert point.tool(Odd()).spec is Odd.spec
        wrapped = point.model(model)
        assert wrapped.capabilities is model.capabilities
        reply = await wrapped.generate(request("x"))
        await wrapped.close()
        return reply

    assert asyncio.run(main()).text == "hello"
    assert point.places == 3
    assert not isinstance(said("a").payload, TextTurn)
    assert isinstance(said("a").payload, UserMessaged)
