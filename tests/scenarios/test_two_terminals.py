"""Two terminals: a command that waits in one process, and people who answer, steer and cancel it from others."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.control import place
from tests.cli.conftest import Ended, ServerThread, configure, ended, start
from tests.support.chat_server import Call, Json, Say, Script

pytestmark = [
    pytest.mark.skipif(not place.HAS_UNIX_SOCKETS, reason="no process can be reached from another one here"),
    pytest.mark.timeout(90),
]

WRITE = Say(calls=(Call("write", '{"file_path": "made", "content": "x"}', "call_7"),))
GARBAGE = (b"\x00\xff" * 5000 + b"\n", b'{"v":1,"op":"confirm"}\n', b"[" * 100_000, b"x" * 2_000_000)


class Terminals:
    """Commands in one workspace, each a process of its own."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        self.started.append(start(*arguments, cwd=self.workspace))
        return self.started[-1]

    def run(self, *arguments: str) -> Ended:
        return ended(self.start(*arguments))

    def inbox(self) -> list[Json]:
        found: list[Json] = json.loads(self.run("inbox", "--json").out)["waiting"]
        return found

    def until_waiting(self, count: int = 1, source: str = "live") -> list[Json]:
        """What waits, as soon as there is so much of it."""
        while len(found := [each for each in self.inbox() if each["source"] == source]) < count:
            time.sleep(0.05)
        return found

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    opened = Terminals(tmp_path)
    yield opened
    opened.close()
    for path, process in place.sockets_of(tmp_path):
        place.remove_if_dead(path, process)
    assert place.sockets_of(tmp_path) == []


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Script], ServerThread]]:
    """A model server that the workspace is configured for."""
    started: list[ServerThread] = []

    def begin(script: Script) -> ServerThread:
        started.append(ServerThread(script))
        configure(tmp_path, started[-1])
        return started[-1]

    yield begin
    for each in started:
        each.close()


Serve = Callable[[Script], ServerThread]


# ---- one run ---------------------------------------------------------------------------------------------------------


def test_a_run_that_waits_is_approved_from_another_process(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE, Say("Made it.")])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    [waiting] = terminals.until_waiting()
    assert (waiting["id"], waiting["process"]) == ("s1/call_7", run.pid)
    assert not (terminals.workspace / "made").exists()
    approved = terminals.run("approve", "call_7")
    assert approved == Ended(0, "", f"approved s1/call_7; its run goes on in process {run.pid}\n")
    done = ended(run)
    assert (done.code, done.out) == (0, "Made it.\n")
    assert "waits for an approval:\n" in done.err
    assert "  fanfold approve s1/call_7\n" in done.err
    assert (terminals.workspace / "made").read_text() == "x"


HOST = """
import asyncio, sys
from fanfold import Agent
from fanfold.control.server import ControlServer

async def main():
    async with await Agent.create_async() as agent, await agent.session_async(".", session_id="s1") as session:
        async with ControlServer.of(session):
            print("open", flush=True)
            if sys.argv[1:]:
                print([each.success for each in await session.parallel_async(
                    [{"task_id": "docs", "agent": "general", "prompt": sys.argv[1]}]
                )], flush=True)
            await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


def hosts(workspace: Path, count: int, *prompt: str) -> "list[subprocess.Popen[str]]":
    """Programs that have the session open and serve it, and do nothing, or run one step of that prompt."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, *prompt],
            cwd=workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "open\n"
    return started


def test_what_is_parked_is_one_thing_however_many_processes_have_its_session_open(
    terminals: Terminals, serve: Serve
) -> None:
    serve([WRITE])
    assert terminals.run("run", "Make it.", "--session", "s1").code == 5
    terminals.started += hosts(terminals.workspace, 2)
    assert [each["id"] for each in terminals.inbox()] == ["s1/call_7"]
    assert terminals.run("approve", "s1/call_7").code == 0
    assert terminals.inbox() == []  # nor does the one that has not read the answer tell of it
    assert terminals.run("approve", "s1/call_7").code == 4


