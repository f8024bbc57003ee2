"""Agents of a run that goes on and wait for a person: seen in `ps`, in `logs` and in the run's own lines."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.control import place
from tests.cli.asking_team import Asking, Serve, ready_team
from tests.cli.conftest import ended, start
from tests.cli.workflow_project import Fanfold

pytestmark = pytest.mark.skipif(not place.HAS_UNIX_SOCKETS, reason="no process can be reached from another one here")

HOST = """
import asyncio
from fanfold import Agent
from fanfold.control.server import ControlServer


async def team(ctx, args):
    return await ctx.agent("edit", label="edit:a")


async def main():
    async with await Agent.create_async() as agent, await agent.session_async(".", session_id="host") as session:
        session.workflows.register({"name": "own", "description": "d"}, team)
        server = ControlServer.of(session)
        if IS_SERVED:
            await server.start_async()
        print((await session.workflows.run_async("own", {})).value)


asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
def model(serve: Serve, tmp_path: Path) -> Asking:
    return ready_team(serve, tmp_path)


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        each.kill()
        each.communicate()


def until_waiting(fanfold: Fanfold, count: int) -> dict[str, Any]:
    """The run of `ps` in which so many agents wait."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for run in json.loads(fanfold("ps", "--json").out)["runs"]:
            if len(run.get("waiting", ())) == count:
                return dict(run)
        time.sleep(0.05)
    raise AssertionError(f"never did {count} wait")


def lines_until(process: "subprocess.Popen[str]", text: str) -> list[str]:
    """Of its stderr."""
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = process.stderr.readline()
        assert line, lines
        lines.append(line.rstrip("\n"))
    return lines


def test_who_waits_for_what_is_told_by_the_run_by_ps_and_to_who_follows_it(
    fanfold: Fanfold,
    model: Asking,
    tmp_path: Path,
    started: list["subprocess.Popen[str]"],
) -> None:
    process = start("workflow", "run", "team", "--wait", cwd=tmp_path)
    started.append(process)
    run = until_waiting(fanfold, 2)
    id = run["run_id"]
    edit, choose = sorted(run["waiting"], key=lambda each: str(each["kind"]))
    assert edit["id"].startswith(f"{id}/")
    shown = fanfold("ps").out
    assert ", 2 waiting  " in shown
    assert f"workflow run {id} · agent edit:a · its run waits in process {process.pid} · since 20" in shown
    for each in (edit, choose):
        assert f"  {each['commands'][0]}\n" in shown
    agents = json.loads(fanfold("runs", "show", id, "--json").out)["agents"]
    assert [each["status"] for each in agents] == ["waiting", "waiting"]
    follower = start("logs", "-f", id, cwd=tmp_path)
    started.append(follower)
    told = lines_until(process, choose["id"])
    assert told[-4:] == [
        'wait  edit:a  write {"file_path":"made.txt","content":"x"}',
        f"      {edit['commands'][0]} (or deny)",
        "wait  the colour  Which colour? One only. (1. red, 2. blue)",
        f"      {choose['commands'][0]}",
    ]
    assert fanfold("approve", edit["id"]).code == 0
    assert [each["id"] for each in until_waiting(fanfold, 1)["waiting"]] == [choose["id"]]
    assert fanfold("answer", choose["id"], "blue").code == 0
    done, followed = ended(process), ended(follower)
    assert (done.code, json.loads(done.out)[1]) == (0, "it came to blue")
    for text in told[-4:]:
        assert f"{text}\n" in followed.out
    assert "on    edit:a  goes on\n" in followed.out
    assert "on    the colour  goes on\n" in followed.out


def test_of_one_agent_the_log_tells_what_it_waits_for(
    fanfold: Fanfold,
    model: Asking,
    tmp_path: Path,
    started: list["subprocess.Popen[str]"],
) -> None:
    started.append(start("workflow", "run", "team", "--wait", cwd=tmp_path))
    run = until_waiting(fanfold, 2)
    lines_until(started[0], "fanfold answer")
    told = fanfold("logs", run["run_id"], "--agent", "edit:*").out
    assert 'wait  edit:a  write {"file_path":"made.txt","content":"x"}\n' in told
    assert "the colour" not in told


def test_a_quiet_run_still_says_what_it_waits_for(
    fanfold: Fanfold,
    model: Asking,
    tmp_path: Path,
    started: list["subprocess.Popen[str]"],
) -> None:
    process = start("workflow", "run", "team", "--wait", "--quiet", cwd=tmp_path)
    started.append(process)
    lines = lines_until(process, "fanfold answer")
    assert "waits for an approval:" in lines
    assert "waits for an answer:" in lines


@pytest.mark.parametrize("is_served", [True, False])
def test_ps_tells_who_waits_in_a_run_of_a_program(
    fanfold: Fanfold,
    model: Asking,
    tmp_path: Path,
    started: list["subprocess.Popen[str]"],
    is_served: bool,
) -> None:
    code = HOST.replace("IS_SERVED", str(is_served))
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    started.append(process)
    run = until_waiting(fanfold, 1)
    [edit] = run["waiting"]
    assert (edit["about"], edit["process"], edit["tool"]) == ("edit:a", process.pid, "write")
    step = edit["step"].removeprefix(f"{run['run_id']}-")
    answered = fanfold("approve", f"{run['run_id']}/{step}/call_7")  # whatever it is served as
    if is_served:
        assert answered.code == 0
        assert ended(process).out == "it came to Wrote 1 bytes to made.txt\n"
    else:
        assert answered.code == 8
        assert answered.err.endswith("hint: it runs just now, and can only be answered there\n")
