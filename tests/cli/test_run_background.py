"""`fanfold run` does not leave while a workflow that the model started goes on, and prints what is said of its end."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ended, ServerThread, configure, ended, start
from tests.cli.workflow_project import ready_script, runs_of
from tests.support.chat_server import Answer, Call, Http, Json, Say

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]


def director(asked: Json) -> Answer:
    newest = asked["messages"][-1]
    text = str(newest["content"])
    if newest["role"] == "tool":
        return Say("It has begun.")
    if text == "go":
        return Say(calls=(Call("Workflow", '{"name": "team", "args": {"areas": ["x"]}}'),))
    if text.startswith("<task_notification>"):
        return Say("They said: " + ("SUM" if "SUM" in text else "nothing"))
    return Say(text.upper())


def test_the_answer_is_what_the_model_says_when_the_workflow_has_ended(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(director))
    ready_script(tmp_path)
    done = fanfold("run", "go", "--session", "s1")
    assert (done.code, done.out) == (0, "They said: SUM\n")
    assert done.err.endswith("session s1: 60 tokens, 1 tool call\n")  # of both runs
    later = fanfold("run", "and now?", "--session", "s1")
    assert (later.code, later.out) == (0, "AND NOW?\n")


def test_the_events_of_both_runs_are_told(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve(director))
    ready_script(tmp_path)
    done = fanfold("run", "go", "--jsonl")
    types = [json.loads(line)["type"] for line in done.out.splitlines()]
    assert types.count("agent_end") == 2
    assert types[-1] == "agent_end"


def test_a_stop_meanwhile_says_that_the_workflow_is_stopped_too(
    fanfold: Fanfold, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    is_held = [True]

    def held(asked: Json) -> Answer:
        text = str(asked["messages"][-1]["content"])
        return Http(then="hang") if is_held[0] and text.startswith("ask about") else director(asked)

    configure(tmp_path, serve(held))
    ready_script(tmp_path)
    process = start("run", "go", "--session", "s1", cwd=tmp_path)
    assert process.stderr is not None
    while "waiting for what goes on" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    done = ended(process)
    assert (done.code, done.out) == (130, "")
    assert "is stopped too; of workflows see: fanfold runs list\n" in done.err
    assert runs_of(fanfold)[0]["status"] == "stopped"
    is_held[0] = False
    assert fanfold("workflow", "resume", runs_of(fanfold)[0]["run_id"]).code == 0
