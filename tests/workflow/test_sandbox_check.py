"""What is wrong with an inline script is found before it is launched, and none of it is run for that."""

import ast
import asyncio
import inspect
import time

import pytest

from fanfold.errors import ScriptError, WorkflowInputError
from fanfold.workflow.calls import AgentCall
from fanfold.workflow.context import Budget, WorkflowContext
from fanfold.workflow.registry import shipped_scripts
from fanfold.workflow.sandbox import check_inline
from fanfold.workflow.sandbox_text import packaged
from tests.workflow.sandbox_host import NotingHost, in_sandbox, module


def fault_of(script: str) -> str:
    with pytest.raises(WorkflowInputError) as refused:
        asyncio.run(check_inline(script))
    assert refused.value.code == "bad_script"
    return str(refused.value)


GOOD = '''"""What it does."""
from __future__ import annotations

import asyncio
import json
from typing import Any

META = {"name": "x", "description": "y", "phases": ["One"]}
SCHEMA = {"type": "object", "properties": {"found": {"type": "array", "items": {"type": "string"}}}}


def kept(items: list[Any], most: int = 5) -> list[Any]:
    return [each for each in items if each][:most]


async def main(ctx, args):
    ctx.phase("One")

    async def audit(value, dimension, index):
        out = await ctx.agent(f"look for {dimension}", schema=SCHEMA, label=f"audit:{dimension}", phase="One")
        return {"dimension": dimension, "found": out["found"]}

    async def verify(audited, dimension):
        verdicts = await ctx.parallel([(lambda f=f: ctx.agent(f"verify {f}")) for f in audited["found"]])
        return [f for f, verdict in zip(audited["found"], verdicts) if verdict and verdict["is_real"]]

    results = await ctx.pipeline(args["dimensions"], audit, verify, lambda each: each, len, on_error="none")
    more = await asyncio.gather(ctx.agent("a", share=True), ctx.workflow("other", {"k": 1}))
    if ctx.budget.total and ctx.budget.remaining():
        ctx.log(f"{ctx.budget.spent()} {ctx.now()} {ctx.random()} {ctx.uuid()} {len(ctx.args)}")
    worst = None
    for each in results:
        worst = each if worst is None or each > worst else worst
    return {"results": kept(results), "more": more, "text": json.dumps(worst)}
'''


def test_a_good_script_passes() -> None:
    asyncio.run(check_inline(GOOD))


@pytest.mark.parametrize("name", sorted(shipped_scripts()))
def test_the_shipped_scripts_pass(name: str) -> None:
    asyncio.run(check_inline(shipped_scripts()[name].text or ""))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('await ctx.agnet("x")', "agnet"),
        ('await ctx.agent("x", lable="y")', "lable"),
        ("await ctx.agent(5)", "str"),
        ('await ctx.agent("x", isolation="tree")', "worktree"),
        ('await ctx.parallel([lambda: 1], on_error="never")', "never"),
        ("await ctx.parallel([1, 2])", "int"),
        ('await ctx.parallel([ctx.agent("x")])', "Coroutine"),
        ("ctx.phase(5)", "str"),
        ("return nothing_of_that_name", "nothing_of_that_name"),
        ("import socket", "socket"),
        ("from asyncio import wait_for", "wait_for"),
        ("len(5)", "Sized"),
    ],
)
def test_each_fault_is_told_with_its_line(line: str, told: str) -> None:
    text = fault_of(module(f"ctx.log('one')\n{line}\nctx.log('three')"))
    assert "line 4: " in text
    assert told in text
    assert text.count("line ") == 1


def test_all_faults_are_told_but_not_thousands() -> None:
    text = fault_of(module("\n".join(f"missing_{n}" for n in range(30))))
    assert text.count("line ") == 20
    assert "and 10 more" in text


def test_a_helper_that_gets_ctx_is_checked_too() -> None:
    top = "async def helper(x, ctx):\n    return await ctx.agnet(x)\n"
    assert "line 2: " in fault_of(module("return await helper(1, ctx)", top))
    typed = "async def helper(ctx: dict):\n    return ctx.keys()\n"
    asyncio.run(check_inline(module("return await helper({})", typed)))


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("x = (1\n", 1),
        ("def f(:\n    pass\n", 1),
        ("a = 1\n  b = 2\n", 2),
        ("x = 1\ny = '\n", 2),
        ("x\0y", None),
        ("(" * 5_000, None),
        ("x = '\ud800'", None),
    ],
)
def test_what_is_no_python_is_refused(script: str, line: int | None) -> None:
    text = fault_of(script)
    assert line is None or f"line {line}" in text


@pytest.mark.parametrize(
    ("top", "told"),
    [
        ("class A:\n    pass\nclass B(A):\n    pass\n", "line 3: .*inheritance"),
        ("def f():\n    a = 1\n    yield a\n", "line 3: .*yield"),
        ("x = {}\n\ndel x\n", "line 3: .*del"),
        ("try:\n    pass\nexcept* ValueError:\n    pass\n", "except"),
    ],
)
def test_python_that_the_sandbox_does_not_take_is_refused(top: str, told: str) -> None:
    with pytest.raises(WorkflowInputError, match=told):
        asyncio.run(check_inline(module("return 1", top)))


@pytest.mark.parametrize("top", ["while True: pass\n", "raise ValueError('run')\n", "x = [1]\nwhile True: x += x\n"])
def test_nothing_of_it_is_run(top: str) -> None:
    begun = time.monotonic()
    asyncio.run(check_inline(top + module("return 1")))
    assert time.monotonic() - begun < 5


def test_types_that_grow_for_ever_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    grown = "\n".join(f"t{n + 1} = (t{n}, t{n})" for n in range(60))
    assert "its types cannot be checked" in fault_of(module(f"t0 = (1, 2)\n{grown}\nx: int = t60"))
    capfd.readouterr()  # the sandbox itself says why it died


def test_two_faults_of_two_kinds_are_both_told() -> None:
    text = fault_of(module("return missing", "def f():\n    yield 1\n"))
    assert "line 5: " in text
    assert "line 2: " in text


def test_a_check_is_cancelled_like_a_run() -> None:
    async def main() -> None:
        task = asyncio.create_task(check_inline(GOOD))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_what_passes_runs_with_the_same_lines() -> None:
    script = GOOD.replace('ctx.phase("One")', "1 / 0")
    asyncio.run(check_inline(script))
    with pytest.raises(ScriptError) as raised:
        asyncio.run(in_sandbox(script, NotingHost()))
    assert raised.value.line == script.split("\n").index("    1 / 0") + 1


def test_the_types_tell_of_all_that_ctx_has() -> None:
    stub = ast.parse(packaged("context.pyi.txt"))
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}

    def members(name: str) -> set[str]:
        return {
            node.name if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) else ast.unparse(node).split(":")[0]
            for node in classes[name].body
        }

    def public(cls: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}

    assert members("WorkflowContext") == public(WorkflowContext) | {"args", "budget"}
    assert members("WorkflowBudget") == public(Budget)
    (agent,) = (node for node in classes["WorkflowContext"].body if getattr(node, "name", "") == "agent")
    assert isinstance(agent, ast.AsyncFunctionDef)
    assert {each.arg for each in agent.args.kwonlyargs} == set(AgentCall.__struct_fields__) - {"prompt"}
