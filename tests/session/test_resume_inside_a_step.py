"""Laws of a step that is cut off: it goes on from its last recorded turn, on whichever node has the store."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentDefinition, FileSessionStore, MemorySessionStore, PermissionPolicy, StepOutcome
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.errors import ParkedError, ProviderError
from fanfold.protocols import Lease, SessionStore
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support.tools import RecordingTool

SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
FREE, ASKING = PermissionPolicy(default_decision="allow"), PermissionPolicy(ask=("count",))
ROLE = AgentDefinition(name="worker", description="d", tools=("count",), permissions=FREE)
STEP = {"task_id": "t", "agent": "worker", "prompt": "count to three"}


class Node:
    """One process with a model and a tool of its own; nodes share nothing but the store."""

    def __init__(self, workspace: Path, store: SessionStore, answer: Callable[[ModelRequest], Any]) -> None:
        self._workspace = workspace
        self._store = store
        self.model = ScriptedModel(answer)
        self.tool = RecordingTool("count", lambda args: f"counted {args['n']}")

    async def run(self, *specs: dict[str, Any], **options: Any) -> list[StepOutcome]:
        async with await Agent.create_async(
            models={"a/b": self.model}, tools={"count": self.tool}, agents={"worker": ROLE}
        ) as agent:
            session = await agent.session_async(self._workspace, session_store=self._store, approvals="refuse")
            outcomes: list[StepOutcome] = await session.parallel_resumable_async(specs or [STEP], "w", **options)
            return outcomes


def rounds(request: ModelRequest) -> int:
    return sum(isinstance(message, ToolMessage) for message in request.transcript)


def counting(request: ModelRequest) -> Any:
    """Calls the tool three times, then answers."""
    done = rounds(request)
    return calls(("count", {"n": done + 1})) if done < 3 else f"counted {done} times"


def dying_after(turns: int) -> Callable[[ModelRequest], Any]:
    """A model that answers `turns` times and then never again."""

    async def answer(request: ModelRequest) -> Any:
        if rounds(request) >= turns:
            await asyncio.Event().wait()
        return counting(request)

    return answer


async def cut_off(node: Node, turns: int) -> None:
    """Run until the model has been asked once more than it answers, then end the process, as far as a test can."""
    run = asyncio.create_task(node.run())
    while len(node.model.requests) <= turns:
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.wait([run])


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_no_recorded_turn_is_asked_again_and_no_recorded_tool_call_runs_again(tmp_path: Path, turns: int) -> None:
    store = MemorySessionStore()
    first, second = Node(tmp_path, store, dying_after(turns)), Node(tmp_path, store, counting)
    asyncio.run(cut_off(first, turns))
    store.break_leases()
    [outcome] = asyncio.run(second.run())
    assert (outcome.success, outcome.output) == (True, "counted 3 times")
    assert len(second.model.requests) == 4 - turns
    assert [args["n"] for args, _ in first.tool.calls + second.tool.calls] == [1, 2, 3]
    assert outcome.usage is not None
    assert outcome.usage.total_tokens == 4 * 15  # of the whole step, both nodes


def test_another_node_goes_on_from_a_shared_store(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    first = Node(tmp_path / "here", FileSessionStore(tmp_path / "store"), dying_after(2))
    second_store = FileSessionStore(tmp_path / "store")
    second = Node(tmp_path / "there", second_store, counting)

    async def main() -> None:
        async with first._store, second_store:  # type: ignore[attr-defined]
            await cut_off(first, 2)
            [outcome] = await second.run()
            assert outcome.output == "counted 3 times"

    asyncio.run(main())
    assert len(second.model.requests) == 2


def test_a_call_keeps_its_idempotency_key_over_all_attempts(tmp_path: Path) -> None:
    store = MemorySessionStore()
    first, second = Node(tmp_path, store, counting), Node(tmp_path, store, counting)

    async def dies_in_the_tool() -> None:
        first.tool = RecordingTool("count", wait=asyncio.Event())
        run = asyncio.create_task(first.run())
        while not first.tool.calls:
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run])

    asyncio.run(dies_in_the_tool())
    store.break_leases()
    asyncio.run(second.run())
    [before] = [scope.idempotency_key for _, scope in first.tool.calls]
    after = [scope.idempotency_key for _, scope in second.tool.calls]
    assert after[0] == before
    assert len(set(after)) == 3
    assert re.fullmatch(r"w:t:[0-9a-f]{32}:1:0:call-1", before)


def test_a_step_that_failed_in_the_middle_goes_on_and_one_that_ended_begins_anew(tmp_path: Path) -> None:
    store = MemorySessionStore()

    def broken(request: ModelRequest) -> Any:
        if rounds(request) == 2:
            return ProviderError("the server is down", kind="server", retryable=False)
        return counting(request)

    def empty(request: ModelRequest) -> Any:
        return counting(request) if rounds(request) < 3 else ""

    first, second, third = (Node(tmp_path, store, script) for script in (broken, empty, counting))
    [outcome] = asyncio.run(first.run())
    assert "the server is down" in outcome.output
    [outcome] = asyncio.run(second.run())
    assert not outcome.success
    assert len(second.model.requests) == 2  # it went on behind two rounds, and came to nothing
    [outcome] = asyncio.run(third.run())
    assert outcome.output == "counted 3 times"
    assert len(third.model.requests) == 4


def test_what_an_interrupted_step_has_spent_counts_once(tmp_path: Path) -> None:
    store = MemorySessionStore()
    first = Node(tmp_path, store, dying_after(2))
    asyncio.run(cut_off(first, 2))
    store.break_leases()
    second = Node(tmp_path, store, counting)
    result: Any = asyncio.run(second.run(STEP, {"task_id": "x", "agent": "nobody", "prompt": "p"}, budget_tokens=1000))
    assert result.budget.consumed_tokens == 4 * 15
    again: Any = asyncio.run(second.run(STEP, {"task_id": "x", "agent": "nobody", "prompt": "p"}, budget_tokens=1000))
    assert again.budget.consumed_tokens == 4 * 15


def test_a_budget_that_ran_out_in_a_step_lets_it_go_on_under_a_higher_one(tmp_path: Path) -> None:
    store = MemorySessionStore()
    first, second = Node(tmp_path, store, counting), Node(tmp_path, store, counting)
    result: Any = asyncio.run(first.run(budget_tokens=30))
    assert "Budget exhausted on 'workflow_tokens'" in result.outcomes[0].output
    result = asyncio.run(second.run(budget_tokens=300))
    assert result.outcomes[0].output == "counted 3 times"
    assert len(second.model.requests) == 2


def test_a_repair_round_that_was_cut_off_is_not_a_round_more(tmp_path: Path) -> None:
    store = MemorySessionStore()
    step = {**STEP, "output_schema": SCHEMA}

    def first_answer(request: ModelRequest) -> Any:
        return calls(("count", {"n": 1})) if rounds(request) == 0 else "no json"

    async def dies_in_repair() -> None:
        node = Node(tmp_path, store, first_answer)
        original = node.model.generate

        async def generate(request: ModelRequest, deltas: Any = None) -> Any:
            if len(node.model.requests) == 2:
                await asyncio.Event().wait()
            return await original(request, deltas)

        node.model.generate = generate  # type: ignore[method-assign]
        run = asyncio.create_task(node.run(step))
        while len(await store.read("workflow/w")) < 6:
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run])

    asyncio.run(dies_in_repair())
    store.break_leases()
    node = Node(tmp_path, store, lambda request: "still no json")
    [outcome] = asyncio.run(node.run(step))
    assert "[structured output failed" in outcome.output
    assert len(node.model.requests) == 2  # of three answers in all, the first was given before


def test_a_parked_step_stays_parked_over_a_resume(tmp_path: Path) -> None:
    store = MemorySessionStore()
    asks = AgentDefinition(name="worker", description="d", tools=("count",), permissions=ASKING)

    async def run() -> tuple[StepOutcome, int]:
        model = ScriptedModel(counting)
        tool = RecordingTool("count", is_read_only=False)
        async with await Agent.create_async(
            models={"a/b": model}, tools={"count": tool}, agents={"worker": asks}
        ) as agent:
            session = await agent.session_async(tmp_path, session_store=store, approvals="refuse")
            [outcome] = await session.parallel_resumable_async([STEP], "w")
            return outcome, len(model.requests)

    first, asked_first = asyncio.run(run())
    second, asked_again = asyncio.run(run())
    assert first.output == second.output
    assert "waits for approval of count" in first.output
    assert (asked_first, asked_again) == (1, 0)
    assert ParkedError.code == "PARKED"


class CountingStore(MemorySessionStore):
    def __init__(self) -> None:
        super().__init__()
        self.appended: list[int] = []

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        self.appended.append(len(records))
        return await super().append(log, expected_seq, records, lease)


def test_a_one_turn_step_costs_one_append_and_its_facts_are_not_kept(tmp_path: Path) -> None:
    store = CountingStore()
    node = Node(tmp_path, store, lambda request: Reply(text="at once"))
    asyncio.run(node.run())
    assert store.appended == [3]  # the opening, what was asked, and the outcome


def test_the_facts_of_many_steps_share_their_appends(tmp_path: Path) -> None:
    store = CountingStore()
    node = Node(tmp_path, store, counting)
    steps = [{**STEP, "task_id": f"t{number}"} for number in range(8)]
    assert all(outcome.success for outcome in asyncio.run(node.run(*steps)))
    assert sum(store.appended) == 2 + 8 * (3 + 3 + 1 + 1)  # tool turns, tool results, the last turn, the outcome
    assert len(store.appended) < 16
