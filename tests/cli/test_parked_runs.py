"""A workflow run that nobody could be asked in: it parks, people answer its agents, and a resume obeys."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent
from fanfold.contracts.workflow_runs import WorkflowResult
from fanfold.stores.run_files import open_run_files
from tests.cli.asking_team import Asking, Serve, ready_team
from tests.cli.conftest import Ended
from tests.cli.workflow_project import Fanfold, only_run
from tests.support.chat_server import Json


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
def model(serve: Serve, tmp_path: Path) -> Asking:
    return ready_team(serve, tmp_path)


@pytest.fixture
def parked(fanfold: Fanfold, model: Asking) -> str:
    """A run in which one agent wants an approval and another one an answer."""
    assert fanfold("workflow", "run", "team").code == 5
    model.asked.clear()
    return only_run(fanfold)


def waiting(fanfold: Fanfold) -> tuple[Json, Json]:
    """The approval, and the question."""
    document = json.loads(fanfold("inbox", "--json").out)
    assert document["notes"] == []
    approval, question = sorted(document["waiting"], key=lambda each: str(each["kind"]))
    return approval, question


# ---- it parks --------------------------------------------------------------------------------------------------------


def test_the_end_of_a_parked_run_names_the_commands_that_answer_each_agent(fanfold: Fanfold, model: Asking) -> None:
    done = fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    approval, question = waiting(fanfold)
    assert done.code == 5
    assert (
        f"fanfold: run {run}: 2 agents wait for an approval or an answer; without --wait nobody is asked\n" in done.err
    )
    assert f"answer edit:a with: {approval['commands'][0]} or {approval['commands'][1]}\n" in done.err
    assert f"answer the colour with: {question['commands'][0]}\n" in done.err
    assert f"then go on with: fanfold workflow resume {run}\n" in done.err
    lines = done.err.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("[")] == ["park", "park"]
    assert not any(line.startswith("  ") and "PARKED" in line for line in lines)  # that is what the hint is about
    shown = fanfold("runs", "show", run)
    assert "see what waits with: fanfold inbox\n" in shown.err
    assert sum(line.split()[-3:-2] == ["parked"] for line in shown.out.splitlines()) == 2
    document = json.loads(fanfold("runs", "show", run, "--json").out)
    assert sorted(each["status"] for each in document["agents"]) == ["parked", "parked"]


def test_the_inbox_lists_the_agents_of_a_parked_run(fanfold: Fanfold, parked: str) -> None:
    approval, question = waiting(fanfold)
    assert (approval["source"], approval["owner"], approval["about"]) == ("run", parked, "edit:a")
    assert (approval["tool"], approval["args"]) == ("write", {"file_path": "made.txt", "content": "x"})
    assert (question["question"], question["options"]) == ("Which colour?\nOne only.", ["red", "blue"])
    for each in (approval, question):
        assert each["id"] == f"{parked}/{each['step'].removeprefix(f'{parked}-')}/{each['call_id']}"
        assert "process" not in each
    text = fanfold("inbox").out
    assert f"workflow run {parked} · agent edit:a · parked · since 20" in text
    assert '\n  write {"file_path":"made.txt","content":"x"}\n  fanfold approve ' in text
    assert "\n  Which colour?\n  One only.\n  1. red\n  2. blue\n  fanfold answer " in text


# ---- it is answered --------------------------------------------------------------------------------------------------


def whole(each: Json) -> str:
    return str(each["id"])


def without_the_run(each: Json) -> str:
    return str(each["id"]).partition("/")[2]


def call_alone(each: Json) -> str:
    return str(each["call_id"])


def as_the_failure_says(each: Json) -> str:
    return f"task-run-{each['step']}/{each['call_id']}"


@pytest.mark.parametrize("name", [whole, without_the_run, call_alone, as_the_failure_says])
def test_answers_are_recorded_and_a_resume_goes_on_from_them_without_asking_the_model_again(
    fanfold: Fanfold, model: Asking, parked: str, tmp_path: Path, name: Callable[[Json], str]
) -> None:
    approval, question = waiting(fanfold)
    approved = fanfold("approve", name(approval))
    assert approved == Ended(0, "", f"approved {approval['id']}; go on with: fanfold workflow resume {parked}\n")
    answered = fanfold("answer", name(question), "2", "--json")
    assert json.loads(answered.out) == {
        "schema": "fanfold/answer/v1",
        "id": question["id"],
        "answer": "answered",
        "goes_on": False,
        "next_command": f"fanfold workflow resume {parked}",
    }
    assert fanfold("inbox").err == "nothing waits here\n"
    assert not (tmp_path / "made.txt").exists()
    plan = fanfold("workflow", "resume", parked, "--plan")
    assert plan.out.count("it waited for a person, who has answered") == 2
    done = fanfold("workflow", "resume", parked)
    assert (done.code, (tmp_path / "made.txt").read_text()) == (0, "x")
    assert json.loads(done.out)[1] == "it came to blue"
    assert model.asked == ["tool", "tool"]


def test_a_denied_call_never_runs_and_its_agent_has_failed_in_the_resume(
    fanfold: Fanfold, model: Asking, parked: str, tmp_path: Path
) -> None:
    approval, question = waiting(fanfold)
    denied = fanfold("deny", "call_7", "--reason", "not today")
    assert denied.err == (
        f"denied {approval['id']}; its agent ends as denied; go on with: fanfold workflow resume {parked}\n"
    )
    fanfold("answer", question["id"], "red")
    done = fanfold("workflow", "resume", parked)
    assert (done.code, json.loads(done.out)) == (7, [None, "it came to red"])
    assert "edit:a (/0.0#0): NO_ANSWER: a tool call was denied\n" in done.err
    assert model.asked == ["tool"]
    assert not (tmp_path / "made.txt").exists()
    assert fanfold("inbox").err == "nothing waits here\n"


def test_what_is_not_answered_yet_is_parked_again(fanfold: Fanfold, model: Asking, parked: str) -> None:
    fanfold("approve", "call_7")
    again = fanfold("workflow", "resume", parked)
    assert again.code == 5
    assert f"run {parked}: 1 agent waits for an approval or an answer" in again.err
    assert model.asked == ["tool"]
    assert fanfold("answer", "call_9", "blue").code == 0
    assert fanfold("workflow", "resume", parked).code == 0


def test_the_second_answer_is_told_what_the_first_one_was(fanfold: Fanfold, parked: str) -> None:
    approval, question = waiting(fanfold)
    fanfold("approve", "call_7")
    fanfold("answer", "call_9", "red")
    for command in (("approve", "call_7"), ("deny", approval["id"])):
        again = fanfold(*command)
        assert (again.code, again.err) == (4, f"fanfold: '{approval['id']}' does not wait any more: it was approved\n")
    again = fanfold("answer", "call_9", "blue")
    assert (again.code, again.err) == (4, f"fanfold: '{question['id']}' does not wait any more: it was answered\n")


def test_an_answer_of_the_wrong_kind_names_the_right_command(fanfold: Fanfold, parked: str) -> None:
    approval, question = waiting(fanfold)
    wrong = fanfold("approve", "call_9")
    assert (wrong.code, f"which waits for an answer: {question['commands'][0]}\n" in wrong.err) == (2, True)
    wrong = fanfold("answer", "call_7", "yes")
    assert (wrong.code, f"which waits for an approval: {approval['commands'][0]} or " in wrong.err) == (2, True)
    wrong = fanfold("answer", "call_9", "green")
    assert (wrong.code, wrong.err.endswith("its number:\n  1. red\n  2. blue\n")) == (2, True)
    assert len(waiting(fanfold)) == 2


def test_two_runs_of_one_workflow_are_told_apart(fanfold: Fanfold, parked: str) -> None:
    fanfold("workflow", "run", "team")
    refused = fanfold("approve", "call_7")
    candidates = refused.err.splitlines()[-2:]
    assert (refused.code, len(candidates)) == (2, 2)
    [mine] = [each.strip() for each in candidates if parked in each]
    assert fanfold("approve", mine).err.startswith(f"approved {parked}/")


# ---- it cannot be answered -------------------------------------------------------------------------------------------


def test_a_run_that_was_deleted_waits_for_nobody(fanfold: Fanfold, parked: str) -> None:
    approval, _ = waiting(fanfold)
    fanfold("runs", "delete", parked, "--yes")
    gone = fanfold("approve", approval["id"])
    assert gone.code == 4
    assert gone.err.startswith(f"fanfold: nothing waits here as '{approval['id']}'\n")
    assert fanfold("inbox").err == "nothing waits here\n"


def test_a_damaged_journal_is_a_note_and_hides_no_other_run(fanfold: Fanfold, parked: str, tmp_path: Path) -> None:
    fanfold("workflow", "run", "team")
    (tmp_path / f".a3s/workflow-runs/{parked}.journal.jsonl").unlink()
    listed = fanfold("inbox")
    assert listed.out.count("workflow run wf_team_") == 2
    assert parked not in listed.out
    assert listed.err == f"note: {parked} cannot be read: the journal of run {parked} is gone\n"
    assert fanfold("approve", "call_7").code == 0  # there is but one by now


def test_a_call_that_is_damaged_in_its_journal_is_a_note_and_its_agent_is_asked_again(
    fanfold: Fanfold, model: Asking, parked: str, tmp_path: Path
) -> None:
    journal = tmp_path / f".a3s/workflow-runs/{parked}.journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    [damaged] = [index for index, line in enumerate(lines) if b'"t":"turns"' in line and b"call_7" in line]
    lines[damaged] = lines[damaged].replace(b"call_7", b"call_8")
    journal.write_bytes(b"\n".join(lines))
    listed = fanfold("inbox")
    assert listed.err == (
        f"note: what agent 'edit:a' of {parked} waits for is damaged in its journal; "
        "a resume asks its model again, unless the script says otherwise\n"
    )
    assert (listed.out.count("workflow run"), "agent the colour" in listed.out) == (1, True)
    assert fanfold("approve", "call_8").code == 4
    fanfold("answer", "call_9", "red")
    assert fanfold("workflow", "resume", parked).code == 5
    assert sorted(model.asked) == ["tool", "user"]
    again = fanfold("inbox")
    assert (again.err, "agent edit:a" in again.out) == ("", True)


def test_a_parked_agent_is_answered_when_its_run_has_ended_and_not_while_somebody_runs_it(
    fanfold: Fanfold, parked: str, tmp_path: Path
) -> None:
    async def held() -> list[Ended]:
        run = await open_run_files(tmp_path).hold(parked)
        try:
            commands = (("inbox",), ("approve", "call_7"), ("ps", "--json"))
            return [await asyncio.to_thread(fanfold, *command) for command in commands]
        finally:
            await run.release()

    listed, refused, running = asyncio.run(held())
    assert [(each["run_id"], each.get("waiting")) for each in json.loads(running.out)["runs"]] == [(parked, None)]
    assert f"workflow run {parked} · agent edit:a · parked · since 20" in listed.out
    assert (refused.code, "is already active" in refused.err) == (8, True)
    assert f"can be answered when the run has ended: fanfold logs -f {parked}\n" in refused.err
    assert fanfold("approve", "call_7").code == 0


def registered(tmp_path: Path, resumed: str | None = None) -> WorkflowResult:
    """What the run of a function comes to that a program has registered."""

    async def team(ctx: Any, args: Any) -> Any:
        return await ctx.agent("edit", label="edit:a")

    async def main() -> WorkflowResult:
        async with (
            await Agent.create_async() as agent,
            await agent.session_async(tmp_path, session_id="host", approvals="refuse") as session,
        ):
            session.workflows.register({"name": "own", "description": "d"}, team)
            if resumed is not None:
                return await session.workflows.run_async(resume_from_run_id=resumed)
            return await session.workflows.run_async("own", {})

    return asyncio.run(main())


def test_a_run_that_only_its_program_can_go_on_with_is_answered_likewise(
    fanfold: Fanfold, model: Asking, tmp_path: Path
) -> None:
    run = registered(tmp_path).run_id
    approved = fanfold("approve", "call_7")
    assert approved.code == 0
    assert approved.err.endswith(
        f"; go on with: session.workflows.run(resume_from_run_id='{run}'), in the program that has its script\n"
    )
    refused = fanfold("workflow", "resume", run)
    assert (refused.code, "a script that a program has registered" in refused.err) == (4, True)
    assert registered(tmp_path, run).status == "completed"
    assert (tmp_path / "made.txt").read_text() == "x"
    assert model.asked == ["user", "tool"]
