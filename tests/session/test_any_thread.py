"""What a session tells and takes without awaiting is for any thread, while its loop is at work in another."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, PermissionPolicy, Session
from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.messages import ModelRequest
from fanfold.options import AutoDelegation
from fanfold.session.builtin_commands import builtin_commands
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support.tools import RecordingTool

ROUNDS = 12


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def asked(request: ModelRequest) -> Reply | str:
    return calls(("send", {})) if request.transcript.length == 1 else "done"


def fan_out(session: Session, number: int) -> None:
    ids = (f"t{number}-{index}" for index in range(48))
    specs = [{"task_id": each, "agent": "helper", "description": "", "prompt": "go"} for each in ids]
    assert all(outcome.success for outcome in session.parallel(specs))


def approve(session: Session) -> None:
    for pending in session.pending_confirmations():
        session.confirm_tool_use(pending.tool_id, True)


def test_everything_that_is_told_is_told_while_the_loop_changes_it(tmp_path: Path) -> None:
    helper = AgentDefinition(name="helper", description="", tools=("*",))
    faults: list[BaseException] = []
    is_over = threading.Event()

    def again_and_again(work: Callable[[int], Any]) -> None:
        number = 0
        try:
            while not is_over.is_set():
                work(number)
                number += 1
        except BaseException as error:  # noqa: BLE001  told below
            faults.append(error)

    with Agent.create(
        models={"scripted/model": ScriptedModel(asked)},
        tools={"send": RecordingTool("send", is_read_only=False)},
        agents={"helper": helper},
    ) as agent:
        options: dict[str, Any] = {
            "permission_policy": PermissionPolicy(ask=("send",)),
            "max_parallel_tasks": 48,
            "auto_delegation": AutoDelegation(enabled=True),
        }
        with agent.session(tmp_path, **options) as session:
            beside: list[Callable[[int], Any]] = [
                lambda _: approve(session),
                lambda _: (session.subagent_tasks(), session.pending_subagent_tasks()),
                lambda number: session.register_worker_agent({"name": f"w{number % 1000}"}),
                lambda _: (session.tool_definitions(), session.cancel_step("none"), agent.list_sessions()),
            ]
            threads = [threading.Thread(target=again_and_again, args=(work,)) for work in beside]
            for thread in threads:
                thread.start()
            try:
                for number in range(ROUNDS):
                    fan_out(session, number)
            finally:
                is_over.set()
                for thread in threads:
                    thread.join()
    assert faults == []


def test_no_command_is_lost_that_two_threads_register() -> None:
    registry = builtin_commands()
    known = len(registry.list())

    def register(prefix: str) -> None:
        for number in range(400):
            registry.register(f"{prefix}{number}", "", lambda args, context: "")

    threads = [threading.Thread(target=register, args=(prefix,)) for prefix in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.list()) == known + 1600