def test_what_is_parked_later_is_found_though_somebody_has_its_session_open(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE])
    terminals.started += hosts(terminals.workspace, 1)
    assert terminals.run("run", "Make it.", "--session", "s1").code == 5
    assert [each["id"] for each in terminals.inbox()] == ["s1/call_7"]
    assert terminals.run("approve", "s1/call_7").code == 0


def test_equal_ids_of_two_processes_are_told_apart(terminals: Terminals, serve: Serve) -> None:
    def script(asked: Json) -> Say:
        return Say("Made it.") if asked["messages"][-1]["role"] == "tool" else WRITE

    serve(script)
    both = hosts(terminals.workspace, 2, "Make it.")
    terminals.started += both
    ids = {each["id"] for each in terminals.until_waiting(2)}
    assert ids == {f"s1/docs/call_7@{each.pid}" for each in both}
    assert terminals.run("approve", "s1/docs/call_7").code == 2
    for each in both:  # the second one is alone, and has its plain id by then
        assert terminals.run("approve", f"call_7@{each.pid}").code == 0
        assert each.stdout is not None
        assert each.stdout.readline() == "[True]\n"


def test_the_process_that_runs_a_session_is_asked_and_not_one_that_has_it_open(
    terminals: Terminals, serve: Serve
) -> None:
    serve([WRITE, Say("Made it.")])
    before = hosts(terminals.workspace, 1)
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    terminals.started += before
    [waiting] = terminals.until_waiting()
    assert waiting["process"] == run.pid
    assert terminals.run("steer", "s1", "Only this.").code == 0
    assert terminals.run("approve", "s1/call_7").code == 0
    assert ended(run).code == 0


def test_a_run_that_waits_is_denied_from_another_process(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait", "--jsonl")
    terminals.until_waiting()
    assert terminals.run("deny", "s1/call_7", "--reason", "not today").code == 0
    done = ended(run)
    assert done.code == 1
    assert json.loads(done.err)["message"] == "a tool call was denied"
    [received] = [
        each for line in done.out.splitlines() if (each := json.loads(line))["type"] == "confirmation_received"
    ]
    assert (received["payload"]["approved"], received["payload"]["reason"]) == (False, "not today")
    assert not (terminals.workspace / "made").exists()


def test_a_question_is_answered_from_another_process(terminals: Terminals, serve: Serve) -> None:
    question = Call("ask_user", '{"question": "Which?", "options": ["red", "blue"]}', "call_9")
    server = serve([Say(calls=(question,)), Say("Blue, then.")])
    run = terminals.start("run", "Choose.", "--session", "s1", "--wait")
    [waiting] = terminals.until_waiting()
    assert (waiting["question"], waiting["options"]) == ("Which?", ["red", "blue"])
    assert terminals.run("answer", "call_9", "green").code == 2
    assert terminals.run("answer", "call_9", "2").code == 0
    assert ended(run).out == "Blue, then.\n"
    assert server.server.requests[-1].json["messages"][-1]["content"] == "blue"


def test_a_run_is_steered_from_another_process_and_told_once(terminals: Terminals, serve: Serve) -> None:
    server = serve([WRITE, Say("Quick it is.")])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    terminals.until_waiting()
    for _ in range(2):
        steered = json.loads(terminals.run("steer", "s1", "Be quick.", "--request-id", "q1", "--json").out)
        assert (steered["receipt"]["request_id"], steered["receipt"]["state"]) == ("q1", "accepted")
    conflict = terminals.run("steer", "s1", "Be slow.", "--request-id", "q1", "--json")
    assert (conflict.code, json.loads(conflict.err)["code"]) == (2, "DUPLICATE_REQUEST")
    assert terminals.run("approve", "call_7").code == 0
    assert ended(run).out == "Quick it is.\n"
    texts = [message["content"] for message in server.server.requests[-1].json["messages"]]
    assert texts.count("Be quick.") == 1


def test_a_run_is_cancelled_from_another_process_and_its_session_goes_on(terminals: Terminals, serve: Serve) -> None:
    server = serve([Say("too late", delay_seconds=30), Say("Here.")])
    run = terminals.start("run", "Hello.", "--session", "s1")
    server.wait_for_requests(1)
    cancelled = json.loads(terminals.run("cancel", "s1", "--json").out)
    assert cancelled["receipt"]["operation"] == "interrupt"
    done = ended(run)
    assert done.code == 1
    assert "hint: somebody has cancelled it; the session is kept: fanfold run --session s1 PROMPT\n" in done.err
    assert terminals.run("cancel", "s1").code == 4
    assert terminals.run("run", "Again.", "--session", "s1").out == "Here.\n"


def test_a_resumed_run_can_wait_too(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE, Say("Made it.")])
    assert terminals.run("run", "Make it.", "--session", "s1").code == 5
    run = terminals.start("run", "--session", "s1", "--resume", "--wait")
    terminals.until_waiting()
    assert terminals.run("approve", "call_7").code == 0
    assert ended(run).out == "Made it.\n"


