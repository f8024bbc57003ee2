"""`fanfold workflow run`: the result on stdout, the rest on stderr, and an exit code by what the run came to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ServerThread, configure
from tests.cli.workflow_project import TEAM, Fanfold, Model, only_run, ready_script, runs_of, write_script
from tests.support.chat_server import Call, Http, Json, Say

Serve = Callable[..., ServerThread]
HEAD = 'META = {"name": "team", "description": "d"}\n'
ASK = 'await ctx.agent("ask", label="one", agent_type="answer")'


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def script(body: str) -> str:
    return f"{HEAD}async def main(ctx, args):\n    {body}\n"


def test_the_result_is_on_stdout_and_the_progress_on_stderr(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    done = fanfold("workflow", "run", "team", "--args", "areas=x", "--args", "areas=y", "--args", "depth=2")
    assert done.code == 0
    assert json.loads(done.out) == {"sum": "SUM ['ASK ABOUT X', 'ASK ABOUT Y']", "depth": 2}
    lines = done.err.splitlines()
    assert lines[0] == f"team: started as {only_run(fanfold)}"
    assert "== Ask" in lines
    assert "ask:y" in done.err
    assert lines[-1].startswith("team: completed · 3 done · 60 tok")


def test_a_text_is_printed_as_it_is_and_nothing_as_nothing(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    for body, out in ((f"return {ASK}", "ASK\n"), ("return None", ""), ('return "a\\n"', "a\n"), ("return 0", "0\n")):
        ready_script(tmp_path, script(body))
        assert fanfold("workflow", "run", "team", "--quiet").out == out, body


def test_json_is_one_document_and_jsonl_one_line_for_each_event(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    done = fanfold("workflow", "run", "team", "--json", "--budget", "50k")
    document = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (document["schema"], document["status"]) == ("fanfold/workflow-result/v1", "completed")
    assert document["value"]["sum"].startswith("SUM")
    assert document["counts"]["done"] == 4
    events = [json.loads(line) for line in fanfold("workflow", "run", "team", "--jsonl").out.splitlines()]
    assert events[0]["type"] == "async_launched"
    assert [each["type"] for each in events[-2:]] == ["task_notification", "workflow_end"]
    assert events[-1]["payload"]["value"] == document["value"]
    assert "exclude each other" in fanfold("workflow", "run", "team", "--json", "--jsonl").err


def test_the_result_goes_into_a_file_too(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    (tmp_path / "out.txt").write_text("old")
    (tmp_path / "out.txt").chmod(0o600)
    (tmp_path / "link.txt").symlink_to("out.txt")
    done = fanfold("workflow", "run", "team", "--output", "link.txt")
    assert (tmp_path / "out.txt").read_text() == done.out != ""
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "out.txt").stat().st_mode & 0o777 == 0o600
    assert fanfold("workflow", "run", "team", "--output", "new.md", "--json").code == 0
    assert (tmp_path / "new.md").read_text() == done.out


def test_an_output_that_cannot_be_written_runs_nothing(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(Model())
    configure(tmp_path, server)
    ready_script(tmp_path)
    (tmp_path / "folder").mkdir()
    for place in ("gone/out.json", "folder"):
        refused = fanfold("workflow", "run", "team", "--output", place)
        assert refused.code == 2
        assert f"--output {place}: " in refused.err
    assert server.prompts == []


# ---- exit codes ----


def test_failed_agents_are_listed_and_code_7(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(broken="about b")))
    ready_script(tmp_path)
    done = fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    assert done.code == 7
    assert "'ASK ABOUT A', NONE" in json.loads(done.out)["sum"]
    assert "  ask:b (/0.1#0): " in done.err
    assert f"fanfold: run {run}: 1 of 4 agents failed, 1 result is None" in done.err
    assert f"hint: resume with: fanfold workflow resume {run}" in done.err
    assert fanfold("workflow", "run", "team", "--allow-failures").code == 0
    error = json.loads(fanfold("workflow", "run", "team", "--json").err)
    assert error["code"] == "FAILED_STEPS"


def test_arguments_that_do_not_fit_are_refused_with_where_it_is_told_what_does(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    refused = fanfold("workflow", "run", "team", "--args", "odd=1")
    assert refused.code == 2
    assert refused.err.endswith("hint: what it takes: fanfold workflow show team\n")


def test_a_script_that_fails_is_code_1_with_its_line(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path, script(f"{ASK}\n    return 1 // 0"))
    done = fanfold("workflow", "run", "team")
    assert (done.code, done.out) == (1, "")
    assert "failed: ZeroDivisionError: integer" in done.err
    assert "(line 4 of its script)" in done.err
    assert "resume with: fanfold workflow resume wf_team_" in done.err


def test_a_spent_budget_is_code_6(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    done = fanfold("workflow", "run", "team", "--budget", "25", "--concurrency", "1")
    assert done.code == 6
    assert "Budget exhausted on 'workflow_tokens'" in done.err
    assert f"resume with more: fanfold workflow resume {only_run(fanfold)} --budget TOKENS" in done.err
    again = fanfold("workflow", "resume", only_run(fanfold), "--budget", "1k")
    assert again.code == 0
    assert runs_of(fanfold)[0]["counts"]["cached"] >= 1


def test_a_refused_key_pauses_the_run_with_code_1(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    def refuses(_: Json) -> Http:
        return Http(status=401)

    configure(tmp_path, serve(refuses))
    ready_script(tmp_path)
    done = fanfold("workflow", "run", "team")
    assert done.code == 1
    assert "is paused, the provider refuses the key" in done.err
    assert "resume with: fanfold workflow resume wf_team_" in done.err
    assert json.loads(fanfold("workflow", "run", "team", "--json").err)["code"] == "RUN_PAUSED"


def test_an_approval_that_nobody_gives_is_code_5(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    def edits(asked: Json) -> Say:
        if asked["messages"][-1]["role"] == "tool":
            return Say("done")
        return Say(calls=(Call("write", '{"file_path": "f.txt", "content": "x"}'),))

    configure(tmp_path, serve(edits))
    ready_script(tmp_path, script('return await ctx.agent("do it", label="edit")'))
    done = fanfold("workflow", "run", "team")
    run = only_run(fanfold)
    assert done.code == 5
    assert f"run {run}: 1 agent waits for an approval" in done.err
    [waiting] = json.loads(fanfold("inbox", "--json").out)["waiting"]
    assert f"answer edit with: fanfold approve {waiting['id']} or fanfold deny {waiting['id']}\n" in done.err
    assert f"then go on with: fanfold workflow resume {run}\n" in done.err
    assert f"or allow it: fanfold workflow resume {run} --allow write" in done.err
    error = json.loads(fanfold("workflow", "run", "team", "--json").err)
    assert (error["code"], error["waiting"][0]["about"]) == ("PARKED", "edit")
    assert error["next_command"] == f"fanfold workflow resume {error['run_id']}"
    again = fanfold("workflow", "resume", run, "--allow", "write")
    assert (again.code, again.out) == (0, "done\n")
    assert (tmp_path / "f.txt").read_text() == "x"


# ---- what is refused before anything runs ----


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give either a NAME, a PATH.py or --inline PATH"),
        (("team", "--inline", "s.py"), 2, "give either a NAME"),
        (("team", "--args", "areas=1", "--args", "dept=1"), 2, "args_schema"),
        (("team", "--args", "depth=x"), 2, "--args depth: 'x' is no integer"),
        (("team", "--budget", "0"), 2, "is no number of tokens"),
        (("team", "--max-agents", "0"), 2, "1<=x<="),
        (("team", "--model", "fke/m1"), 2, "unknown provider 'fke'"),
        (("team", "--allow", "bash("), 2, "--allow: "),
        (("team", "--config", "gone.acl"), 3, "gone.acl"),
        (("--inline", "gone.py"), 2, "cannot read gone.py"),
    ],
)
def test_what_is_refused_runs_nothing(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    server = serve(Model())
    configure(tmp_path, server)
    ready_script(tmp_path)
    refused = fanfold("workflow", "run", *arguments)
    assert refused.code == code
    assert message in refused.err
    assert server.prompts == []
    assert runs_of(fanfold) == []


def test_a_workflow_that_the_permissions_deny_is_not_run(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()), 'permissions { deny = ["Workflow(team)"] }')
    ready_script(tmp_path)
    refused = fanfold("workflow", "run", "team", "--json")
    assert (refused.code, json.loads(refused.err)["code"]) == (2, "denied")
    assert runs_of(fanfold) == []


def test_a_new_script_runs_once_it_was_approved(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    write_script(tmp_path, TEAM)
    refused = fanfold("workflow", "run", "team")
    assert refused.code == 2
    assert "nobody can be asked here" in refused.err
    assert "or give --yes to run it" in refused.err
    assert fanfold("workflow", "run", "team", "--yes").code == 0
    assert fanfold("workflow", "run", "team").code == 0
    write_script(tmp_path, TEAM + "\n")
    assert fanfold("workflow", "run", "team").code == 2


def test_the_limits_of_the_command_are_those_of_the_run(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()), "max_parallel_tasks = 5")
    ready_script(tmp_path)
    assert fanfold("workflow", "run", "team").code == 0
    limits = json.loads(fanfold("runs", "show", only_run(fanfold), "--json").out)["snapshot"]["limits"]
    assert limits["concurrency"] == 5
    done = fanfold("workflow", "run", "team", "--concurrency", "2", "--max-agents", "3")
    assert done.code == 1
    assert "has launched 3 agents" in done.err
    latest = runs_of(fanfold)[0]["run_id"]
    limits = json.loads(fanfold("runs", "show", latest, "--json").out)["snapshot"]["limits"]
    assert (limits["concurrency"], limits["max_agents"]) == (2, 3)


# ---- scripts from elsewhere ----


def test_a_script_by_its_path_is_run_and_resumed(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(Model(broken="about b"))
    configure(tmp_path, server)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = elsewhere / "mine.py"
    path.write_text(TEAM.replace('"team"', '"mine"'))
    assert fanfold("workflow", "run", str(path)).code == 2
    assert fanfold("workflow", "run", "elsewhere/mine.py", "--yes", "--args", "depth=3").code == 7
    run = only_run(fanfold)
    before = len(server.prompts)
    assert fanfold("workflow", "resume", run, "--file", "elsewhere/mine.py").code == 7
    assert server.prompts[before:] == ["ask about b"]


def test_the_path_of_a_project_file_is_its_workflow(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    ready_script(tmp_path)
    assert fanfold("workflow", "run", ".a3s/workflows/team.py").code == 0
    shown = json.loads(fanfold("runs", "show", only_run(fanfold), "--json").out)
    assert (shown["snapshot"]["kind"], shown["workflow"]) == ("file", "team")


def test_a_script_runs_in_the_sandbox_and_is_resumed_from_its_run(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    server = serve(Model())
    configure(tmp_path, server)
    (tmp_path / "s.py").write_text(script(f"return {ASK}"))
    done = fanfold("workflow", "run", "--inline", "s.py")
    assert (done.code, done.out) == (0, "ASK\n")
    (tmp_path / "s.py").unlink()
    again = fanfold("workflow", "resume", only_run(fanfold))
    assert (again.code, again.out) == (0, "ASK\n")
    assert server.prompts == ["ask"]
    (tmp_path / "t.py").write_text(script(f"return [{ASK}, {ASK.replace('ask', 'more')}]"))
    more = fanfold("workflow", "resume", only_run(fanfold), "--file", "t.py")
    assert json.loads(more.out) == ["ASK", "MORE"]
    assert server.prompts == ["ask", "more"]


def test_a_script_that_the_sandbox_refuses_is_code_2(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model()))
    (tmp_path / "s.py").write_text(script("return 1 + 'a'"))
    refused = fanfold("workflow", "run", "--inline", "s.py", "--json")
    assert refused.code == 2
    assert json.loads(refused.err)["code"] == "bad_script"
    assert runs_of(fanfold) == []


def test_the_hint_has_what_a_resume_needs_too(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    inner = tmp_path / "inner place"
    inner.mkdir()
    configure(inner, serve(Model(broken="about b")))
    ready_script(inner)
    options: list[Any] = ["-C", str(inner), "--model", "fake/m2", "--allow", "bash(git log:*)"]
    state = str(tmp_path / "inner place" / "home")
    done = fanfold("workflow", "run", "team", *options, "--yes", "--config", "agent.acl")
    assert done.code == 7, (done.err, state)
    hint = next(line for line in done.err.splitlines() if line.startswith("hint: "))
    assert hint.endswith(f"-C '{inner}' --config agent.acl --model fake/m2 --allow 'bash(git log:*)'")
