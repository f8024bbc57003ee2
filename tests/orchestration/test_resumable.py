"""Laws of parallel_resumable over any executor and store: what is recorded never runs again, and nothing is lost."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, failed
from fanfold.env import FixedClock, HostEnv
from fanfold.errors import (
    AlreadyActiveError,
    CheckpointRefusedError,
    FencedError,
    InvalidSpecError,
    LogWriteError,
    StepChangedError,
    UsageError,
)
from fanfold.orchestration.checkpoints import delete_checkpoint, list_checkpoints, load_checkpoint
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.plan import plan_resume
from fanfold.orchestration.resumable import execute_steps_parallel_resumable
from fanfold.protocols import Lease, SessionStore
from fanfold.stores.memory_store import MemorySessionStore
from tests.support.host_executor import HostExecutor, done, spec, specs

LOG = "workflow/nightly"


def run(
    store: SessionStore, asked: Sequence[dict[str, Any]], executor: HostExecutor | None = None, **options: Any
) -> list[StepOutcome]:
    return asyncio.run(execute_steps_parallel_resumable(executor or HostExecutor(), asked, "nightly", store, **options))


def failing(*task_ids: str) -> HostExecutor:
    return HostExecutor(lambda step: failed(step, "no luck") if step.task_id in task_ids else f"did {step.prompt}")


def records(store: SessionStore) -> list[bytes]:
    return list(asyncio.run(store.read(LOG)))


def replace_records(store: MemorySessionStore, changed: Sequence[bytes]) -> None:
    async def main() -> None:
        await store.delete(LOG)
        await store.append(LOG, 0, changed)

    asyncio.run(main())


def test_an_early_failure_costs_one_step_on_resume() -> None:
    store, again = MemorySessionStore(), HostExecutor()
    first = run(store, specs(102), failing("t4"))
    assert [outcome.task_id for outcome in first if not outcome.success] == ["t4"]
    second = run(store, specs(102), again)
    assert again.started == ["t4"]
    assert [outcome.output for outcome in second] == [f"did p{number}" for number in range(102)]


def test_full_success_removes_the_journal_so_that_the_next_call_begins_anew() -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, specs(3))
    assert records(store) == []
    run(store, specs(3), again)
    assert sorted(again.started) == ["t0", "t1", "t2"]


def test_a_recorded_outcome_comes_back_as_it_was() -> None:
    store = MemorySessionStore()

    def answer(step: AgentStepSpec) -> Any:
        if step.task_id == "t1":
            return failed(step, "no luck")
        return StepOutcome(
            task_id=step.task_id,
            session_id="elsewhere",
            agent=step.agent,
            output="o",
            success=True,
            structured=[1, None],
        )

    first = run(store, specs(2), HostExecutor(answer))
    second = run(store, specs(2), HostExecutor(answer))
    assert second[0] == first[0]
    assert second[0].session_id == "elsewhere"


def test_recorded_steps_may_be_dropped_reordered_and_joined_by_new_ones() -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, specs(4), failing("t3"))
    outcomes = run(store, [spec("new"), *reversed(specs(3)[1:])], again)
    assert again.started == ["new"]
    assert [outcome.task_id for outcome in outcomes] == ["new", "t2", "t1"]


def test_a_step_that_changed_runs_again_and_an_event_says_so() -> None:
    store, again, heard = MemorySessionStore(), HostExecutor(), list[AgentEvent]()
    run(store, specs(3), failing("t2"))
    changed = [spec("t0", "another prompt"), *specs(3)[1:]]
    run(store, changed, again, events=heard.append)
    assert sorted(again.started) == ["t0", "t2"]
    told = [(item.type, item.payload["task_id"]) for item in heard if item.type != "step_recorded"]
    assert told == [("step_changed", "t0"), ("step_cached", "t1")]
    assert {item.payload["task_id"] for item in heard if item.type == "step_recorded"} == {"t0", "t2"}


@pytest.mark.parametrize(
    "more", [{"description": "other words"}, {"timeout_ms": 9_000}, {"retries": 2}, {"metadata": {"owner": "me"}}]
)
def test_what_is_no_part_of_a_steps_meaning_does_not_change_it(more: dict[str, Any]) -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, specs(2), failing("t1"))
    run(store, [{**specs(1)[0], **more}, specs(2)[1]], again)
    assert again.started == ["t1"]


def test_the_order_of_a_schemas_keys_is_no_part_of_its_meaning() -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, [spec("a", output_schema={"type": "object", "title": "t"}), spec("b")], failing("b"))
    run(store, [spec("a", output_schema={"title": "t", "type": "object"}), spec("b")], again)
    assert again.started == ["b"]


def test_strict_refuses_changed_steps_before_anything_runs() -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, specs(3), failing("t2"))
    with pytest.raises(StepChangedError, match="'t0' changed"):
        run(store, [spec("t0", "other"), *specs(3)[1:]], again, strict=True)
    assert again.started == []
    run(store, specs(3), again, strict=True)
    assert again.started == ["t2"]


def test_a_second_caller_is_told_and_the_first_goes_on() -> None:
    store, second = MemorySessionStore(), HostExecutor()
    gate = asyncio.Event()

    async def answer(step: AgentStepSpec) -> str:
        await gate.wait()
        return "x"

    async def main() -> list[StepOutcome]:
        first = asyncio.create_task(execute_steps_parallel_resumable(HostExecutor(answer), specs(2), "nightly", store))
        while not records_of(store):
            await asyncio.sleep(0)
        with pytest.raises(AlreadyActiveError, match="workflow 'nightly' is already active"):
            await execute_steps_parallel_resumable(second, specs(2), "nightly", store)
        gate.set()
        return await first

    def records_of(_: SessionStore) -> bool:
        return len(asyncio.all_tasks()) > 2

    assert all(outcome.success for outcome in asyncio.run(main()))
    assert second.started == []


def test_a_cancelled_call_keeps_what_was_finished() -> None:
    store, again = MemorySessionStore(), HostExecutor()

    async def answer(step: AgentStepSpec) -> str:
        if step.task_id in ("t0", "t1"):
            return "quick"
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        executor = HostExecutor(answer, hint=2)
        call = asyncio.create_task(execute_steps_parallel_resumable(executor, specs(5), "nightly", store))
        while len(executor.started) < 4:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    run(store, specs(5), again)
    assert sorted(again.started) == ["t2", "t3", "t4"]


@pytest.mark.parametrize("workflow_id", ["", "  ", "\ud800", None])
def test_an_id_that_names_no_workflow_is_refused(workflow_id: Any) -> None:
    executor = HostExecutor()
    with pytest.raises(UsageError, match="a workflow id must be text"):
        asyncio.run(execute_steps_parallel_resumable(executor, specs(1), workflow_id, MemorySessionStore()))
    assert executor.started == []


def test_a_bad_spec_is_refused_before_the_workflow_is_touched() -> None:
    store = MemorySessionStore()
    with pytest.raises(InvalidSpecError):
        run(store, [spec("a"), spec("a")])
    run(store, specs(1))  # nobody has the lease


# ---- what cannot be trusted -----------------------------------------------------------------------------------------


def _with(record: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(record), **changes}).encode()


def _tampered_output(kept: list[bytes]) -> list[bytes]:
    [index] = [number for number, record in enumerate(kept) if b"did p0" in record]
    return [*kept[:index], kept[index].replace(b"did p0", b"did p9"), *kept[index + 1 :]]


def _tampered_identity(kept: list[bytes]) -> list[bytes]:
    [index] = [number for number, record in enumerate(kept) if b"did p0" in record]
    return [*kept[:index], _with(kept[index], id="0" * 32), *kept[index + 1 :]]


def _moved(kept: list[bytes]) -> list[bytes]:
    [index] = [number for number, record in enumerate(kept) if b"did p0" in record]
    return [*kept[:index], _with(kept[index], at="elsewhere"), *kept[index + 1 :]]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda kept: [_with(kept[0], version=2), *kept[1:]], "schema version 2 but this build supports at most 1"),
        (lambda kept: [_with(kept[0], workflow="other"), *kept[1:]], "keyed to 'other', not 'nightly'"),
        (lambda kept: kept[1:], "does not begin with the record that names its workflow"),
        (lambda kept: [*kept, b'{"k":"surprise"}'], "cannot be read"),
        (lambda kept: [*kept, b"no json"], "cannot be read"),
        (_tampered_output, "the result of step 't0' is not the one that was recorded"),
        (_tampered_identity, "the result of step 't0' is not the one that was recorded"),
        (_moved, "the result of step 'elsewhere' is not the one that was recorded"),
    ],
)
def test_a_journal_that_cannot_be_trusted_is_refused_and_left_alone(damage: Any, says: str) -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, specs(3), failing("t2"))
    kept = damage(records(store))
    replace_records(store, kept)
    with pytest.raises(CheckpointRefusedError, match=f"workflow checkpoint cannot be resumed: .*{says}"):
        run(store, specs(3), again)
    assert again.started == []
    assert records(store) == kept
    [summary] = asyncio.run(list_checkpoints(store))
    assert says in (summary.problem or "")
    assert asyncio.run(delete_checkpoint(store, "nightly"))
    run(store, specs(3), again)
    assert len(again.started) == 3


def test_a_record_of_one_workflow_is_no_record_of_another() -> None:
    store = MemorySessionStore()
    run(store, specs(2), failing("t1"))
    opening, *rest = records(store)

    async def main() -> None:
        await store.append("workflow/other", 0, [_with(opening, workflow="other"), *rest])
        await execute_steps_parallel_resumable(HostExecutor(), specs(2), "other", store)

    with pytest.raises(CheckpointRefusedError, match="not the one that was recorded"):
        asyncio.run(main())


# ---- the disk says no -----------------------------------------------------------------------------------------------


class FullDisk(MemorySessionStore):
    """Refuses its appends from number `first` to `last`, counted from 1."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._refused = range(first, last + 1)
        self.appends = 0

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        self.appends += 1
        if self.appends in self._refused:
            raise LogWriteError(path=log, reason="No space left on device")
        return await super().append(log, expected_seq, records, lease)