# ---- fan-outs --------------------------------------------------------------------------------------------------------


def write_first(asked: Json) -> Say:
    newest = asked["messages"][-1]
    args = json.dumps({"file_path": newest["content"], "content": "x"})
    return Say(calls=(Call("write", args),)) if newest["role"] == "user" else Say("done")


def test_the_steps_of_a_workflow_are_answered_and_cancelled_one_by_one(terminals: Terminals, serve: Serve) -> None:
    serve(write_first)
    steps: list[dict[str, Any]] = [{"task_id": each, "agent": "general", "prompt": f"made-{each}"} for each in "abcd"]
    (terminals.workspace / "specs.json").write_text(json.dumps(steps))
    run = terminals.start("parallel", "specs.json", "--workflow", "nightly", "--wait", "--json")
    waiting = terminals.until_waiting(4)
    assert sorted(each["id"] for each in waiting) == [f"nightly/{each}/call_1" for each in "abcd"]
    assert terminals.run("approve", "a/call_1").code == 0
    assert terminals.run("deny", "b/call_1").code == 0
    assert terminals.run("cancel", "nightly/c").err == "the step 'c' is being cancelled\n"
    unknown = terminals.run("cancel", "nightly/z")
    assert (unknown.code, "no step 'z' runs" in unknown.err) == (4, True)
    while [each["id"] for each in terminals.inbox()] != ["nightly/d/call_1"]:
        time.sleep(0.05)
    assert terminals.run("cancel", "nightly").code == 0
    done = ended(run)
    outcomes = json.loads(done.out)["outcomes"]
    assert [each["success"] for each in outcomes] == [True, False, False, False]
    assert [each.get("error_code") for each in outcomes[1:]] == ["NO_ANSWER", "RUN_CANCELLED", "RUN_CANCELLED"]
    assert (done.code, sorted(path.name for path in terminals.workspace.glob("made-*"))) == (7, ["made-a"])


def test_a_map_waits_for_its_items_and_says_on_stderr_what_for(terminals: Terminals, serve: Serve) -> None:
    serve(write_first)
    (terminals.workspace / "items.jsonl").write_text('{"name": "made-a"}\n')
    run = terminals.start("map", "items.jsonl", "--agent", "general", "--prompt", "{name}", "--wait")
    [waiting] = terminals.until_waiting()
    assert terminals.run("approve", waiting["id"]).code == 0
    done = ended(run)
    assert done.code == 0
    assert 'waits for an approval:\n  write {"file_path":"made-a","content":"x"}\n' in done.err
    assert f"  fanfold approve {waiting['id']}\n" in done.err
    assert "nobody can be asked" not in done.err


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_killed_run_is_parked_and_an_approval_is_recorded_in_its_log(terminals: Terminals, serve: Serve) -> None:
    server = serve([WRITE, Say("Made it.")])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    terminals.until_waiting()
    assert len(place.sockets_of(terminals.workspace)) == 1
    run.send_signal(signal.SIGKILL)
    run.wait()
    [waiting] = terminals.inbox()
    assert (waiting["id"], waiting["source"]) == ("s1/call_7", "session")
    assert place.sockets_of(terminals.workspace) == []
    approved = terminals.run("approve", "call_7")
    assert approved.err == "approved s1/call_7; go on with: fanfold run --session s1 --resume\n"
    assert terminals.run("run", "--session", "s1", "--resume").out == "Made it.\n"
    assert len(server.server.requests) == 2


