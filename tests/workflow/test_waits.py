"""Who of the agents waits for a person is told while it does, with the id that answers it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.protocols import EventSink
from fanfold.workflow.waits import SETTLED_SECONDS, SHOWN_CHARACTERS
from tests.workflow.rig import Rig, Team, failure, outcome, reached


class Asking(Team):
    """Its agents ask as the children of a session do, and wait until `answer` is called, or end at once."""

    def __init__(
        self,
        kind: str = "confirmation_required",
        *,
        end: str = "confirmation_received",
        is_refused: bool = False,
        **asked: Any,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.end = end
        self.is_refused = is_refused
        self.asked_for = asked
        self.answered = asyncio.Event()

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        assert events is not None
        id = f"task-run-{spec.task_id}/call_7"
        name = "tool_id" if self.kind == "confirmation_required" else "question_id"

        def tell(kind: str, **payload: Any) -> None:
            events(AgentEvent(type=kind, payload={name: id, **payload}, metadata={"task_id": spec.task_id}))

        tell(self.kind, **self.asked_for)
        if self.is_refused:
            return failure(spec, "waits for approval", error_code="PARKED")
        await self.answered.wait()
        tell(self.end)
        await asyncio.sleep(2 * SETTLED_SECONDS)  # it works on, and what is told late would be told by now
        return outcome(spec, "done")


async def one(ctx: Any, args: Any) -> Any:
    ctx.phase("Ask")
    return await ctx.agent("do it", label="one")


def ran(place: Path, team: Callable[[], Asking], *, is_answered_at_once: bool = False) -> tuple[Rig, str]:
    """A run of one agent, which is answered when it was told that it waits, or before; and the id of that run."""

    async def main() -> tuple[Rig, str]:
        rig = Rig(place, asking := team())
        run = asyncio.ensure_future(rig.run(one))
        if is_answered_at_once:
            asking.answered.set()
        elif not asking.is_refused:
            await reached(lambda: bool(rig.progress("workflow_waiting")))
            assert not rig.progress("workflow_waited")
            asking.answered.set()
        run_id = (await run).run_id
        await asyncio.sleep(2 * SETTLED_SECONDS)  # what is told late would be told by now
        return rig, run_id

    return asyncio.run(main())


def test_an_approval_is_told_with_its_tool_and_the_beginning_of_its_arguments(tmp_path: Path) -> None:
    long = "x" * 2 * SHOWN_CHARACTERS
    rig, run_id = ran(tmp_path, lambda: Asking(tool_name="write", args={"content": long}))
    [waiting], [answered] = rig.progress("workflow_waiting"), rig.progress("workflow_waited")
    assert (waiting["label"], waiting["phase"], waiting["waits_for"]) == ("one", "Ask", "approval")
    assert (waiting["tool"], waiting["args"]) == ("write", f'{{"content":"{long}'[:SHOWN_CHARACTERS])
    owner, agent, call = waiting["id"].split("/")
    assert (owner, call, "wf_" in agent) == (run_id, "call_7", False)
    assert (answered["id"], answered["where"]) == (waiting["id"], waiting["where"])


def test_a_question_is_told_with_its_options(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"question": "Which?", "options": ["red", "blue"], "allow_free_text": False}
    rig, _ = ran(tmp_path, lambda: Asking("user_question", end="question_answered", **asked))
    [waiting] = rig.progress("workflow_waiting")
    assert (waiting["waits_for"], waiting["question"], waiting["options"]) == ("answer", "Which?", ["red", "blue"])
    assert len(rig.progress("workflow_waited")) == 1


def test_nothing_is_told_of_one_that_nobody_can_be_asked_for(tmp_path: Path) -> None:
    rig, _ = ran(tmp_path, lambda: Asking(is_refused=True, tool_name="write", args={}))
    assert rig.progress("workflow_waiting") == []
    [failed] = [each for each in rig.progress("workflow_agent") if each["status"] == "failed"]
    assert failed["code"] == "PARKED"


def test_one_that_nobody_answers_in_time_goes_on_too(tmp_path: Path) -> None:
    rig, _ = ran(tmp_path, lambda: Asking(end="confirmation_timeout", tool_name="write", args={}))
    assert len(rig.progress("workflow_waiting")) == len(rig.progress("workflow_waited")) == 1


def test_nothing_is_told_of_one_that_is_answered_at_once(tmp_path: Path) -> None:
    rig, _ = ran(tmp_path, lambda: Asking(tool_name="write", args={}), is_answered_at_once=True)
    assert rig.progress("workflow_waiting") == rig.progress("workflow_waited") == []
