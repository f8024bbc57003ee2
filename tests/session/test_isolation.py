"""Laws of a step with `isolation="worktree"`: it works apart, and what it changed is a branch, however it ends."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fanfold import (
    Agent,
    AgentDefinition,
    FanOutControl,
    HostEnv,
    MemorySessionStore,
    PermissionPolicy,
    Session,
    StepOutcome,
    execute_steps_parallel,
)
from fanfold.contracts.governance import HookMatcher
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.contracts.steps import AgentStepSpec, Worktree
from fanfold.delegation.tracker import Tracker
from fanfold.errors import InvalidSpecError, ProviderError
from fanfold.governance.budget import BudgetGate
from fanfold.governance.hooks import Hooks
from fanfold.kernel.decide import Limits
from fanfold.orchestration.limiter import Limiter
from fanfold.protocols import SessionStore, StepFolderEnd, Tool
from fanfold.session.child import TaskExecutor
from fanfold.session.inbox import Inbox
from fanfold.session.isolation import ISOLATED_PROMPT
from fanfold.session.setup import AgentSetup
from fanfold.stores.memory import MemoryFactLog
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support import isolated_run
from tests.support.host_executor import HostExecutor, done
from tests.support.repositories import branches, commit, git, new_repository, shown
from tests.support.running import HeldTool
from tests.support.tools import RecordingTool

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="worktrees need a POSIX system"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]
FREE = PermissionPolicy(default_decision="allow")
ROLE = AgentDefinition(name="worker", description="d", tools=("write", "read", "bash", "mine"), permissions=FREE)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    new_repository(tmp_path / "repo")
    return tmp_path / "repo"


def step(task_id: str = "t", **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "agent": "worker", "prompt": f"do {task_id}", "isolation": "worktree", **more}


def rounds(request: ModelRequest) -> int:
    return sum(isinstance(message, ToolMessage) for message in request.transcript)


def results(request: ModelRequest) -> list[str]:
    return [message.output for message in request.transcript if isinstance(message, ToolMessage)]


def write(name: str, text: str = "new\n") -> tuple[str, dict[str, Any]]:
    return "write", {"file_path": name, "content": text}


def doing(*rounds_of_calls: Any, answer: Any = "done") -> Callable[[ModelRequest], Any]:
    """A model that makes those calls, one a round, and then answers."""

    def reply(request: ModelRequest) -> Any:
        made = rounds(request)
        return calls(rounds_of_calls[made]) if made < len(rounds_of_calls) else answer

    return reply


async def steps(
    workspace: Path,
    script: Any,
    *specs: dict[str, Any],
    tools: Mapping[str, Tool] | None = None,
    prepare: Callable[[Session], Any] = lambda session: None,
    call: Mapping[str, Any] | None = None,
    store: SessionStore | None = None,
    **options: Any,
) -> tuple[list[StepOutcome], ScriptedModel]:
    """`specs` in a session on `workspace`; with a `store` as the workflow `w`."""
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    options.setdefault("permission_policy", FREE)
    async with await Agent.create_async(models={"a/b": model}, tools=tools, agents={"worker": ROLE}) as agent:
        session = await agent.session_async(workspace, session_store=store, approvals="refuse", **options)
        prepare(session)
        if store is None:
            outcomes = await session.parallel_async(specs, **(call or {}))
        else:
            outcomes = await session.parallel_resumable_async(specs, "w", **(call or {}))
        return outcomes, model


def run(*args: Any, **more: Any) -> tuple[list[StepOutcome], ScriptedModel]:
    return asyncio.run(steps(*args, **more))


def yard(root: Path) -> set[str]:
    folder = root / ".a3s/worktrees"
    return {path.name for path in folder.iterdir() if path.is_dir()} if folder.exists() else set()


# ---- what comes of it -----------------------------------------------------------------------------------------------


def test_what_a_step_changes_is_in_its_branch_and_not_in_the_workspace(repo: Path) -> None:
    spec = step(description="Add a file")
    [outcome], model = run(
        repo, doing(write("new.txt"), ("bash", {"command": "pwd"})), spec, allow_unsandboxed_bash=True
    )
    assert (outcome.success, outcome.output) == (True, "done")
    assert outcome.worktree is not None
    assert outcome.worktree.branch == "fanfold/t"
    assert outcome.worktree.files == ("new.txt",)
    assert "+new\n" in outcome.worktree.diff
    assert shown(repo, "fanfold/t:new.txt") == "new"
    assert git(repo, "log", "-1", "--format=%B", "fanfold/t") == "Add a file\n\nStep: t"
    assert git(repo, "status", "--porcelain") == ""
    assert results(model.requests[-1])[1].strip() == str(repo / ".a3s/worktrees/t")
    assert yard(repo) == set()


def test_a_step_that_changes_nothing_leaves_nothing(repo: Path) -> None:
    [outcome], _ = run(repo, doing(("read", {"file_path": "a.txt"})), step())
    assert outcome.worktree == Worktree(base=git(repo, "rev-parse", "HEAD"))
    assert branches(repo) == {}


def test_steps_at_once_each_have_their_own(repo: Path) -> None:
    specs = [step(f"t{number}") for number in range(8)]

    def script(request: ModelRequest) -> Any:
        return doing(write("a.txt", request.session_id), ("read", {"file_path": "a.txt"}))(request)

    outcomes, model = run(repo, script, *specs)
    assert [outcome.worktree.files for outcome in outcomes if outcome.worktree] == [("a.txt",)] * 8
    for number, outcome in enumerate(outcomes):
        assert shown(repo, f"{outcome.worktree.branch}:a.txt") == f"task-run-t{number}"  # type: ignore[union-attr]
    assert all(f"\t{request.session_id}" in results(request)[1] for request in model.requests if rounds(request) == 2)


def test_other_steps_work_in_the_workspace_as_ever(repo: Path) -> None:
    [apart, here], model = run(repo, doing(write("new.txt")), step("apart"), step("here", isolation=None))
    assert here.worktree is None
    assert "worktree" not in here.to_dict()
    assert (repo / "new.txt").exists()
    assert apart.worktree is not None
    system = {request.session_id: request.system for request in model.requests}
    assert system["task-run-apart"] == f"{system['task-run-here']}\n\n{ISOLATED_PROMPT}"


@pytest.mark.parametrize("kind", ["none", "empty"])
def test_where_it_cannot_be_the_step_has_failed_and_nothing_ran(tmp_path: Path, kind: str) -> None:
    if kind == "empty":
        git(tmp_path, "init", "--quiet")
    outcomes, model = run(tmp_path, doing(write("new.txt")), step(retries=1), step("here", isolation=None))
    assert [outcome.success for outcome in outcomes] == [False, True]
    why = "Not a git repository" if kind == "none" else "the repository has no commit yet"
    assert outcomes[0].output.startswith("Task failed: isolation='worktree': it cannot have a worktree of its own: ")
    assert why in outcomes[0].output
    assert outcomes[0].error_code == "ISOLATION"
    assert outcomes[0].usage is not None
    assert outcomes[0].usage.total_tokens == 0
    assert {request.session_id for request in model.requests} == {"task-run-here"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [(ProviderError("down", kind="server", retryable=False), "LLM_ERROR"), (Reply(text=""), "NO_ANSWER")],
)
def test_what_a_step_that_failed_had_done_is_in_its_branch(repo: Path, answer: Any, code: str) -> None:
    [outcome], _ = run(repo, doing(write("new.txt"), answer=answer), step())
    assert (outcome.success, outcome.error_code) == (False, code)
    assert outcome.worktree is not None
    assert shown(repo, f"{outcome.worktree.branch}:new.txt") == "new"
    assert git(repo, "log", "-1", "--format=%B", "fanfold/t") == f"t\n\nStep: t\nIt did not succeed: {code}."


def test_what_a_step_that_was_cancelled_had_done_is_in_its_branch(repo: Path) -> None:
    control, held = FanOutControl(), HeldTool("mine")

    async def main() -> StepOutcome:
        script = doing(write("new.txt"), ("mine", {}))
        work = asyncio.create_task(steps(repo, script, step(), tools={"mine": held}, call={"control": control}))
        await held.started.get()
        control.cancel_step("t")
        [outcome], _ = await work
        return outcome

    outcome = asyncio.run(main())
    assert outcome.error_code == "RUN_CANCELLED"
    assert outcome.worktree is not None
    assert outcome.worktree.files == ("new.txt",)
    assert outcome.usage is not None
    assert (outcome.usage.total_tokens, outcome.usage.is_estimated) == (30, False)
    assert shown(repo, "fanfold/t:new.txt") == "new"
    assert yard(repo) == set()


def test_each_attempt_that_begins_anew_has_its_own(repo: Path) -> None:
    seen: list[bool] = []

    def script(request: ModelRequest) -> Any:
        if rounds(request) == 0:
            seen.append(True)
        return doing(write("new.txt", f"{len(seen)}"), answer="" if len(seen) == 1 else "done")(request)

    [outcome], _ = run(repo, script, step(retries=1))
    assert outcome.worktree is not None
    assert outcome.worktree.branch == "fanfold/t-2"
    assert (shown(repo, "fanfold/t:new.txt"), shown(repo, "fanfold/t-2:new.txt")) == ("1", "2")


class Folders:
    """Gives a folder that it does not keep well."""

    root = "/folder"
    is_taken_up = False
    begun = 0

    async def begin(self, task_id: str, *, key: str, goes_on: bool, now_ms: int) -> "Folders":
        self.begun += 1
        return self

    def bound(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        return tools

    def real_path(self, path: str) -> str:
        return path

    async def end(self, *, message: str, now_ms: int) -> StepFolderEnd:
        return StepFolderEnd(worktree=Worktree(base="0"), fault="the disk is full")


def executor(folders: Folders | None, script: Callable[[ModelRequest], Any] | None = None) -> TaskExecutor:
    setup = AgentSetup(
        model=ScriptedModel(script or doing()),
        model_id="m",
        system="",
        tools={},
        specs=(),
        policies=(FREE,),
        real_path=str,
        limits=Limits.of(None),
    )
    env = HostEnv()
    return TaskExecutor(
        agents={"worker": ROLE},
        setup_for=lambda agent, spec: setup,
        new_log=MemoryFactLog,
        limiter=Limiter(1),
        inbox=Inbox(),
        env=env,
        hooks=Hooks(),
        budget=BudgetGate(),
        tracker=Tracker(SessionRetentionLimits(), env.clock),
        folders=folders,
    )


@pytest.mark.parametrize("answer", ["done", ""])
def test_a_step_of_which_not_all_is_kept_has_failed(answer: str) -> None:
    [outcome] = asyncio.run(execute_steps_parallel(executor(Folders(), doing(answer=answer)), [step()]))
    assert not outcome.success
    assert outcome.error_code == ("ISOLATION" if answer else "NO_ANSWER")
    assert outcome.output.startswith(answer)
    assert outcome.output.endswith("\n\n[the disk is full]")
    assert outcome.worktree == Worktree(base="0")


async def never(request: ModelRequest) -> Any:
    await asyncio.Event().wait()


def test_a_step_that_took_too_long_tells_what_it_left() -> None:
    [outcome] = asyncio.run(execute_steps_parallel(executor(Folders(), never), [step(timeout_ms=50)]))
    assert (outcome.error_code, outcome.worktree) == ("TIMEOUT", Worktree(base="0"))


class SlowFolders(Folders):
    """Waits at its begin, or, when it has begun, at its end."""

    def __init__(self, at: str) -> None:
        self._at = at
        self.is_there = asyncio.Event()
        self.is_over = asyncio.Event()

    async def begin(self, task_id: str, *, key: str, goes_on: bool, now_ms: int) -> Folders:
        if self._at == "begin":
            self.is_there.set()
            await self.is_over.wait()
        return self

    async def end(self, *, message: str, now_ms: int) -> StepFolderEnd:
        self.is_there.set()
        while not self.is_over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.is_over.wait()
        return StepFolderEnd(worktree=Worktree(base="1"))


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_cancellation_at_its_begin_or_end_is_one(at: str) -> None:
    async def main() -> StepOutcome:
        folders, control = SlowFolders(at), FanOutControl()
        work = asyncio.create_task(execute_steps_parallel(executor(folders), [step()], control=control))
        await folders.is_there.wait()
        control.cancel()
        await asyncio.sleep(0)
        if at == "end":
            folders.is_over.set()
        [outcome] = await work
        return outcome

    outcome = asyncio.run(main())
    assert (outcome.success, outcome.error_code) == (False, "RUN_CANCELLED")
    assert outcome.worktree == (Worktree(base="1") if at == "end" else None)
    assert outcome.usage is not None
    assert outcome.usage.total_tokens == (15 if at == "end" else 0)


def test_only_a_step_with_isolation_asks_for_a_folder() -> None:
    folders = Folders()
    [outcome] = asyncio.run(execute_steps_parallel(executor(folders), [step(isolation=None)]))
    assert (outcome.success, folders.begun) == (True, 0)


def test_without_folders_it_is_said_why() -> None:
    [outcome] = asyncio.run(execute_steps_parallel(executor(None), [step()]))
    assert (outcome.error_code, "POSIX" in outcome.output) == ("ISOLATION", True)


# ---- what it may ----------------------------------------------------------------------------------------------------


def test_rules_about_paths_hold_in_it_as_in_the_workspace(repo: Path) -> None:
    commit(repo, {"secret/key": "k\n"})
    folder = repo / ".a3s/worktrees/t"
    policy = PermissionPolicy(default_decision="allow", deny=("write(secret/**)", "read(secret/**)"))
    paths = ("secret/new", f"{folder}/secret/new", "x/../secret/new", "link/new")
    link = ("bash", {"command": "ln -s secret link"})
    _, model = run(
        repo,
        doing(link, *map(write, paths), ("read", {"file_path": f"{folder}/secret/key"}), write(f"{folder}/fine")),
        step(),
        permission_policy=policy,
        allow_unsandboxed_bash=True,
    )
    told = results(model.requests[-1])[1:]
    assert all("Permission denied" in each for each in told[:5])
    assert "Permission denied" not in told[5]
    assert set(git(repo, "ls-tree", "-r", "--name-only", "fanfold/t").split()) == {
        ".gitignore", "a.txt", "secret/key", "link", "fine",
    }  # fmt: skip


def test_hooks_about_paths_hear_of_it_as_of_the_workspace(repo: Path) -> None:
    commit(repo, {"secret/key": "k\n"})
    folder = repo / ".a3s/worktrees/t"
    heard: list[Any] = []

    def prepare(session: Session) -> None:
        def hook(payload: dict[str, Any]) -> dict[str, Any]:
            heard.append((payload["args"]["file_path"], payload["working_directory"]))
            return {"action": "block", "reason": "no"}

        session.register_hook("h", "pre_tool_use", HookMatcher(path_pattern="secret/**"), handler=hook)

    paths = (f"{folder}/secret/new", "link/new", "other")
    link = ("bash", {"command": "ln -s secret link"})
    run(repo, doing(link, *map(write, paths)), step(), prepare=prepare, allow_unsandboxed_bash=True)
    assert heard == [(path, str(folder)) for path in paths[:2]]
    assert "other" in git(repo, "ls-tree", "-r", "--name-only", "fanfold/t").split()


def test_no_path_leads_from_it_into_the_workspace(repo: Path) -> None:
    _, model = run(
        repo, doing(write(str(repo / "a.txt")), write("../../../a.txt"), ("read", {"file_path": "/etc/passwd"})), step()
    )
    assert all("escapes workspace" in each for each in results(model.requests[-1]))
    assert (repo / "a.txt").read_text() == "one\n"


def test_tools_of_the_host_are_told_where_it_works(repo: Path) -> None:
    mine = RecordingTool("mine")
    run(repo, doing(("mine", {})), step(), step("here", isolation=None), tools={"mine": mine})
    places = {scope.session_id: scope.workspace for _, scope in mine.calls}
    assert places == {"task-run-t": str(repo / ".a3s/worktrees/t"), "task-run-here": str(repo)}


def test_it_is_asked_of_an_executor_of_the_hosts_own() -> None:
    asked: list[str | None] = []

    def answer(spec: AgentStepSpec) -> StepOutcome:
        asked.append(spec.isolation)
        return done(spec, "x")

    [outcome] = asyncio.run(execute_steps_parallel(HostExecutor(answer), [step()]))
    assert (asked, outcome.success) == (["worktree"], True)


@pytest.mark.parametrize("wrong", ["Worktree", "container", "", 1, ["worktree"]])
def test_there_is_one_kind_of_it(wrong: Any) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        asyncio.run(execute_steps_parallel(HostExecutor(), [step(), step("u", isolation=wrong)]))
    assert str(caught.value) == f"invalid AgentStepSpec: specs[1].isolation: must be 'worktree', got {wrong!r}"


# ---- going on -------------------------------------------------------------------------------------------------------


def test_a_finished_step_is_answered_from_the_journal_with_what_it_left(repo: Path) -> None:
    store = MemorySessionStore()
    never = step("never", agent="nobody")
    [first, _], _ = run(repo, doing(write("new.txt")), step(), never, store=store)
    [again, _], model = run(repo, doing(write("new.txt")), step(), never, store=store)
    assert again.worktree == first.worktree
    assert again.worktree is not None
    assert model.requests == []
    [here, _], model = run(repo, doing(), step(isolation=None), never, store=store)
    assert here.worktree is None  # another step
    assert len(model.requests) == 1


def failing_at(number: int) -> Callable[[ModelRequest], Any]:
    def reply(request: ModelRequest) -> Any:
        if rounds(request) == number:
            return ProviderError("down", kind="server", retryable=False)
        return doing(write("one.txt"), write("two.txt"))(request)

    return reply


@pytest.mark.parametrize("number", [1, 2])
def test_a_step_that_failed_in_the_middle_goes_on_in_what_it_had(repo: Path, number: int) -> None:
    store = MemorySessionStore()
    [first], _ = run(repo, failing_at(number), step(), store=store)
    assert first.worktree is not None
    assert len(first.worktree.files) == number
    commit(repo, {"later": "1"})
    [second], model = run(repo, failing_at(9), step(), store=store)
    assert len(model.requests) == 3 - number
    assert second.success
    assert second.worktree is not None
    assert (second.worktree.base, second.worktree.branch) == (first.worktree.base, "fanfold/t")
    assert second.worktree.files == ("one.txt", "two.txt")
    assert git(repo, "rev-list", "--count", f"{first.worktree.base}..fanfold/t") == "1"


def test_a_step_that_was_interrupted_before_it_changed_anything_goes_on_too(repo: Path) -> None:
    store = MemorySessionStore()

    def script(request: ModelRequest) -> Any:
        if rounds(request) == 1:
            return ProviderError("down", kind="server", retryable=False)
        return doing(("read", {"file_path": "a.txt"}), write("new.txt"))(request)

    run(repo, script, step(), store=store)
    [outcome], model = run(repo, doing(("read", {"file_path": "a.txt"}), write("new.txt")), step(), store=store)
    assert outcome.success
    assert len(model.requests) == 2


def test_a_step_whose_turn_was_over_begins_anew(repo: Path) -> None:
    store = MemorySessionStore()
    run(repo, doing(write("one.txt"), answer=""), step(), store=store)
    [outcome], model = run(repo, doing(("read", {"file_path": "one.txt"}), write("two.txt")), step(), store=store)
    assert len(model.requests) == 3
    assert "No such file" in results(model.requests[-1])[0]
    assert outcome.worktree is not None
    assert (outcome.worktree.branch, outcome.worktree.files) == ("fanfold/t-2", ("two.txt",))


@pytest.mark.parametrize("kind", ["another machine", "deleted branch"])
def test_a_step_whose_folder_is_not_to_be_had_begins_anew(repo: Path, tmp_path: Path, kind: str) -> None:
    store = MemorySessionStore()
    run(repo, failing_at(1), step(), store=store)
    if kind == "another machine":
        git(tmp_path, "clone", "--quiet", "repo", "clone")
    else:
        git(repo, "branch", "-D", "fanfold/t")
    there = tmp_path / "clone" if kind == "another machine" else repo
    [outcome], model = run(there, failing_at(9), step(), store=store)
    assert len(model.requests) == 3
    assert outcome.worktree is not None
    assert outcome.worktree.files == ("one.txt", "two.txt")


def test_a_killed_process_leaves_its_steps_where_they_were(repo: Path, tmp_path: Path) -> None:
    dies = subprocess.run(
        [sys.executable, "-m", "tests.support.isolated_run", repo, tmp_path / "store", "dies"], timeout=25, check=False
    )
    assert dies.returncode == -signal.SIGKILL
    assert len(yard(repo)) == 2
    assert branches(repo).keys() == {"fanfold/a", "fanfold/b"}
    outcomes, model = asyncio.run(isolated_run.run(repo, tmp_path / "store"))
    assert len(model.requests) == 4  # two of each: no recorded turn is asked again
    for outcome in outcomes:
        assert outcome.worktree is not None
        assert outcome.worktree.branch == f"fanfold/{outcome.task_id}"
        assert outcome.worktree.files == isolated_run.NAMES
        for name in isolated_run.NAMES:
            assert shown(repo, f"{outcome.worktree.branch}:{name}") == outcome.session_id
    assert yard(repo) == set()
    assert len(git(repo, "worktree", "list").splitlines()) == 1
