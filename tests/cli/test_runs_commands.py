"""`fanfold runs list`, `show`, `diff`: what the files of runs tell, also when nobody runs them any more."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.cli.runs_here import next_command
from fanfold.contracts.codec import encode_json
from fanfold.contracts.workflow_runs import RunSummary, WorkflowSnapshot
from fanfold.stores.run_files import open_run_files
from tests.cli.conftest import ServerThread, configure
from tests.cli.workflow_project import TEAM, Fanfold, Model, only_run, ready_script, runs_of

Serve = Callable[..., ServerThread]
STANDING: dict[str, Any] = {"workflow": "a", "kind": "file", "args": {}, "started_ms": 1, "updated_ms": 2}
RUNNING = {**STANDING, "status": "running"}
PARKED = {**STANDING, "status": "paused", "reason": "parked"}


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def place(tmp_path: Path, name: str) -> Path:
    return tmp_path / ".a3s" / "workflow-runs" / name


def test_where_there_are_no_runs_nothing_is_made(fanfold: Fanfold, tmp_path: Path) -> None:
    assert json.loads(fanfold("runs", "list", "--json").out) == {"schema": "fanfold/runs/v1", "runs": []}
    assert fanfold("runs", "list").err == "there are no workflow runs here yet\n"
    assert fanfold("runs", "show", "wf_a_0123456789abcdef").code == 4
    assert not (tmp_path / ".a3s").exists()


def test_the_list_is_chosen_by_status_workflow_and_number(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    model = Model()
    configure(tmp_path, serve(model))
    ready_script(tmp_path)
    ready_script(tmp_path, TEAM.replace('"team"', '"other"'), "other")
    fanfold("workflow", "run", "team")
    model.broken = "about b"
    fanfold("workflow", "run", "team")
    fanfold("workflow", "run", "other")

    def chosen(*arguments: str) -> list[str]:
        found = json.loads(fanfold("runs", "list", "--json", *arguments).out)["runs"]
        return [f"{each['workflow']} {each['status']}" for each in found]

    assert chosen() == ["other completed_with_failures", "team completed_with_failures", "team completed"]
    assert chosen("--status", "completed") == ["team completed"]
    assert chosen("--workflow", "team") == ["team completed_with_failures", "team completed"]
    assert chosen("--limit", "1") == ["other completed_with_failures"]
    assert chosen("--status", "paused") == []
    assert fanfold("runs", "list", "--status", "paused").err == "there are no such runs here\n"
    assert fanfold("runs", "list", "--status", "odd").code == 2
    text = fanfold("runs", "list").out
    assert "completed with failures" in text
    assert "3 done, 1 failed" in text


def test_a_run_whose_files_are_damaged_is_listed_with_its_problem(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    place(tmp_path, f"{run}.json").write_text("{")
    [listed] = runs_of(fanfold)
    assert (listed["run_id"], listed["status"]) == (run, "unreadable")
    assert "its snapshot cannot be read" in listed["problem"]
    assert "unreadable: its snapshot" in fanfold("runs", "list").out
    shown = fanfold("runs", "show", run)
    assert shown.code == 0
    assert "ask:a" in shown.out  # the journal stands
    assert "note: its snapshot cannot be read" in shown.err
    for command in (("resume",), ("resume", "--plan")):
        assert fanfold("workflow", command[0], run, *command[1:]).code == 1


def test_show_says_where_what_was_spent_is_not_known_in_full(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    assert "estimated" not in fanfold("runs", "show", run).out
    snapshot = json.loads(place(tmp_path, f"{run}.json").read_text())
    snapshot["usage"]["is_estimated"] = True
    place(tmp_path, f"{run}.json").write_text(json.dumps(snapshot))
    assert " tokens (partly estimated)" in fanfold("runs", "show", run).out


def test_show_tells_of_each_agent_and_how_to_go_on(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(broken="about b")))
    path = ready_script(tmp_path)
    fanfold("workflow", "run", "team", "--args", "depth=3", "--budget", "1k")
    fanfold("workflow", "resume", only_run(fanfold))
    shown = fanfold("runs", "show", only_run(fanfold)[-6:])
    for text in (
        f"{only_run(fanfold)}: completed with failures",
        f"workflow  team · file · {path}",
        "attempt 2",
        "100 tokens · 20 of them in this attempt · of a budget of 1000",
        'args      {"depth":3}',
        "ask:b (/0.1#0): ",
    ):
        assert text in shown.out, text
    rows = {line.split()[1]: line.split()[2:5] for line in shown.out.splitlines() if line.startswith(("Ask", "Sum"))}
    assert rows["ask:a"] == ["done", "(attempt", "1)"]
    assert rows["ask:b"][0] == "failed"
    assert shown.err == f"resume with: fanfold workflow resume {only_run(fanfold)}\n"
    document = json.loads(fanfold("runs", "show", only_run(fanfold), "--json").out)
    assert document["schema"] == "fanfold/run/v1"
    assert document["next_command"] == f"fanfold workflow resume {only_run(fanfold)}"
    assert document["snapshot"]["attempt"] == 2
    agents = {each["label"]: each for each in document["agents"]}
    assert list(agents) == ["ask:a", "ask:c", "sum", "ask:b"]  # by their last call
    assert (agents["ask:a"]["status"], agents["ask:a"]["is_cached"]) == ("done", True)
    assert (agents["ask:b"]["status"], agents["ask:b"]["attempt"]) == ("failed", 2)
    assert agents["ask:b"]["error"]["message"]
    assert Path(document["output_file"]).is_file()


def test_a_call_that_was_edited_is_shown_as_it_stands(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team")
    ready_script(tmp_path, TEAM.replace("sum {found}", "sum it: {found}"))
    fanfold("workflow", "resume", only_run(fanfold))
    agents = json.loads(fanfold("runs", "show", only_run(fanfold), "--json").out)["agents"]
    assert sorted(each["label"] for each in agents) == ["ask:a", "ask:b", "ask:c", "sum"]
    assert [each["is_cached"] for each in agents if each["label"] == "sum"] == [False]


def test_the_trace_of_a_script_that_failed_is_shown(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path, 'META = {"name": "team", "description": "d"}\nasync def main(ctx, args):\n    1 // 0\n')
    assert fanfold("workflow", "run", "team").code == 1
    shown = fanfold("runs", "show", only_run(fanfold))
    assert "error     ZeroDivisionError: integer" in shown.out
    assert "    1 // 0" in shown.out
    assert "playing.py" not in shown.out  # frames of fanfold are for a bug report: --json has them
    assert "playing.py" in fanfold("runs", "show", only_run(fanfold), "--json").out


def test_how_to_go_on_has_what_the_run_ended_for_want_of(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    assert fanfold("workflow", "run", "team", "--budget", "25", "--concurrency", "1").code == 6
    run = only_run(fanfold)
    shown = fanfold("runs", "show", run)
    assert shown.err == f"resume with: fanfold workflow resume {run} --budget TOKENS\n"
    assert "Traceback" not in shown.out
    summary = RunSummary(run_id=run, snapshot=WorkflowSnapshot(**PARKED, run_id=run, task_id="t"))
    assert next_command(summary) == f"fanfold workflow resume {run} --wait"


def test_a_run_on_another_model_than_that_of_here_is_gone_on_with_on_its_own(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, serve(Model(broken="about b")))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team", "--model", "fake/m2")
    run = only_run(fanfold)
    again = f"fanfold workflow resume {run} --model fake/m2"
    shown = fanfold("runs", "show", run)
    assert "model     fake/m2" in shown.out
    assert shown.err == f"resume with: {again}\n"
    document = json.loads(fanfold("runs", "show", run, "--json").out)
    assert (document["model"], document["next_command"]) == ("fake/m2", again)
    assert again in fanfold("logs", run).err
    monkeypatch.setenv("FANFOLD_MODEL", "fake/m2")  # which a resume would take too
    assert fanfold("runs", "show", run).err == f"resume with: fanfold workflow resume {run}\n"
    monkeypatch.delenv("FANFOLD_MODEL")
    fanfold("workflow", "resume", run)
    assert "model     fake/m1" in fanfold("runs", "show", run).out  # as its last attempt
    assert fanfold("runs", "show", run).err == f"resume with: fanfold workflow resume {run}\n"


def test_a_run_is_shown_where_the_configuration_is_broken(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(broken="about b")))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    (tmp_path / "agent.acl").write_text("default_model = ")
    shown = fanfold("runs", "show", run)
    assert (shown.code, shown.err) == (0, f"resume with: fanfold workflow resume {run} --model fake/m1\n")


def test_a_run_without_an_output_yet_has_none_to_show(fanfold: Fanfold, tmp_path: Path) -> None:
    async def made() -> None:
        run = await open_run_files(tmp_path).create("wf_a_0123456789abcdef")
        await run.write_snapshot(encode_json(WorkflowSnapshot(**RUNNING, run_id=run.run_id, task_id="t")))
        await run.release()

    asyncio.run(made())
    shown = fanfold("runs", "show", "0123")
    assert "wf_a_0123456789abcdef: interrupted" in shown.out
    assert "\noutput " not in shown.out


def test_without_a_journal_the_snapshot_is_shown(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    place(tmp_path, f"{run}.journal.jsonl").unlink()
    shown = fanfold("runs", "show", run)
    assert (shown.code, "4 done" in shown.out) == (0, True)
    assert f"note: the journal of run {run} is gone" in shown.err
    assert json.loads(fanfold("runs", "show", run, "--json").out)["journal_problem"]


def test_two_runs_are_compared_call_by_call(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    fanfold("workflow", "run", "team", "--args", "areas=a", "--args", "areas=b")
    fanfold("workflow", "run", "team", "--args", "areas=a", "--args", "areas=x", "--args", "areas=y")
    after, before = (each["run_id"] for each in runs_of(fanfold))
    compared = fanfold("runs", "diff", before, after)
    lines = compared.out.splitlines()
    assert lines[0] == "agents: 1 same, 2 asked otherwise, 1 added"
    assert lines[1] == "tokens: 60 -> 80"
    assert "~ ask:x (/0.1#0): asked otherwise" in lines
    assert "    +ask about x" in lines
    assert "+ ask:y (/0.2#0): added" in lines
    assert "output:" in lines
    document = json.loads(fanfold("runs", "diff", before, after, "--json").out)
    assert (document["schema"], document["before"]) == ("fanfold/run-diff/v1", before)
    assert document["is_output_equal"] is False
    same = fanfold("runs", "diff", after[-4:], after)
    assert same.out == "agents: 4 same\ntokens: 80 -> 80\nthe outputs are equal\n"
    assert fanfold("runs", "diff", before, "gone").code == 4
    place(tmp_path, f"{before}.journal.jsonl").unlink()
    assert fanfold("runs", "diff", before, after).code == 1


def test_the_whole_id_of_a_run_is_no_other_one(fanfold: Fanfold, tmp_path: Path) -> None:
    async def made() -> None:
        for name in ("a_0123456789abcdef", "a"):
            await (await open_run_files(tmp_path).create(f"wf_{name}_0123456789abcdef")).release()

    asyncio.run(made())
    whole = fanfold("runs", "show", "wf_a_0123456789abcdef")
    assert whole.out.startswith("wf_a_0123456789abcdef: ")
    assert fanfold("runs", "show", "wf_a_0123456789abcde").code == 2


def test_a_folder_that_a_link_leads_to_is_refused(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / ".a3s").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".a3s" / "workflow-runs").symlink_to(tmp_path / "elsewhere")
    for command in (("runs", "list"), ("ps",), ("runs", "show", "wf_a_0123456789abcdef"), ("logs", "x")):
        refused = fanfold(*command, "--json") if command[0] != "logs" else fanfold(*command)
        assert refused.code == 1, command
        assert "link" in refused.err
