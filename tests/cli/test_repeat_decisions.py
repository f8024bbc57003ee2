"""Agents that are not simply run again, on the command line: how a run that waits for the decision is gone on with."""

import json
from pathlib import Path

import pytest

from tests.cli.asking_team import Asking, Serve, ready_team
from tests.cli.conftest import configure
from tests.cli.workflow_project import Fanfold, Model, only_run, ready_script

SCRIPT = """
META = {"name": "pay", "description": "Pays, and looks"}


async def pay(ctx, args):
    return await ctx.parallel([
        lambda: ctx.agent("pay the broken one", label="pay", repeat="ask"),
        lambda: ctx.agent("see", label="see"),
    ])
"""


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
def model(serve: Serve, tmp_path: Path) -> Model:
    model = Model(broken="broken")
    configure(tmp_path, serve(model))
    ready_script(tmp_path, SCRIPT, "pay")
    return model


@pytest.fixture
def failed(fanfold: Fanfold, model: Model) -> str:
    """A run whose agent `pay` has failed; it would not fail again."""
    assert fanfold("workflow", "run", "pay").code == 7
    model.broken = ""
    model.prompts.clear()
    return only_run(fanfold)


def test_a_resume_that_decides_nothing_names_both_commands_and_runs_nothing(
    fanfold: Fanfold, model: Model, failed: str
) -> None:
    done = fanfold("workflow", "resume", failed)
    rerun, skip = (f"fanfold workflow resume {failed} --repeat {how}" for how in ("rerun", "skip"))
    assert (done.code, model.prompts) == (5, [])
    assert f"run {failed}: 1 agent waits for a decision; begun before, and not simply run again\n" in done.err
    assert f"run again with: {rerun}\n" in done.err
    assert f"or leave out with: {skip}\n" in done.err
    assert "1 agent waits for a decision: --repeat rerun runs again what was begun before" in done.err
    assert [line.split()[1] for line in done.err.splitlines() if line.startswith("[")] == ["park"]
    assert "REPEAT_UNDECIDED" not in done.err  # the end is about nothing else
    assert "approve" not in done.err
    assert "inbox" not in done.err
    for command in (("runs", "show", failed), ("logs", failed)):
        shown = fanfold(*command)
        assert f"run again with: {rerun}\nor leave out with: {skip}\n" in shown.err
        assert "inbox" not in shown.err
        assert "resume with" not in shown.err
    document = json.loads(fanfold("runs", "show", failed, "--json").out)
    assert document["next_commands"] == [rerun, skip]
    assert "next_command" not in document
    assert fanfold("inbox").err == "nothing waits here\n"
    told = json.loads(fanfold("workflow", "resume", failed, "--json").err)
    assert (told["code"], told["waiting"], told["next_commands"]) == ("PARKED", [], [rerun, skip])
    assert "next_command" not in told


@pytest.mark.parametrize(("how", "value"), [("rerun", "PAY THE BROKEN ONE"), ("skip", None)])
def test_the_decision_is_obeyed(fanfold: Fanfold, model: Model, failed: str, how: str, value: str | None) -> None:
    plan = json.loads(fanfold("workflow", "resume", failed, "--repeat", how, "--plan", "--json").out)
    assert (plan["counts"]["rerun"], plan["counts"]["skip"]) == ((1, 0) if how == "rerun" else (0, 1))
    done = fanfold("workflow", "resume", failed, "--repeat", how)
    assert (done.code, json.loads(done.out)) == (0, [value, "SEE"])
    assert model.prompts == ([] if value is None else ["pay the broken one"])


def test_a_plan_tells_who_waits_for_the_decision(fanfold: Fanfold, failed: str) -> None:
    plan = fanfold("workflow", "resume", failed, "--plan")
    assert plan.out.startswith("cached 1 · re-run 0 · new 0 · ask 1 · est. 0 tok\n1 agent waits for a decision: ")
    (row,) = [line for line in plan.out.splitlines() if line.startswith("pay ")]
    assert row.split()[1:4] == ["ask", "failed", "before:"]
    skipped = fanfold("workflow", "resume", failed, "--plan", "--repeat", "skip").out
    assert skipped.startswith("cached 1 · re-run 0 · new 0 · skip 1 · est. 0 tok\n")
    assert "decision" not in skipped


def test_where_some_wait_for_a_decision_and_some_for_an_answer_both_are_told(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    script = SCRIPT.replace('"see", label="see"', '"edit", label="edit"')
    asking, broken = Asking(), Model(broken="broken")
    configure(tmp_path, serve(lambda asked: broken(asked) if "broken" in str(asked) else asking(asked)))
    ready_script(tmp_path, script, "pay")
    assert fanfold("workflow", "run", "pay").code == 5
    run = only_run(fanfold)
    done = fanfold("workflow", "resume", run)
    assert done.code == 5
    assert f"run {run}: 1 agent waits for an approval or an answer" in done.err
    assert f"then go on with: fanfold workflow resume {run}\n" in done.err
    assert f"and for those that were begun before: run again with: fanfold workflow resume {run} --repeat rerun" in (
        done.err
    )
    shown = fanfold("runs", "show", run)
    assert "see what waits with: fanfold inbox\n" in shown.err
    assert f"resume {run} --repeat skip\n" in shown.err


def test_an_answer_tells_of_the_torn_end_that_it_has_put_aside(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    ready_team(serve, tmp_path)
    assert fanfold("workflow", "run", "team").code == 5
    run = only_run(fanfold)
    with (tmp_path / ".a3s/workflow-runs" / f"{run}.journal.jsonl").open("ab") as file:
        file.write(b"half")
    done = fanfold("approve", "call_7")
    assert done.code == 0
    assert f"note: the journal of {run} had a torn end, which is put aside as {run}." in done.err
    assert "note" not in fanfold("answer", "call_9", "red").err
