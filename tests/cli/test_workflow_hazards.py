"""What would make the runs of a host script differ is found by reading it."""

import pytest

from fanfold.cli.workflow_hazards import Finding, find_hazards
from fanfold.workflow.registry import shipped_scripts


def found(body: str, *, head: str = "", phases: tuple[str, ...] | None = None) -> list[Finding]:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return find_hazards(f"{head}\nasync def main(ctx, args):\n{indented}\n", phases)


@pytest.mark.parametrize(
    ("head", "body", "fix"),
    [
        ("import time", "time.time()", "ctx.now()"),
        ("import time as t", "t.monotonic_ns()", "ctx.now()"),
        ("from time import time as now", "now()", "ctx.now()"),
        ("import datetime", "datetime.datetime.now()", "ctx.now()"),
        ("import datetime as dt", "dt.date.today()", "ctx.now()"),
        ("from datetime import datetime", "datetime.utcnow()", "ctx.now()"),
        ("import random", "random.choice([1])", "ctx.random()"),
        ("from random import shuffle", "shuffle([1])", "ctx.random()"),
        ("import random", "random.Random()", "ctx.random()"),
        ("import secrets", "secrets.token_hex()", "ctx.random()"),
        ("import os", "os.urandom(4)", "ctx.random()"),
        ("import uuid", "uuid.uuid4()", "ctx.uuid()"),
        ("import os", "os.environ['A']", "pass it as an argument"),
        ("import os.path\nimport os", "os.getenv('A')", "pass it as an argument"),
        ("", "open('f')", "let an agent do it"),
        ("from pathlib import Path", "Path('f').read_text()", "let an agent do it"),
        ("import subprocess", "subprocess.run(['ls'])", "let an agent do it"),
        ("import time", "time.sleep(1)", "await asyncio.sleep"),
        ("import asyncio", "await asyncio.gather(a(), b())", "ctx.parallel"),
        ("import asyncio", "asyncio.create_task(a())", "ctx.parallel"),
        ("", "hash('a')", "from process to process"),
        ("", "for x in set(args['a']): pass", "sorted("),
        ("", "for x in {1, 2}: pass", "sorted("),
        ("", "y = [x for x in frozenset(args)]", "sorted("),
        ("", "y = list(set(args))", "sorted("),
    ],
)
def test_what_differs_from_run_to_run_is_a_warning_with_what_to_use_instead(head: str, body: str, fix: str) -> None:
    [finding] = found(body, head=head)
    assert (finding.severity, finding.code) == ("warning", "not_repeatable")
    assert fix in finding.message
    assert finding.line == len(head.splitlines() or [""]) + 2


@pytest.mark.parametrize(
    "body",
    [
        "ctx.now(), ctx.random(), ctx.uuid()",
        "random.Random(ctx.random())",
        "uuid.uuid5(uuid.NAMESPACE_DNS, 'a')",
        "time.strptime('1', '%S')",
        "for x in sorted(set(args)): pass",
        "y = sorted(list(set(args))), any(x for x in set(args)), len(list(set(args)))",
        "x = 1 in set(args)",
        "await asyncio.sleep(1)",
        "clock.time()",
    ],
)
def test_what_comes_out_the_same_is_none(body: str) -> None:
    assert found(body, head="import random, uuid, time, asyncio") == []


@pytest.mark.parametrize(
    ("body", "code", "fix"),
    [
        ("await asyncio.wait({a})", "completion_order", "ctx.parallel or ctx.pipeline"),
        ("for x in asyncio.as_completed([a]): pass", "completion_order", "ctx.parallel or ctx.pipeline"),
        ("ctx.agent('a')", "not_awaited", "await ctx.agent()"),
        ("ctx.parallel([])", "not_awaited", "await ctx.parallel()"),
        ("await ctx.phase('A')", "bad_call", "cannot be awaited"),
        ("await ctx.parallel([ctx.agent('a')])", "bad_call", "lambda: ctx.agent"),
        ("await ctx.parallel(ctx.agent(x) for x in args)", "bad_call", "lambda: ctx.agent"),
        ("await ctx.parallel([lambda: ctx.agent(x) for x in args])", "late_binding", "lambda x=x:"),
        ("y = []\nfor x, z in args:\n    y.append(lambda: ctx.agent(x))", "late_binding", "lambda x=x:"),
        ("await ctx.agent('a', lable='b')", "bad_call", "did you mean 'label'?"),
        ("await ctx.agent('a', {'type': 'object'})", "bad_call", "schema="),
        ("await ctx.agnt('a')", "bad_call", "did you mean 'agent'?"),
    ],
)
def test_what_cannot_work_is_an_error(body: str, code: str, fix: str) -> None:
    [finding] = found(body, head="import asyncio")
    assert (finding.severity, finding.code) == ("error", code)
    assert fix in finding.message


@pytest.mark.parametrize(
    "body",
    [
        "y = [lambda x=x: ctx.agent(x) for x in args]",
        "y = [lambda: ctx.agent('a') for x in args]",
        "y = [lambda x: x for x in args]",
        "y = [sorted(args, key=lambda a: a[x]) for x in args]",
        "pending = ctx.agent('a')\nawait pending",
        "return ctx.agent('a')",
        "await ctx.agent(prompt='a', **args)",
        "await ctx.pipeline(args, lambda v, item, index: ctx.agent(item))",
    ],
)
def test_what_works_is_none(body: str) -> None:
    assert found(body) == []


def test_a_phase_that_meta_does_not_announce_is_a_warning() -> None:
    body = "ctx.phase('Aks')\nawait ctx.agent('a', phase='Sum')\nctx.phase(args['a'])"
    [finding] = found(body, phases=("Ask", "Sum"))
    assert (finding.line, finding.severity, finding.code) == (3, "warning", "unknown_phase")
    assert "did you mean 'Ask'?" in finding.message
    assert found(body) == []


def test_findings_come_by_line() -> None:
    body = "await ctx.phase('a')\nopen('f')\nctx.agent('a')"
    assert [each.line for each in found(body)] == [3, 4, 5]


def test_an_expression_that_is_nested_too_deeply_is_told_and_no_crash() -> None:
    [finding] = found("y = " + "1 + " * 600 + "1")
    assert (finding.severity, finding.code) == ("warning", "too_deep")


@pytest.mark.parametrize("name", sorted(shipped_scripts()))
def test_the_shipped_workflows_are_free_of_them(name: str) -> None:
    script = shipped_scripts()[name]
    assert find_hazards(script.text or "", script.meta.phases) == []