def test_a_killed_workflow_is_parked_and_goes_on_from_its_answers(terminals: Terminals, serve: Serve) -> None:
    server = serve(write_first)
    steps = [{"task_id": each, "agent": "general", "prompt": f"made-{each}"} for each in "ab"]
    (terminals.workspace / "specs.json").write_text(json.dumps(steps))
    command = ("parallel", "specs.json", "--workflow", "nightly")
    run = terminals.start(*command, "--wait")
    terminals.until_waiting(2)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert [each["id"] for each in terminals.until_waiting(2, "workflow")] == ["nightly/a/call_1", "nightly/b/call_1"]
    for each in "ab":
        assert terminals.run("approve", f"{each}/call_1").code == 0
    assert terminals.run(*command).code == 0
    assert len(server.server.requests) == 4
    assert sorted(path.name for path in terminals.workspace.glob("made-*")) == ["made-a", "made-b"]


def test_a_run_that_is_stopped_by_a_signal_leaves_what_waits_to_be_answered(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE, Say("Made it.")])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    terminals.until_waiting()
    run.send_signal(signal.SIGTERM)
    assert ended(run).code == 143
    assert place.sockets_of(terminals.workspace) == []
    assert terminals.run("approve", "call_7").code == 0
    assert terminals.run("run", "--session", "s1", "--resume").out == "Made it.\n"


def test_of_many_who_approve_at_once_one_wins_and_the_others_are_told(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE, Say("Made it.", delay_seconds=2)])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    terminals.until_waiting()
    rivals = [ended(each) for each in [terminals.start("approve", "s1/call_7") for _ in range(4)]]
    assert sorted(each.code for each in rivals) == [0, 4, 4, 4]
    told = "fanfold: 's1/call_7' does not wait any more: it was approved"
    assert [each.err.startswith(told) for each in rivals if each.code] == [True] * 3
    done = ended(run)
    assert (done.code, done.err.count("· write")) == (0, 1)


def test_a_garbage_client_cannot_hurt_the_run(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE, Say("Made it.")])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    terminals.until_waiting()
    [(path, process)] = place.sockets_of(terminals.workspace)
    assert process == run.pid
    peers: list[socket.socket] = []
    for garbage in GARBAGE * 5:
        peers.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        peers[-1].settimeout(5)
        peers[-1].connect(str(path))
        try:
            peers[-1].sendall(garbage)
        except OSError:
            pass  # it was hung up on in the middle
    assert terminals.run("approve", "call_7").code == 0
    done = ended(run)
    assert (done.code, done.out) == (0, "Made it.\n")
    assert "Traceback" not in done.err
    for peer in peers:
        peer.close()


def test_a_process_that_hangs_is_a_note_and_its_session_is_busy(terminals: Terminals, serve: Serve) -> None:
    serve([WRITE, Say("Made it.")])
    run = terminals.start("run", "Make it.", "--session", "s1", "--wait")
    terminals.until_waiting()
    os.kill(run.pid, signal.SIGSTOP)
    approved = terminals.run("approve", "call_7")
    assert approved.code == 8
    assert f"process {run.pid}" in approved.err
    os.kill(run.pid, signal.SIGCONT)
    assert terminals.run("approve", "call_7").code == 0
    assert ended(run).out == "Made it.\n"
