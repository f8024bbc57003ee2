"""The permissions of a session hold for each launch of a workflow in it, whoever asks (D11)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import PermissionPolicy
from fanfold.contracts.policy import Decision
from fanfold.errors import WorkflowInputError
from fanfold.testing import ScriptedModel
from tests.support.open_session import opened

POLICIES: dict[Decision, PermissionPolicy] = {
    "deny": PermissionPolicy(deny=("Workflow(inn*)",), default_decision="allow"),
    "ask": PermissionPolicy(ask=("Workflow(inn*)",), default_decision="allow"),
    "allow": PermissionPolicy(deny=("Workflow(other)",), default_decision="allow"),
}


async def inner(ctx: Any, args: Any) -> Any:
    return "inner"


async def outer(ctx: Any, args: Any) -> Any:
    try:
        return await ctx.workflow("inner")
    except WorkflowInputError as error:
        return error.code


@pytest.mark.parametrize(
    ("decision", "nested", "launched"),
    [("deny", "denied", "denied"), ("ask", "needs_approval", "inner"), ("allow", "inner", "inner")],
)
def test_the_policy_of_a_session_decides_on_nested_workflows_and_on_launches_of_its_host(
    tmp_path: Path, decision: Decision, nested: str, launched: str
) -> None:
    """A host that launches what is to be asked about has said yes; a script cannot."""

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), permission_policy=POLICIES[decision]) as session:
            session.workflows.register({"name": "inner", "description": "d"}, inner)
            session.workflows.register({"name": "outer", "description": "d"}, outer)
            assert (await session.workflows.run_async("outer")).value == nested
            try:
                value: Any = (await session.workflows.run_async("inner")).value
            except WorkflowInputError as error:
                value = error.code
            assert value == launched

    asyncio.run(main())
