"""`fanfold workflow resume`, `continue`, `pause`, `stop`: what is recorded is not run again; a plan tells it first."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.stores.run_files import open_run_files
from tests.cli.conftest import ServerThread, configure
from tests.cli.workflow_project import TEAM, Fanfold, Model, only_run, ready_script, runs_of, write_script

Serve = Callable[..., ServerThread]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def begun(fanfold: Fanfold, serve: Serve, tmp_path: Path, *arguments: str) -> tuple[ServerThread, Model, str]:
    """A run of which the agent for b has failed; the model says anything from now on."""
    model = Model(broken="about b")
    server = serve(model)
    configure(tmp_path, server)
    ready_script(tmp_path)
    assert fanfold("workflow", "run", "team", *arguments).code == 7
    model.broken = ""
    model.prompts.clear()
    return server, model, only_run(fanfold)


def test_a_finished_run_is_answered_from_its_journal(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(Model())
    configure(tmp_path, server)
    ready_script(tmp_path)
    first = fanfold("workflow", "run", "team", "--args", "depth=4")
    again = fanfold("workflow", "resume", only_run(fanfold))
    assert (again.code, again.out) == (0, first.out)
    assert len(server.prompts) == 4
    assert "plan:" not in again.err
    assert "attempt 2" in again.err
    [run] = runs_of(fanfold)
    assert (run["attempt"], run["counts"]["launched"], run["counts"]["cached"]) == (2, 0, 4)


@pytest.mark.parametrize("part", ["id", "beginning", "first digits", "last digits"])
def test_only_what_failed_and_what_follows_is_run(fanfold: Fanfold, serve: Serve, tmp_path: Path, part: str) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    typed = {"id": run, "beginning": run[:9], "first digits": run[-16:-9], "last digits": run[-5:]}[part]
    done = fanfold("workflow", "resume", typed)
    assert done.code == 0
    assert model.prompts == ["ask about b", "sum ['ASK ABOUT A', 'ASK ABOUT B', 'ASK ABOUT C']"]
    assert "plan: cached 2 · re-run 1 · new 0 · est. 20 tok, and what follows from them" in done.err


def test_the_plan_names_each_call_with_its_reason_and_spends_nothing(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    ready_script(tmp_path, TEAM.replace("ask about {area}", "ask about {area}{'!' if area == 'c' else ''}"))
    plan = fanfold("workflow", "resume", run, "--plan")
    lines = plan.out.splitlines()
    assert (plan.code, model.prompts) == (0, [])
    assert lines[0] == "cached 1 · re-run 2 · new 0 · est. 40 tok, and what follows from them"
    assert lines[1] == "the script has changed since the run was launched or last resumed"
    assert any(line.split()[:4] == ["ask:b", "re-run", "failed", "before:"] for line in lines)
    assert any(line.split()[:4] == ["ask:c", "re-run", "prompt", "changed"] for line in lines)
    assert "    +ask about c!" in lines
    assert lines[-1] == "what comes behind depends on their results"
    document = json.loads(fanfold("workflow", "resume", run, "--plan", "--json").out)
    assert (document["schema"], document["is_complete"]) == ("fanfold/workflow-plan/v1", False)
    assert document["counts"] == {
        "cached": 1,
        "rerun": 2,
        "new": 0,
        "not_run": 0,
        "skip": 0,
        "ask": 0,
        "estimated_tokens": 40,
    }
    assert runs_of(fanfold)[0]["attempt"] == 1


def test_a_plan_of_a_complete_run_tells_what_is_not_asked_for_any_more(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    assert fanfold("workflow", "run", "team").code == 0
    assert (
        fanfold("workflow", "resume", only_run(fanfold), "--plan").out == "cached 4 · re-run 0 · new 0 · est. 0 tok\n"
    )
    ready_script(tmp_path, TEAM.replace('await ctx.agent(f"sum {found}", label="sum", agent_type="answer")', "found"))
    plan = fanfold("workflow", "resume", only_run(fanfold), "--plan")
    assert plan.out.endswith("1 recorded calls are not asked for any more; they stay recorded\n")


def test_a_script_that_fails_at_once_has_no_plan(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    ready_script(tmp_path, TEAM.replace('    ctx.phase("Ask")\n', "    1 // 0\n"))
    plan = fanfold("workflow", "resume", run, "--plan")
    assert plan.code == 1
    assert "the script fails on its way to its first agent: ZeroDivisionError" in plan.err
    assert fanfold("workflow", "resume", run).code == 1


def test_a_plan_has_no_events(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    assert fanfold("workflow", "resume", run, "--plan", "--jsonl").code == 2


def test_the_plan_of_what_failed_tells_what_is_kept_and_what_does_not_run(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    ready_script(tmp_path, TEAM.replace("ask about {area}", "ask about {area}{'!' if area == 'c' else ''}"))
    plan = fanfold("workflow", "resume", run, "--plan", "--only-failed")
    lines = plan.out.splitlines()
    assert (plan.code, model.prompts) == (0, [])
    assert lines[0] == "cached 2 · re-run 1 · new 0 · not run 0 · est. 20 tok, and what follows from them"
    assert [line.split()[:2] for line in lines if line.startswith("ask:")] == [["ask:b", "re-run"], ["ask:c", "kept"]]
    assert any("recorded; what is asked there now is not run" in line for line in lines)
    done = fanfold("workflow", "resume", run, "--only-failed")
    assert f"plan: {lines[0]}\n" in done.err
    assert model.prompts[0] == "ask about b"
    ready_script(tmp_path, TEAM.replace('["a", "b", "c"]', '["a", "b", "c", "d"]'))
    document = json.loads(fanfold("workflow", "resume", run, "--plan", "--only-failed", "--json").out)
    assert (document["only_failed"], document["counts"]["not_run"]) == (True, 1)
    page = fanfold("workflow", "resume", run, "--plan", "--only-failed").out.splitlines()
    assert any(line.split()[:4] == ["ask:d", "not", "run", "not"] for line in page)
    assert page[0].startswith("cached 4 · re-run 0 · new 0 · not run 1 · est. 0 tok")
    assert "1 kept, 1 not run: about 0 tokens (120 already spent)" in page


def test_the_plan_of_a_fork_is_that_of_a_new_run(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    fork = ("workflow", "resume", run, "--fork", "--args", "areas=a", "--args", "areas=z")
    plan = fanfold(*fork, "--plan")
    lines = plan.out.splitlines()
    assert (plan.code, model.prompts) == (0, [])
    assert lines[0] == "cached 1 · re-run 1 · new 0 · est. 20 tok, and what follows from them"
    assert lines[1] == f"in a new run, which begins with the answers of {run} and leaves that as it is"
    assert "    +ask about z" in lines
    assert "(0 already spent)" in plan.out
    assert json.loads(fanfold(*fork, "--plan", "--json").out)["is_fork"]
    assert f"plan: {lines[0]}\n" in fanfold(*fork).err
    assert len(runs_of(fanfold)) == 2


def test_strict_refuses_a_script_that_has_changed(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    ready_script(tmp_path, TEAM + "\n")
    refused = fanfold("workflow", "resume", run, "--strict", "--json")
    assert (refused.code, json.loads(refused.err)["code"]) == (2, "script_changed")
    plan = fanfold("workflow", "resume", run, "--strict", "--plan")
    assert (plan.code, plan.out[:8]) == (2, "cached 2")
    for each in (refused, plan):
        assert "without --strict only the calls that changed are run" in each.err
    assert model.prompts == []
    assert fanfold("workflow", "resume", run).code == 0


def test_another_model_is_told_before_everything_runs_again(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path, "--model", "fake/m2")
    plan = fanfold("workflow", "resume", run, "--plan")
    assert "with --model fake/m2 they would not" in plan.out
    done = fanfold("workflow", "resume", run)
    assert "note: agents run again because their model has changed; with --model fake/m2 they would not" in done.err


def test_other_arguments_need_a_fork_which_keeps_what_is_recorded(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    refused = fanfold("workflow", "resume", run, "--args", "areas=a", "--args", "areas=z")
    assert refused.code == 2
    assert "args differ" in refused.err
    done = fanfold("workflow", "resume", run, "--fork", "--args", "areas=a", "--args", "areas=z")
    assert done.code == 0
    assert model.prompts == ["ask about z", "sum ['ASK ABOUT A', 'ASK ABOUT Z']"]
    newest, oldest = runs_of(fanfold)
    assert (newest["parent_run_id"], oldest["run_id"]) == (run, run)


def test_only_what_failed_may_be_run_again(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    ready_script(tmp_path, TEAM.replace("ask about {area}", "ask about {area}{'!' if area == 'c' else ''}"))
    fanfold("workflow", "resume", run, "--only-failed")
    assert model.prompts[0] == "ask about b"
    assert not any("c!" in prompt for prompt in model.prompts)


def test_a_run_of_another_workflow_is_not_taken(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    (tmp_path / "s.py").write_text(TEAM)
    (tmp_path / "t.py").write_text(TEAM.replace('"team"', '"other"'))
    assert fanfold("workflow", "run", "s.py", "--yes").code == 0
    run = only_run(fanfold)
    refused = fanfold("workflow", "resume", run, "--file", "t.py", "--yes")
    assert refused.code == 2
    assert f"run {run} is one of workflow 'team', and t.py is 'other'" in refused.err
    assert fanfold("workflow", "resume", run, "--file", "s.py").code == 0


def test_a_changed_script_is_approved_anew_before_it_goes_on(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    write_script(tmp_path, TEAM + "\n")
    for more in ([], ["--plan"]):
        refused = fanfold("workflow", "resume", run, *more)
        assert refused.code == 2
        assert "nobody can be asked here" in refused.err
    assert model.prompts == []
    assert fanfold("workflow", "resume", run, "--yes").code == 0


def test_a_script_that_cannot_be_read_any_more_tells_why(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    ready_script(tmp_path, "META = {")
    refused = fanfold("workflow", "resume", run)
    assert refused.code == 2
    assert "is no Python: " in refused.err
    ready_script(tmp_path, TEAM.replace('"team"', '"renamed"'))
    assert "is 'renamed'" in fanfold("workflow", "resume", run).err
    (tmp_path / ".a3s" / "workflows" / "team.py").unlink()
    assert fanfold("workflow", "resume", run).code == 4
    assert "cannot read gone.py" in fanfold("workflow", "resume", run, "--file", "gone.py").err


# ---- which run ----


def test_a_run_that_there_is_not_is_code_4(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    near = run[:-1] + ("0" if run[-1] != "0" else "1")
    for command in (("resume",), ("continue",), ("stop",), ("pause",)):
        refused = fanfold("workflow", *command, near)
        assert refused.code == 4
        assert f"there is no workflow run '{near}' here; did you mean '{run}'?" in refused.err
        assert "fanfold runs list" in refused.err
    assert fanfold("workflow", "resume", "../../etc").code == 4


def test_an_id_that_may_mean_several_is_refused_with_them(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    assert fanfold("workflow", "run", "team").code == 0
    refused = fanfold("workflow", "resume", "wf_team")
    assert refused.code == 2
    assert "'wf_team' may mean 2 runs" in refused.err
    assert run in refused.err
    assert fanfold("workflow", "resume", "").code == 4  # no name is the name of no run


def test_a_run_without_a_journal_is_told_and_stays_as_it_is(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    (tmp_path / ".a3s" / "workflow-runs" / f"{run}.journal.jsonl").unlink()
    refused = fanfold("workflow", "resume", run, "--json")
    assert (refused.code, json.loads(refused.err)["code"]) == (1, "journal_missing")


# ---- continue, pause, stop, of runs that nobody runs ----


def test_only_a_paused_run_is_continued(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    refused = fanfold("workflow", "continue", run)
    assert refused.code == 1
    assert f"run {run} is completed with failures, so there is nothing to continue" in refused.err
    assert f"resume with: fanfold workflow resume {run}" in refused.err
    assert model.prompts == []
    assert fanfold("workflow", "resume", run).code == 0
    assert f"what it gave: fanfold runs show {run}" in fanfold("workflow", "continue", run).err
    ready_script(tmp_path)
    assert fanfold("workflow", "run", "team", "--budget", "25", "--concurrency", "1").code == 6
    paused = runs_of(fanfold)[0]
    assert (paused["status"], paused["reason"]) == ("paused", "budget_exhausted")
    assert fanfold("workflow", "continue", paused["run_id"], "--budget", "1k").code == 0


def test_a_run_that_has_ended_cannot_be_ended(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    for verb in ("stop", "pause"):
        refused = fanfold("workflow", verb, run)
        assert refused.code == 4
        assert f"run {run} has ended already: it is completed with failures" in refused.err


def test_a_run_that_was_cut_off_is_marked_and_a_paused_one_stopped(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    snapshot = tmp_path / ".a3s" / "workflow-runs" / f"{run}.json"
    told = json.loads(snapshot.read_text())
    snapshot.write_text(json.dumps({**told, "status": "running"}))
    assert runs_of(fanfold)[0]["status"] == "interrupted"
    paused = fanfold("workflow", "pause", run)
    assert paused.code == 0
    assert f"{run} is paused (requested): 3 done, 1 failed" in paused.err
    assert f"resume with: fanfold workflow resume {run}" in paused.err
    stopped = json.loads(fanfold("workflow", "stop", run, "--json").out)
    assert (stopped["schema"], stopped["status"]) == ("fanfold/workflow-end/v1", "stopped")
    assert stopped["next_command"] == f"fanfold workflow resume {run}"
    assert fanfold("workflow", "stop", run).code == 0


def test_the_command_that_goes_on_with_what_failed_does_that_again(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    _, model, run = begun(fanfold, serve, tmp_path)
    model.broken = "about b"
    assert f"resume {run} --only-failed\n" in fanfold("workflow", "resume", run, "--only-failed").err
    assert f"resume {run}\n" in fanfold("workflow", "resume", run).err


def test_other_arguments_are_refused_with_the_way_to_have_them(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    refused = fanfold("workflow", "resume", run, "--args", "areas=z")
    assert (refused.code, "hint: add --fork" in refused.err) == (2, True)


def test_the_plan_of_a_run_that_goes_on_says_so(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    _, _, run = begun(fanfold, serve, tmp_path)
    held = asyncio.run(open_run_files(tmp_path).hold(run))
    assert "note: it goes on just now, in process " in fanfold("workflow", "resume", run, "--plan").err
    asyncio.run(held.release())
    assert "goes on just now" not in fanfold("workflow", "resume", run, "--plan").err
