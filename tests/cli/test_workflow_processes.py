"""Runs of workflows in processes of their own: stopped, killed, ended and watched from others."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import ServerThread, configure, ended, start
from tests.cli.workflow_project import Fanfold, Model, ready_script, runs_of, until
from tests.support.chat_server import Answer, Call, Json, Say

Serve = Callable[..., ServerThread]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


class Held:
    """A run in another process whose agents for a and c have ended, and whose agent for b has not."""

    def __init__(self, fanfold: Fanfold, serve: Serve, tmp_path: Path, *arguments: str) -> None:
        self.model = Model(held="about b")
        configure(tmp_path, serve(self.model))
        ready_script(tmp_path)
        self.process = start("workflow", "run", "team", *arguments, cwd=tmp_path)
        self.shown = until(fanfold, done=2, running=1)
        self.run = str(self.shown["run_id"])

    def let_go(self) -> None:
        self.model.held = ""
        self.model.prompts.clear()


AFTERWARDS = ["ask about b", "sum ['ASK ABOUT A', 'ASK ABOUT B', 'ASK ABOUT C']"]
"""What is asked by a resume of such a run."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_keeps_what_has_ended_and_is_resumed(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    held = Held(fanfold, serve, tmp_path)
    held.process.send_signal(number)
    done = ended(held.process)
    assert (done.code, done.out) == (code, "")
    assert "stopping; what has ended is kept" in done.err
    assert f"fanfold: stopped run {held.run}; of its agents 2 done\n" in done.err
    assert f"hint: resume with: fanfold workflow resume {held.run}\n" in done.err
    assert runs_of(fanfold)[0]["status"] == "stopped"
    held.let_go()
    assert fanfold("workflow", "resume", held.run).code == 0
    assert held.model.prompts == AFTERWARDS


