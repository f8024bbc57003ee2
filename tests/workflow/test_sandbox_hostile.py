"""What a hostile script tries: refused or contained, while the loop of the host goes on."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import FanfoldError, SandboxError, ScriptError, WorkflowInputError
from fanfold.workflow.sandbox import SandboxLimits, run_inline
from tests.workflow.sandbox_host import TIGHT, NotingHost, in_sandbox, module, ran

SLOWEST_BEAT = 2.0
"""Seconds; other processes share the machine."""


async def _contained(script: str, host: NotingHost, limits: SandboxLimits = TIGHT) -> Any:
    """What it returns or raises, while a heartbeat shows that the loop was never held up."""
    slowest = 0.0

    async def beat() -> None:
        nonlocal slowest
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.monotonic() - begun)

    heart = asyncio.create_task(beat())
    try:
        return await in_sandbox(script, host, limits=limits)
    except FanfoldError as error:
        return error
    finally:
        heart.cancel()
        assert slowest < SLOWEST_BEAT


def outcome(body: str, host: NotingHost | None = None, top: str = "", limits: SandboxLimits = TIGHT) -> Any:
    return asyncio.run(_contained(module(body, top), host or NotingHost(), limits))


# ---- out of the sandbox ----


@pytest.mark.parametrize(
    "body",
    [
        'return open("{file}").read()',
        'return open("{file}", "w").write("mine")',
        'with open("{file}") as file:\n    return file.read()',
        'from pathlib import Path\nreturn Path("{file}").read_text()',
        'from pathlib import Path\nPath("{file}").write_text("mine")',
        'from pathlib import Path\nreturn [str(each) for each in Path("{folder}").iterdir()]',
        'from pathlib import Path\nreturn Path("{file}").exists()',
        'import os\nreturn os.listdir("{folder}")',
        'import os\nos.remove("{file}")',
        'import os\nos.rename("{file}", "{file}2")',
        'import os\nos.mkdir("{file}2")',
        'import os\nreturn os.environ["PATH"]',
        'import os\nreturn os.getenv("PATH")',
        'import os\nos.system("touch {file}2")',
        "import os\nos.fork()",
        'import os\nos.execv("/bin/sh", ["sh"])',
        "import os\nos.kill(1, 9)",
        "import sys\nreturn sys.modules",
        "import sys\nreturn sys._getframe(0)",
        "import sys\nsys.exit(0)",
        "import subprocess",
        "import socket",
        "import ctypes",
        "import importlib",
        "import builtins",
        "import inspect",
        "import gc",
        "import pickle",
        "import threading",
        "import multiprocessing",
        "import signal",
        "import urllib.request",
        "import fanfold",
        "import pydantic_monty",
        'return __import__("os").listdir("/")',
        "return eval(\"__import__('os')\")",
        'exec("import subprocess")',
        "exec(\"open('{file}', 'w').write('mine')\")",
        'return compile("1", "", "eval")',
        "return globals()",
        "return vars(ctx)",
        "return dir(ctx)",
        "return input()",
        "breakpoint()",
        "return __builtins__",
        "return __loader__",
        "return ().__class__.__mro__",
        "return type(ctx).__mro__",
        "return type(ctx).__subclasses__()",
        "return object.__subclasses__()",
        "return ctx.agent.__func__.__globals__",
        "return ctx.agent.__code__",
        "return ctx.agent.__closure__",
        "return ctx.agent.__self__.__dict__",
        "return main.__globals__",
        "return (lambda: 1).__code__",
        "return ctx.__dict__",
        "return ctx.__reduce__()",
        "return main(ctx, args).cr_frame",
        "return ctx.agent('x').cr_frame.f_back",
        'return getattr(ctx, "__di" + "ct__")',
        'return "{{0.__init__.__globals__}}".format(ctx)',
        'return "{{0.__class__.__mro__}}".format(ctx)',
        'return "{{0.agent.__func__}}".format(ctx)',
        "try:\n    1 / 0\nexcept Exception as error:\n    return error.__traceback__.tb_frame",
        "return ctx._host",
        "return __fanfold_ask__('agent', '[\"#0\", null, \"p\", {{}}]')",
        "return await __fanfold_make__(lambda *a: 1, {{}})",
        "return await agent('x')",
        "return send('agent', 'x')",
    ],
)
def test_there_is_no_way_out(body: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("secret")
    host = NotingHost()
    result = outcome(body.format(file=file, folder=tmp_path), host)
    assert isinstance(result, ScriptError | WorkflowInputError), result
    assert isinstance(result, ScriptError) or result.code in ("not_serialisable", "bad_script")
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]
    assert file.read_text() == "secret"
    assert host.asked == []


def test_the_process_has_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_TEST_SECRET", "hidden")

    async def main() -> None:
        gate = asyncio.Event()

        async def look(prompt: str) -> bool:
            children = Path("/proc/self/task").glob("*/children")
            pids = {pid for each in children for pid in each.read_text().split()}
            found = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]
            gate.set()
            return bool(found) and any(b"FANFOLD_TEST_SECRET" in each for each in found)

        if not Path("/proc/self/environ").exists():
            pytest.skip("needs /proc")
        assert await in_sandbox(module('return await ctx.agent("look")'), NotingHost(look)) is False
        assert gate.is_set()

    asyncio.run(main())


# ---- against the limits ----


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "def f():\n    try:\n        while True: pass\n    finally:\n        f()\nf()",
        "sum(range(10**12))",
        "while True: print('x', end='')",
    ],
)
def test_code_that_does_not_end_is_ended(body: str) -> None:
    begun = time.monotonic()
    result = outcome(body)
    assert isinstance(result, SandboxError)
    assert "time limit" in result.reason
    assert time.monotonic() - begun < 10


def test_code_at_the_top_of_the_module_is_under_the_limits_too() -> None:
    assert isinstance(outcome("return 1", top="while True: pass\n"), SandboxError)


def test_time_spent_in_many_turns_adds_up() -> None:
    limits = SandboxLimits(turn_seconds=1.0, total_seconds=0.3, memory_bytes=64_000_000)
    result = outcome("while True:\n    ctx.random()\n    sum(range(100_000))", limits=limits)
    assert isinstance(result, SandboxError)
    assert "feed time limit" in result.reason


@pytest.mark.parametrize(
    "body",
    [
        "x = [1]\nwhile True: x = x + x",
        "x = 'a'\nwhile True: x = x + x",
        "x = b'a' * 10\nwhile True: x = x * 10",
        "x = 2\nwhile True: x = x * x",
        "9**9**9",
        "1 << 10**12",
        "list(range(10**9))",
        "{n: n for n in range(10**8)}",
        "'%1000000000d' % 1",
        "f'{1:>1000000000}'",
        "import itertools\nlist(itertools.repeat(1))",
        "async def f(): await ctx.parallel([f, f])\nawait f()",
        "x = 'a' * 1_000_000\ny = [x] * 1000\nctx.log([y] * 1000)",
        "x = 'a' * 1_000_000\ny = [x] * 1000\nprint([y] * 1000)",
        "x = 'a' * 1_000_000\ny = [x] * 1000\nreturn [y] * 1000",
        "x = 'a' * 1_000_000\ny = [x] * 1000\nawait ctx.agent('p', schema=[y] * 1000)",
        "x = 'a' * 1_000_000\ny = [x] * 1000\nraise ValueError(str([y] * 1000))",
    ],
)
def test_memory_that_grows_is_bounded(body: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = outcome(body, limits=SandboxLimits(turn_seconds=20.0, total_seconds=20.0, memory_bytes=64_000_000))
    assert isinstance(result, SandboxError), result
    assert "memory limit" in result.reason
    capfd.readouterr()  # the sandbox itself says why it died


@pytest.mark.parametrize("call", ["nothing_of_that_name({0})", "__fanfold_ask__({0})", "print_all(*{0})"])
def test_objects_that_name_others_a_million_times_are_not_spread_out_here(call: str) -> None:
    body = "x = 'a' * 1_000_000\ny = [x] * 1000\n" + call.format("[y] * 1000")
    assert isinstance(outcome(body), ScriptError)


def test_an_error_text_is_cut() -> None:
    result = outcome("raise ValueError('x' * 10_000_000)")
    assert isinstance(result, ScriptError)
    assert len(str(result)) < 5_000
    host = NotingHost()
    outcome("def f(): raise ValueError('x' * 10_000_000)\nawait ctx.parallel([f])", host)
    assert len(host.failures[0].message) < 5_000


@pytest.mark.parametrize("body", ["def f(): return f()\nf()", "async def f(): await f()\nawait f()"])
def test_recursion_is_an_error_of_the_script(body: str) -> None:
    result = outcome(body)
    assert isinstance(result, ScriptError)
    assert result.code == "RecursionError"
    assert len(result.trace) < 10_000


@pytest.mark.parametrize(
    "body",
    [
        "for n in range(1_000_000): ctx.log('x')",
        "for n in range(1_000_000):\n    try: ctx.log('x')\n    except BaseException: pass",
        "for n in range(1_000_000): print('x' * 50)",
        "print('x' * 30_000_000)",
        "ctx.log('x' * 10_000_000)",
    ],
)
def test_output_is_bounded(body: str) -> None:
    host = NotingHost()
    limits = SandboxLimits(turn_seconds=10.0, memory_bytes=64_000_000, output_bytes=200_000)
    result = outcome(body, host, limits=limits)
    assert isinstance(result, SandboxError)
    assert "printed and logged" in result.reason
    assert sum(map(len, host.logged)) <= 200_000


def test_a_result_is_bounded() -> None:
    result = outcome("return 'x' * 2_000_000", limits=SandboxLimits(result_bytes=1_000_000))
    assert isinstance(result, SandboxError)
    assert "2000002 bytes" in result.reason
    assert outcome("return 'x' * 999_998", limits=SandboxLimits(result_bytes=1_000_000)) == "x" * 999_998


def test_calls_of_the_host_are_bounded() -> None:
    host = NotingHost()
    body = "while True:\n    try:\n        await ctx.agent('x')\n    except BaseException: pass"
    result = outcome(body, host, limits=SandboxLimits(host_calls=500))
    assert isinstance(result, SandboxError)
    assert "suspension limit" in result.reason
    assert 200 <= len(host.agents) <= 250


def test_what_calls_under_way_carry_is_bounded() -> None:
    body = "import asyncio\nawait asyncio.gather(*[ctx.agent('x' * 100_000) for n in range(100)])"
    limits = SandboxLimits(pending_bytes=1_000_000)
    result = outcome(body, limits=limits)
    assert isinstance(result, SandboxError)
    assert "1,000,000 bytes" in result.reason
    one_by_one = "for n in range(100): await ctx.agent('x' * 100_000)\nreturn n"
    assert outcome(one_by_one, limits=limits) == 99


def test_a_script_that_swallows_every_failure_is_ended_some_time() -> None:
    body = "while True:\n    try:\n        await ctx.agent('fail')\n    except BaseException: pass"
    host = NotingHost()
    result = outcome(body, host, limits=SandboxLimits(failed_calls=100))
    assert isinstance(result, SandboxError)
    assert "more than 100 of its calls failed" in result.reason
    assert len(host.agents) == 101


# ---- against the prelude ----


def test_what_a_script_does_to_its_ctx_is_its_own_loss() -> None:
    body = """
