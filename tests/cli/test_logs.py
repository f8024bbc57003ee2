"""`fanfold logs`: the events of a run as lines, from any position, of one agent or of all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ServerThread, configure
from tests.cli.workflow_project import Fanfold, Model, only_run, ready_script
from tests.support.chat_server import Answer, Call, Json, Say

Serve = Callable[..., ServerThread]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
def run(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> str:
    """One that is over, with a failure."""
    configure(tmp_path, serve(Model(broken="about b")))
    ready_script(tmp_path)
    assert fanfold("workflow", "run", "team").code == 7
    return only_run(fanfold)


def told(fanfold: Fanfold, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in fanfold("logs", *arguments, "--jsonl").out.splitlines()]


def test_the_lines_are_those_that_the_run_showed(fanfold: Fanfold, run: str) -> None:
    logs = fanfold("logs", run)
    lines = logs.out.splitlines()
    assert logs.code == 0
    assert lines[:2] == [f"team: started as {run}", "== Ask"]
    assert any(line.startswith("[") and "FAIL  ask:b" in line for line in lines)
    assert lines[-1].startswith("team: completed with failures · 3 done")
    assert logs.err == f"{run} is completed with failures; resume with: fanfold workflow resume {run}\n"
    assert fanfold("logs", run, "-f").out == logs.out  # it is over, so nothing is waited for


def test_quiet_leaves_the_lines(fanfold: Fanfold, run: str) -> None:
    logs = fanfold("logs", run, "--quiet")
    assert (logs.out, logs.err) == (fanfold("logs", run).out, "")


def test_the_events_have_positions_from_which_to_go_on(fanfold: Fanfold, run: str) -> None:
    events = told(fanfold, run)
    assert [events[0]["type"], events[-1]["type"]] == ["async_launched", "task_notification"]
    positions = [each["position"] for each in events]
    assert positions == sorted(set(positions))
    for index in (0, 4, len(events) - 1):
        assert told(fanfold, run, "--since", str(positions[index])) == events[index + 1 :]
    assert told(fanfold, run, "--since", "1") == events  # no position of any event
    assert told(fanfold, run, "--since", "999999999") == events


def test_one_agent_is_told_of_in_more_detail(fanfold: Fanfold, run: str) -> None:
    logs = fanfold("logs", run, "--agent", "ask:b")
    lines = logs.out.splitlines()
    assert "start  ask:b" in lines
    assert any("FAIL  ask:b" in line for line in lines)
    assert not any("ask:a" in line or line.startswith(("==", "team:")) for line in lines)
    labels = {each["payload"].get("label") for each in told(fanfold, run, "--agent", "ask:*")}
    assert labels == {"ask:a", "ask:b", "ask:c"}
    assert {each["payload"]["where"] for each in told(fanfold, run, "--agent", "/0.2#0")} == {"/0.2#0"}
    nobody = fanfold("logs", run, "--agent", "nobody")
    assert (nobody.code, nobody.out) == (0, "")
    assert "has told nothing of this" in nobody.err


def test_the_tools_of_an_agent_are_told(fanfold: Fanfold, serve: Serve, tmp_path: Path) -> None:
    def looks(asked: Json) -> Answer:
        if asked["messages"][-1]["role"] == "tool":
            return Say("done")
        return Say(calls=(Call("ls", "{}"),))

    configure(tmp_path, serve(looks))
    body = 'async def main(ctx, args):\n    return await ctx.agent("look", label="one")\n'
    ready_script(tmp_path, f'META = {{"name": "team", "description": "d"}}\n{body}')
    assert fanfold("workflow", "run", "team").code == 0
    assert "tool   ls" in fanfold("logs", only_run(fanfold), "--agent", "one").out.splitlines()


def test_lines_that_cannot_be_read_are_passed_over(fanfold: Fanfold, run: str, tmp_path: Path) -> None:
    path = tmp_path / ".a3s" / "workflow-runs" / f"{run}.events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"{broken\n", b'{"version":1,"type":"new","payload":{}}\n', *lines[3:]]))
    logs = fanfold("logs", run)
    assert (logs.code, logs.out.splitlines()[-1][:9]) == (0, "team: com")
    assert "new" in [each["type"] for each in told(fanfold, run)]


def test_what_agents_wrote_cannot_steer_the_terminal_or_break_a_line(
    fanfold: Fanfold, serve: Serve, tmp_path: Path
) -> None:
    configure(tmp_path, serve(Model()))
    body = 'async def main(ctx, args):\n    ctx.log("a\\x1b[2Jb\\nc")\n'
    ready_script(tmp_path, f'META = {{"name": "team", "description": "d"}}\n{body}')
    assert fanfold("workflow", "run", "team").code == 0
    assert "log: a[2Jb c" in fanfold("logs", only_run(fanfold)).out.splitlines()
    assert "\x1b" not in fanfold("logs", only_run(fanfold), "--jsonl").out


def test_a_run_that_there_is_not_is_code_4(fanfold: Fanfold) -> None:
    assert fanfold("logs", "wf_a_0123456789abcdef").code == 4
    assert fanfold("logs", "wf_a_0123456789abcdef", "-f").code == 4


def test_a_run_without_events_says_so(fanfold: Fanfold, run: str, tmp_path: Path) -> None:
    (tmp_path / ".a3s" / "workflow-runs" / f"{run}.events.jsonl").unlink()
    logs = fanfold("logs", run)
    assert (logs.code, logs.out) == (0, "")
    assert f"{run} has told nothing of this; it is completed with failures" in logs.err