def test_a_stop_is_one_json_error_for_machines(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    held = Held(fanfold, serve, tmp_path, "--json")
    held.process.send_signal(signal.SIGINT)
    done = ended(held.process)
    assert (done.code, done.out) == (130, "")
    error = json.loads(done.err)
    assert error["hint"] == f"resume with: fanfold workflow resume {held.run}"


STUBBORN = (  # it takes longer to end than anybody waits
    'META = {"name": "team", "description": "d"}\n'
    "import asyncio\n"
    "async def main(ctx, args):\n"
    "    first = await ctx.agent('ask', agent_type='answer')\n"
    "    try:\n"
    "        return first + await ctx.agent('ask about b', agent_type='answer')\n"
    "    except asyncio.CancelledError:\n"
    "        raise\n"
    "    except BaseException:\n"
    "        await asyncio.sleep(60)\n"
    "        raise\n"
)


def test_a_second_signal_ends_at_once_and_loses_nothing(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    model = Model(held="about b")
    configure(tmp_path, serve(model))
    ready_script(tmp_path, STUBBORN)
    process = start("workflow", "run", "team", cwd=tmp_path)
    until(fanfold, done=1, running=1)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert ended(process).code == 130
    [run] = runs_of(fanfold)
    assert (run["status"], run["is_alive"]) == ("interrupted", False)
    model.held = ""
    model.prompts.clear()
    assert fanfold("workflow", "resume", run["run_id"]).out == "ASKASK ABOUT B\n"
    assert model.prompts == ["ask about b"]


def test_whoever_stops_a_run_is_told_what_it_waits_for(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(held="about b")))
    ready_script(tmp_path, STUBBORN)
    process = start("workflow", "run", "team", cwd=tmp_path)
    run = until(fanfold, done=1, running=1)["run_id"]
    done = fanfold("workflow", "stop", run)
    assert done.code == 0
    assert "was asked to end it, and has not done so yet; waiting for it\n" in done.err
    assert f"{run} is stopped" in done.err
    assert ended(process).code == 1


def test_a_killed_run_is_interrupted_and_resumed(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    held = Held(fanfold, serve, tmp_path)
    held.process.kill()
    ended(held.process)
    [run] = runs_of(fanfold)
    assert (run["status"], run["is_alive"]) == ("interrupted", False)
    assert json.loads(fanfold("ps", "--json").out)["runs"] == []
    shown = fanfold("runs", "show", held.run)
    assert "agents    2 done, 1 interrupted" in shown.out
    assert "spent     40 tokens" in shown.out
    assert f"resume with: fanfold workflow resume {held.run}" in shown.err
    logs = fanfold("logs", held.run, "-f")  # there is nothing to wait for
    assert logs.code == 0
    assert f"{held.run} is interrupted; resume with: fanfold workflow resume {held.run}" in logs.err
    held.let_go()
    plan = fanfold("workflow", "resume", held.run, "--plan")
    assert plan.out.startswith("cached 2 · re-run 1 · new 0")
    assert "in doubt" in plan.out
    assert fanfold("workflow", "resume", held.run).code == 0
    assert held.model.prompts == AFTERWARDS


@pytest.mark.parametrize(("verb", "status", "code"), [("stop", "stopped", 1), ("pause", "paused", 1)])
def test_a_run_is_ended_from_another_process(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, verb: str, status: str, code: int
) -> None:
    held = Held(fanfold, serve, tmp_path)
    done = fanfold("workflow", verb, held.run)
    assert done.code == 0
    assert f"{held.run} is {status} (requested): 2 done" in done.err
    assert f"resume with: fanfold workflow resume {held.run}" in done.err
    owner = ended(held.process)
    assert owner.code == code
    assert f"run {held.run} " in owner.err
    assert f"resume with: fanfold workflow resume {held.run}" in owner.err
    held.let_go()
    again = "continue" if verb == "pause" else "resume"
    assert fanfold("workflow", again, held.run).code == 0
    assert held.model.prompts == AFTERWARDS


def test_a_run_that_goes_on_is_seen_and_cannot_be_resumed(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    held = Held(fanfold, serve, tmp_path)
    [seen] = json.loads(fanfold("ps", "--json").out)["runs"]
    assert (seen["run_id"], seen["is_alive"], seen["status"]) == (held.run, True, "running")
    assert held.run in fanfold("ps").out
    for command in (("resume", held.run), ("resume", held.run, "--only-failed"), ("continue", held.run)):
        refused = fanfold("workflow", *command)
        assert refused.code in (1, 8), command
        assert f"fanfold logs -f {held.run}" in refused.err
        assert "plan:" not in refused.err
    refused = fanfold("workflow", "resume", held.run, "--json")
    assert (refused.code, json.loads(refused.err)["code"]) == (8, "ALREADY_ACTIVE")
    assert f"follow it with: fanfold logs -f {held.run}" in fanfold("runs", "show", held.run).err
    plan = fanfold("workflow", "resume", held.run, "--plan")
    assert plan.out.startswith("cached 2 · re-run 1")
    assert fanfold("workflow", "stop", held.run).code == 0
    assert ended(held.process).code == 1


def test_logs_follow_a_run_to_its_end(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    held = Held(fanfold, serve, tmp_path)
    follower = start("logs", "-f", held.run[-8:], cwd=tmp_path)
    machine = start("logs", "-f", held.run, "--jsonl", cwd=tmp_path)
    assert follower.stdout is not None
    while "ask:c" not in follower.stdout.readline():
        pass  # it has read what there is, and waits for more
    assert fanfold("workflow", "stop", held.run).code == 0
    done, events = ended(follower), ended(machine)
    assert done.code == events.code == 0
    assert "stopped (requested)" in done.out.splitlines()[-1]
    assert f"{held.run} is stopped (requested); resume with: fanfold workflow resume {held.run}" in done.err
    told = [json.loads(line) for line in events.out.splitlines()]
    assert (told[0]["type"], told[-1]["type"]) == ("async_launched", "task_notification")
    ended(held.process)


def test_as_many_agents_run_at_once_as_concurrency_says(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    server = serve(Model(held="ask"))
    configure(tmp_path, server)
    ready_script(tmp_path)
    areas = json.dumps({"areas": [f"a{number}" for number in range(12)]})
    process = start("workflow", "run", "team", "--concurrency", "12", "--args", areas, cwd=tmp_path)
    server.wait_for_requests(12)
    process.kill()
    ended(process)


def test_a_call_is_approved_from_another_terminal(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    def edits(asked: Json) -> Answer:
        if asked["messages"][-1]["role"] == "tool":
            return Say("done")
        return Say(calls=(Call("write", '{"file_path": "f.txt", "content": "x"}', "call_7"),))

    configure(tmp_path, serve(edits))
    body = 'async def main(ctx, args):\n    return await ctx.agent("do it", label="edit")\n'
    ready_script(tmp_path, f'META = {{"name": "team", "description": "d"}}\n{body}')
    process = start("workflow", "run", "team", "--wait", cwd=tmp_path)
    assert process.stderr is not None
    lines: list[str] = []
    while not any("fanfold approve" in line for line in lines):
        lines.append(process.stderr.readline())
    [waiting] = json.loads(fanfold("inbox", "--json").out)["waiting"]
    assert waiting["owner"] == until(fanfold)["run_id"]
    assert fanfold("approve", waiting["id"]).code == 0
    done = ended(process)
    assert (done.code, done.out) == (0, "done\n")
    assert (tmp_path / "f.txt").read_text() == "x"


def test_a_parked_run_goes_on_and_waits_when_it_is_asked_to(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    asked_for: list[str] = []

    def edits(asked: Json) -> Answer:
        asked_for.append(asked["messages"][-1]["role"])
        if asked["messages"][-1]["role"] == "tool":
            return Say("done")
        return Say(calls=(Call("write", '{"file_path": "f.txt", "content": "x"}', "call_7"),))

    configure(tmp_path, serve(edits))
    body = 'async def main(ctx, args):\n    return await ctx.agent("do it", label="edit")\n'
    ready_script(tmp_path, f'META = {{"name": "team", "description": "d"}}\n{body}')
    assert fanfold("workflow", "run", "team").code == 5
    run = runs_of(fanfold)[0]["run_id"]
    process = start("workflow", "resume", run, "--wait", cwd=tmp_path)
    assert process.stderr is not None
    while "fanfold approve" not in process.stderr.readline():
        pass
    [waiting] = json.loads(fanfold("inbox", "--json").out)["waiting"]
    assert fanfold("approve", waiting["id"]).code == 0
    assert ended(process).code == 0
    assert asked_for == ["user", "tool"]  # it went on from its recorded turn


def test_events_that_nobody_reads_stop_the_run(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(Model(held="ask")))
    ready_script(tmp_path)
    process = start("workflow", "run", "team", "--jsonl", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()  # before it has begun
    assert process.wait(timeout=20) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert runs_of(fanfold)[0]["status"] == "stopped"