def test_a_full_disk_ends_the_call_and_nothing_that_was_recorded_is_lost() -> None:
    store, again = FullDisk(3, 1000), HostExecutor()
    with pytest.raises(LogWriteError, match="No space left"):
        run(store, specs(20), HostExecutor(hint=1))
    kept = asyncio.run(load_checkpoint(store, "nightly"))
    assert kept is not None
    store._refused = range(0)
    run(store, specs(20), again)
    assert len(again.started) == 20 - len(kept.steps)


def test_a_disk_that_was_full_for_a_moment_costs_no_finished_step() -> None:
    store, first, again = FullDisk(2, 2), HostExecutor(hint=4), HostExecutor()
    with pytest.raises(LogWriteError):
        run(store, specs(30), first)
    kept = asyncio.run(load_checkpoint(store, "nightly"))
    assert kept is not None
    run(store, specs(30), again)
    assert not {record.task_id for record in kept.steps} & set(again.started)
    assert len(kept.steps) >= len(first.started) - 4  # all but those that were cancelled with the call


def test_a_workflow_that_was_taken_over_records_nothing_more() -> None:
    store, again = MemorySessionStore(), HostExecutor()

    async def main() -> None:
        async def answer(step: AgentStepSpec) -> str:
            if step.task_id == "t1":
                store.break_leases()  # as if this process were taken for dead
                other = await WorkflowJournal.open(store, "nightly", HostEnv())
                await other.close()
            return f"did {step.prompt}"

        with pytest.raises(FencedError):
            await execute_steps_parallel_resumable(HostExecutor(answer, hint=1), specs(4), "nightly", store)

    asyncio.run(main())
    run(store, specs(4), again)
    assert "t1" in again.started


