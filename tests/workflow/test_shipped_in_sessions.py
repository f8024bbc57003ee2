"""The shipped workflows in a real session: worktrees of a real repository, votes kept apart, resumes for nothing."""

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, PermissionPolicy, SessionOptions
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.contracts.workflow_runs import WorkflowResult
from fanfold.testing import ScriptedModel, as_json, calls
from fanfold.testing.scripted import newest_text
from tests.support.repositories import branches, git, new_repository

FREE = PermissionPolicy(default_decision="allow")


def prompt_of(request: ModelRequest) -> str:
    return next(str(getattr(each, "text", "")) for each in request.transcript if not isinstance(each, ToolMessage))


async def run(workspace: Path, model: ScriptedModel, name: str, args: Any, **more: Any) -> WorkflowResult:
    options = SessionOptions(permission_policy=FREE)
    async with (
        await Agent.create_async(models={"scripted/model": model}) as agent,
        await agent.session_async(workspace, options) as session,
    ):
        return await session.workflows.run_async(name, args, **more)


@pytest.mark.skipif(os.name != "posix" or shutil.which("git") is None, reason="worktrees need git on a POSIX system")
def test_a_migration_leaves_a_branch_for_each_site_and_no_trace_in_the_workspace(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    new_repository(repo, {".gitignore": ".a3s/\n"})
    before = git(repo, "status", "--porcelain")

    def model(request: ModelRequest) -> Any:
        prompt = prompt_of(request)
        made = re.search(r"at one place only: (\S+)", prompt)
        if made is None:
            return as_json({"problems": [], "is_right": "+changed" in prompt})
        if made[1] == "same" or any(isinstance(each, ToolMessage) for each in request.transcript):
            return f"did {made[1]}"
        return calls(("write", {"file_path": f"{made[1]}.txt", "content": "changed\n"}))

    args = {"task": "change it", "sites": ["one", "two", "same"]}
    result = asyncio.run(run(repo, ScriptedModel(model), "migrate", args))
    value: Any = result.value
    assert result.status == "completed", result
    told = {each["site"]: each for each in value["sites"]}
    assert {site: (each["files"], each["verdict"]) for site, each in told.items()} == {
        "one": (["one.txt"], "right"),
        "two": (["two.txt"], "right"),
        "same": ([], "unchanged"),
    }
    assert {told[site]["branch"] for site in ("one", "two")} <= set(branches(repo))
    assert git(repo, "show", f"{told['one']['branch']}:one.txt") == "changed"
    assert git(repo, "status", "--porcelain") == before

    again = asyncio.run(run(repo, ScriptedModel([]), "migrate", None, resume_from_run_id=result.run_id))
    assert (again.status, again.value, again.counts.launched) == ("completed", result.value, 0)


def test_voters_of_one_item_are_kept_apart_also_when_they_are_replayed(tmp_path: Path) -> None:
    votes = iter(["bug", "wish", "bug"])

    def model(request: ModelRequest) -> str:
        assert "<item>" in newest_text(request)
        return as_json({"reason": "r", "category": next(votes)})

    args = {"items": ["it fails"], "categories": ["bug", "wish"]}
    result = asyncio.run(run(tmp_path, ScriptedModel(model), "triage", args))
    value: Any = result.value
    assert (value["items"][0]["category"], result.counts.done) == ("bug", 3)
    assert sorted(each["category"] for each in value["items"][0]["votes"]) == ["bug", "bug", "wish"]
    again = asyncio.run(run(tmp_path, ScriptedModel([]), "triage", None, resume_from_run_id=result.run_id))
    assert (again.value, again.counts.launched, again.counts.cached) == (result.value, 0, 3)
