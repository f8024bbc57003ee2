"""Answers for agents of a workflow run that others hold, or that is forked."""

import asyncio
from pathlib import Path

import pytest

from fanfold.cli.waiting_here import parked_in_run
from fanfold.control.parked_runs import record_in_run
from fanfold.errors import AlreadyActiveError
from fanfold.protocols import HeldRun
from fanfold.session.inbox import Approval
from fanfold.stores.run_files import open_run_files
from fanfold.testing import ManualClock
from tests.cli.asking_team import Serve, ready_team
from tests.cli.workflow_project import Fanfold, only_run


class Another(ManualClock):
    """The time in which somebody else has the run, and lets go of it in the end or does not."""

    def __init__(self, held: HeldRun, *, lets_go: bool) -> None:
        super().__init__()
        self._held = held
        self._lets_go = lets_go

    async def sleep(self, seconds: float) -> None:
        self.advance(1.0)  # each try takes a moment by itself
        if self._lets_go:
            await self._held.release()


@pytest.fixture
def run(fanfold: Fanfold, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    ready_team(serve, tmp_path)
    fanfold("workflow", "run", "team")
    return only_run(fanfold)


@pytest.mark.parametrize("lets_go", [True, False])
def test_an_answer_waits_for_whoever_records_another_one_but_not_for_ever(
    run: str, tmp_path: Path, lets_go: bool
) -> None:
    [approval] = [each for each in parked_in_run(run) if each.kind == "approval"]

    async def answer() -> None:
        files = open_run_files(tmp_path)
        held = await files.hold(run)
        try:
            await record_in_run(approval, Approval(True), files, Another(held, lets_go=lets_go))
        finally:
            await held.release()

    if lets_go:
        asyncio.run(answer())
    else:
        with pytest.raises(AlreadyActiveError):
            asyncio.run(answer())
    assert len(parked_in_run(run)) == (1 if lets_go else 2)


def test_the_plan_of_a_fork_says_that_a_person_is_asked_anew(fanfold: Fanfold, run: str) -> None:
    fanfold("approve", "call_7")
    fanfold("answer", "call_9", "red")
    resume = ("workflow", "resume", run)
    assert fanfold(*resume, "--plan").out.count("it waited for a person, who has answered") == 2
    assert fanfold(*resume, "--fork", "--plan").out.count("and a fork asks anew") == 2
    assert fanfold(*resume, "--fork").code == 5
    assert fanfold(*resume).code == 0