# ---- money ----------------------------------------------------------------------------------------------------------


def test_the_ledger_goes_on_where_the_last_call_left_it() -> None:
    store = MemorySessionStore()
    first, again, more = TokenLedger(25), HostExecutor(hint=1), HostExecutor(hint=1)
    run(store, specs(5), HostExecutor(hint=1), ledger=first)
    assert first.snapshot().consumed_tokens == 30
    refused = run(store, specs(5), again, ledger=TokenLedger(25))
    assert again.started == []
    assert [outcome.success for outcome in refused] == [True, True, True, False, False]
    assert "workflow token budget exhausted (30 / 25 tokens)" in refused[4].output
    higher = TokenLedger(100)
    run(store, specs(5), more, ledger=higher)
    assert more.started == ["t3", "t4"]
    assert higher.snapshot().consumed_tokens == 50


def test_failures_are_paid_for_too() -> None:
    store = MemorySessionStore()
    broken = HostExecutor(lambda step: failed(step, "no", usage=Usage(total_tokens=7)))
    run(store, specs(2), broken)
    ledger = TokenLedger(1000)
    run(store, specs(2), ledger=ledger)
    assert ledger.snapshot().consumed_tokens == 14 + 20


def test_usage_that_nobody_reported_is_estimated_and_marked() -> None:
    store, ledger = MemorySessionStore(), TokenLedger(1000)

    def silent(step: AgentStepSpec) -> Any:
        return StepOutcome(task_id=step.task_id, agent=step.agent, output="x" * 40, success=step.task_id != "t0")

    outcomes = run(store, specs(2), HostExecutor(silent), ledger=ledger)
    assert all(outcome.usage is not None and outcome.usage.is_estimated for outcome in outcomes)
    snapshot = ledger.snapshot()
    assert (
        snapshot.consumed_tokens == snapshot.estimated_tokens == sum(o.usage.total_tokens for o in outcomes if o.usage)
    )
    later = TokenLedger(1000)
    run(store, specs(2), ledger=later)
    assert later.snapshot().estimated_tokens == snapshot.consumed_tokens


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_the_folded_view_of_the_journal() -> None:
    store = MemorySessionStore()
    run(store, specs(3), failing("t1"), env=HostEnv(clock=FixedClock(1_700_000_000_000)))
    checkpoint = asyncio.run(load_checkpoint(store, "nightly"))
    assert checkpoint is not None
    assert (checkpoint.schema_version, checkpoint.workflow_id) == (1, "nightly")
    assert checkpoint.checkpoint_ms == 1_700_000_000_000
    assert [record.task_id for record in checkpoint.steps] == ["t0", "t2"]
    assert [record.outcome.output for record in checkpoint.failed] == ["no luck"]
    assert checkpoint.usage.total_tokens > 20
    assert json.loads(json.dumps(checkpoint.to_dict()))["steps"][0]["outcome"]["output"] == "did p0"
    assert asyncio.run(load_checkpoint(store, "unknown")) is None