real = ctx.agent
async def mine(*given, **options):
    return "mine"
ctx.agent = mine
ctx.budget.total = 10**9
ctx.args = 5
type(ctx).agent = mine
return [await ctx.parallel([lambda: ctx.agent("x")]), await real("y"), ctx.budget.remaining()]
"""
    host = NotingHost()
    assert outcome(body, host) == [["mine"], "re: y", 990]
    assert outcome("ctx.agent = 5\nawait ctx.agent('x')").code == "TypeError"
    assert outcome("type(ctx).parallel = None\nawait ctx.parallel([])").code == "TypeError"


@pytest.mark.parametrize("name", ["__fanfold_launch__", "__fanfold_line__", "__fanfold_at__", "__fanfold_asyncio__"])
def test_a_script_that_overwrites_the_names_of_the_prelude_fails(name: str) -> None:
    top = f"{name} = lambda *given: None\n"
    result = outcome("import asyncio\nif 1:\n    await asyncio.gather()\nreturn 1", top=top)
    assert result == 1 or isinstance(result, ScriptError | SandboxError)


def test_a_script_that_never_comes_to_its_result_has_none() -> None:
    result = outcome("return 1", top="async def __fanfold_launch__(script): return 5\n")
    assert isinstance(result, SandboxError)
    assert "without a result" in result.reason


def test_the_way_to_the_host_cannot_be_had_as_a_value() -> None:
    assert outcome("return [__fanfold_ask__, __fanfold_make__]") == [None, None]
    assert isinstance(outcome("return [str(each) for each in (json, asyncio, Lane, failed, known)]"), ScriptError)


def test_launching_itself_again_moves_nothing_outside() -> None:
    host = NotingHost()
    body = """
