"""What a step's outcome says of a blocked model, and of the answers against its schema; and that journals keep it."""

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from fanfold import MemorySessionStore, StepOutcome
from fanfold.contracts.messages import ModelRequest
from fanfold.errors import ProviderError
from fanfold.kernel.journal import JournalView, Recorded, outcomes
from fanfold.testing import ScriptedModel, calls
from fanfold.testing.scripted import newest_text
from tests.session.test_resume_inside_a_step import STEP, Node, rounds
from tests.session.test_steps import SCHEMA, run_steps, step

GOOD = '{"yes": true}'


def one(workspace: Path, script: Any, **more: Any) -> StepOutcome:
    [outcome] = run_steps(workspace, ScriptedModel(script), step("t", **more))
    return outcome


def refusing(kind: str, **more: Any) -> ProviderError:
    return ProviderError("no", kind=kind, retryable=False, **more)


@pytest.mark.parametrize("kind", ["auth", "quota"])
def test_a_step_that_the_provider_s_account_stops_says_so(tmp_path: Path, kind: str) -> None:
    outcome = one(tmp_path, [refusing(kind, reset_ms=1_800_000_000_000)])
    assert (outcome.success, outcome.error_code) == (False, "LLM_ERROR")
    assert (outcome.blocked_by, outcome.reset_ms) == (kind, 1_800_000_000_000)


def test_a_throttling_that_was_too_long_to_wait_for_says_so(tmp_path: Path) -> None:
    outcome = one(tmp_path, [refusing("rate_limit", retry_after_ms=3_600_000, blocked_by="quota", reset_ms=5)])
    assert (outcome.blocked_by, outcome.reset_ms) == ("quota", 5)


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "server", "connection", "bad_request", "protocol"])
def test_any_other_failure_blocks_nothing(tmp_path: Path, kind: str) -> None:
    outcome = one(tmp_path, [refusing(kind)])
    assert (outcome.success, outcome.blocked_by, outcome.reset_ms) == (False, None, None)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_right_answer_tells_how_many_wrong_ones_came_before(tmp_path: Path, wrong: int) -> None:
    outcome = one(tmp_path, ["no"] * wrong + [GOOD], output_schema=SCHEMA)
    assert (outcome.success, outcome.structured) == (True, {"yes": True})
    assert outcome.repairs == (wrong or None)


def test_a_schema_that_is_never_met_keeps_the_last_text_and_the_count(tmp_path: Path) -> None:
    outcome = one(tmp_path, ["first", "second", "the last one"], output_schema=SCHEMA)
    assert (outcome.success, outcome.error_code, outcome.repairs) == (False, "SCHEMA_MISMATCH", 2)
    assert outcome.output.startswith("the last one\n\n[structured output failed: ")


def test_a_failure_in_the_middle_of_repairing_keeps_the_count_and_the_block(tmp_path: Path) -> None:
    outcome = one(tmp_path, ["no", refusing("quota")], output_schema=SCHEMA)
    assert (outcome.success, outcome.repairs, outcome.blocked_by) == (False, 1, "quota")


def test_a_step_without_a_schema_has_no_repairs(tmp_path: Path) -> None:
    assert one(tmp_path, ["no"]).repairs is None


def test_a_step_that_goes_on_counts_the_wrong_answers_from_before(tmp_path: Path) -> None:
    store = MemorySessionStore()
    spec = {**STEP, "output_schema": SCHEMA}

    async def dies_in_the_repair(request: ModelRequest) -> Any:
        if rounds(request) == 0:
            return calls(("count", {"n": 1}))  # turns are kept from the first tool round on
        if "no complete JSON" in newest_text(request):
            repairing.set()
            await asyncio.Event().wait()
        return "no"

    repairing = asyncio.Event()

    async def main() -> list[StepOutcome]:
        first = asyncio.create_task(Node(tmp_path, store, dies_in_the_repair).run(spec))
        await repairing.wait()
        first.cancel()
        await asyncio.wait([first])
        store.break_leases()
        return await Node(tmp_path, store, lambda request: GOOD).run(spec)

    [outcome] = asyncio.run(main())
    assert (outcome.success, outcome.repairs) == (True, 1)


def ended(blocked_by: Literal["auth", "quota"] | None = None, **more: Any) -> Recorded:
    outcome = StepOutcome(
        task_id="t", session_id="task-run-t", agent="answer", output="o", success=False, blocked_by=blocked_by, **more
    )
    return Recorded("t", "identity", outcome, ms=7)


def test_a_journal_reads_outcomes_with_and_without_what_blocks() -> None:
    plain, blocked = ended(), ended("quota", reset_ms=1_800_000_000_000, repairs=2)
    for end in (plain, blocked):
        writer, reader = JournalView("w"), JournalView("w")
        reader.absorb([writer.opening(1), writer.ending(end)])
        assert reader.failed["t"].outcome == end.outcome


def test_what_is_absent_is_not_written_so_older_journals_and_readers_know_it() -> None:
    written = json.loads(JournalView("w").ending(ended()))["o"]
    assert written == {"task_id": "t", "agent": "answer", "output": "o", "success": False}
    assert outcomes().decode(json.dumps(written)).blocked_by is None