def test_a_receipt_binds_step_and_result_without_their_text() -> None:
    store = MemorySessionStore()
    asked = [spec("a", "a secret prompt"), spec("b", "a secret prompt"), spec("c")]
    run(store, asked, failing("c"))
    checkpoint = asyncio.run(load_checkpoint(store, "nightly"))
    assert checkpoint is not None
    one, two = (record.result_receipt for record in checkpoint.steps)
    assert one.identity == two.identity
    assert one.identity.startswith("sha-256-128:")
    assert "secret" not in str(one)
    assert one.result_bytes == len(b'["did a secret prompt",null]')
    failure = checkpoint.failed[0].result_receipt
    assert (failure.outcome, failure.get("result_digest")) == ("failed", None)


def test_a_checkpoint_is_deleted_unless_somebody_runs_it() -> None:
    store = MemorySessionStore()
    run(store, specs(2), failing("t1"))

    async def main() -> None:
        journal = await WorkflowJournal.open(store, "nightly", HostEnv())
        with pytest.raises(AlreadyActiveError):
            await delete_checkpoint(store, "nightly")
        await journal.close()
        assert await delete_checkpoint(store, "nightly")
        assert not await delete_checkpoint(store, "nightly")
        assert await list_checkpoints(store) == []

    asyncio.run(main())


# ---- the plan -------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_would_run_and_why_and_touches_nothing() -> None:
    store = MemorySessionStore()
    run(store, [*specs(4), spec("s", output_schema={"type": "object"})], failing("t1"))
    before = records(store)
    asked = [
        spec("t0", "p0"),
        spec("t1", "p1"),
        spec("t2", "p2\nin one line"),
        spec("s", output_schema={"type": "array"}),
        spec("new"),
    ]
    plan = asyncio.run(plan_resume(store, asked, "nightly"))
    assert [(step.task_id, step.action, step.reason) for step in plan.steps] == [
        ("t0", "cached", "recorded"),
        ("t1", "re-run", "failed before: no luck"),
        ("t2", "re-run", "prompt changed"),
        ("s", "re-run", "schema changed"),
        ("new", "new", "not recorded"),
    ]
    assert plan.steps[2].changes == ("+in one line",)
    assert plan.steps[3].changes == ('-  "type": "object"', '+  "type": "array"')
    assert plan.dropped == ["t3"]
    assert plan.count("cached") == 1
    assert plan.steps[0].estimated_tokens == 0
    assert plan.steps[4].estimated_tokens == 10  # the mean of its agent's steps
    assert records(store) == before


def test_a_plan_and_the_call_agree() -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, specs(6), failing("t1", "t4"))
    asked = [*specs(6)[1:], spec("new"), spec("t0", "changed")]
    plan = asyncio.run(plan_resume(store, asked, "nightly"))
    run(store, asked, again)
    assert sorted(again.started) == sorted(step.task_id for step in plan.steps if step.action != "cached")


def test_a_step_that_was_started_and_not_recorded_is_told_from_a_new_one() -> None:
    store = MemorySessionStore()

    async def main() -> None:
        async def answer(step: AgentStepSpec) -> str:
            if step.task_id == "t1":
                await asyncio.Event().wait()
            return "x"

        executor = HostExecutor(answer)
        call = asyncio.create_task(execute_steps_parallel_resumable(executor, specs(2), "nightly", store))
        while not await store.read(LOG):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(main())
    plan = asyncio.run(plan_resume(store, [*specs(2), spec("t9")], "nightly"))
    assert [step.reason for step in plan.steps] == ["recorded", "started, not recorded", "not recorded"]


def test_steps_run_in_many_calls_are_recorded_by_few_appends() -> None:
    store = FullDisk(0, 0)
    run(store, specs(1000), HostExecutor(lambda step: done(step, "x"), hint=64))
    assert store.appends <= 1000 // 8