async def other(ctx, args):
    return await ctx.agent("inner")
await __fanfold_launch__(other)
return await ctx.agent("outer")
"""
    assert outcome(body, host) == "re: outer"
    assert [where for where, _, _ in host.agents] == ["#0", "#1"]


def test_what_is_not_asked_through_ctx_is_never_asked() -> None:
    host = NotingHost()
    body = """
told = []
for name in ("agent", "workflow", "log", "random", "done", "__fanfold_ask__", "refuse"):
    for given in ("()", "(5)", "(name, 5)", "(ctx)", "('[]')", "(name, '{broken')", "(*[1] * 100)", "(a=1, b=ctx)"):
        try:
            eval(name + given)
        except BaseException as error:
            told.append(str(error))
return len(told)
"""
    assert outcome(body, host) == 7 * 8
    assert (host.asked, host.logged, host.failures) == ([], [], [])


@pytest.mark.parametrize("entry", ["main; import os", "class", "", "1", "main()"])
def test_the_name_of_the_function_is_a_name(entry: str) -> None:
    with pytest.raises(WorkflowInputError) as refused:
        asyncio.run(run_inline("", {}, NotingHost(), entry=entry, seed="", first_ms=1, name="x"))
    assert refused.value.code == "bad_script"


def test_an_eager_script_leaves_its_siblings_in_peace() -> None:
    async def main() -> None:
        hot = asyncio.create_task(_contained(module("while True: pass"), NotingHost()))
        answers = await asyncio.gather(
            *[in_sandbox(module('return await ctx.agent("x")'), NotingHost()) for _ in range(3)]
        )
        assert answers == ["re: x"] * 3
        assert isinstance(await hot, SandboxError)

    asyncio.run(main())


def test_a_coroutine_is_awaited_once() -> None:
    assert isinstance(outcome('c = ctx.agent("x")\nawait c\nawait c'), ScriptError)
    assert ran('ctx.agent("never awaited")\nreturn 1') == 1
