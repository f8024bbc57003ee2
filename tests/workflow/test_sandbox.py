"""Inline scripts: what they may do, and that it comes to the same as for a script that runs here."""

import asyncio
from typing import Any

import pytest

from fanfold.errors import (
    BudgetExhaustedError,
    ExecutorError,
    ScriptError,
    StorageError,
    WorkflowAgentError,
    WorkflowInputError,
)
from fanfold.orchestration.fanout import stand_in
from fanfold.workflow.lanes import Lane
from fanfold.workflow.script_host import RunHaltedError
from tests.workflow.sandbox_host import FIRST_MS, NotingHost, here, in_sandbox, module, ran

SAME_IN_BOTH = {
    "calls in a row": """
        ctx.phase("One")
        a = await ctx.agent("a", label="x", schema={"type": "object"}, retries=None)
        b = await ctx.agent("b", phase="Other")
        return [a, b, ctx.random(), ctx.uuid(), ctx.random(), ctx.now(), ctx.args == args]
    """,
    "parallel": """
        return await ctx.parallel([lambda n=n: ctx.agent(f"p{n}") for n in range(20)])
    """,
    "thunks that are plain, async, bound, partial, a class": """
        import functools
        class Box:
            size: int = 3
            kind = "box"
            def __init__(self):
                self.n = 3
            async def get(self):
                return await ctx.agent("boxed")
            def __call__(self):
                return 4
        async def named():
            return 1
        return [
            type(each).__name__ if type(each) is Box else each
            for each in await ctx.parallel([named, lambda: 2, Box().get, Box(), functools.partial(len, "abc"), list])
        ]
    """,
    "slots that fail": """
        def wrong():
            raise KeyError("mine")
        async def late():
            await ctx.agent("late")
            raise ValueError("later")
        return await ctx.parallel([wrong, lambda: ctx.agent("fail x"), late, lambda: ctx.agent("ok"), lambda: {}["k"]])
    """,
    "splits in splits": """
        def many(name):
            return lambda: ctx.parallel([lambda n=n: ctx.agent(f"{name}{n}") for n in range(3)])
        first = await ctx.parallel([many("a"), many("b"), many("fail")])
        second = await ctx.pipeline([1, 2], lambda n: ctx.parallel([lambda: ctx.agent(f"s{n}"), many(f"t{n}")]))
        return [first, second]
    """,
    "stages of any arity": """
        class Box:
            def stage(self, value, item):
                return [value, item]
        def three(value, item, index, extra=None):
            return [value, item, index]
        async def star(*given):
            return list(given)
        return await ctx.pipeline(
            ["x", "y"], lambda v: v + "1", Box().stage, three, lambda v, i=None: [v, i], star, lambda *, k=1: k,
            lambda: "none", str, len, lambda v, item, index: [v, item, index],
        )
    """,
    "stages that go on with None, or fail": """
        async def second(value, item):
            if item == 2:
                raise ValueError("two")
            return await ctx.agent(f"{value} {item}")
        return await ctx.pipeline([1, 2, 3], lambda v: None, second, lambda v: v.upper())
    """,
    "an error within a stage about arguments is its own": """
        def two(a, b):
            return a
        return await ctx.pipeline([1], lambda v, item=None, i=None: two(v, item, i))
    """,
    "phases belong to lanes": """
        ctx.phase("Outer")
        async def lane(n):
            if n % 2:
                ctx.phase(f"Lane {n}")
            await ctx.agent(f"a{n}")
            return await ctx.agent(f"b{n}")
        async def one(value):
            ctx.phase(f"First {value}")
            return await ctx.agent(f"one{value}")
        async def two(value, item):
            return await ctx.agent(f"two{item}")
        await ctx.parallel([lambda n=n: lane(n) for n in range(4)])
        await ctx.pipeline([1, 2], one, two)
        await ctx.agent("outer again")
    """,
    "what a lane draws": """
        async def draw(n):
            first = ctx.random()
            await ctx.agent(f"d{n}")
            return [first, ctx.random(), ctx.uuid()]
        return [await ctx.parallel([lambda n=n: draw(n) for n in range(3)]), ctx.uuid()]
    """,
    "nested workflows": """
        ctx.phase("P")
        a = await ctx.workflow("inner", {"k": 1})
        b = await ctx.parallel([lambda: ctx.workflow("other"), lambda: ctx.agent("x")])
        return [a, b]
    """,
    "gather in lanes": """
        import asyncio
        async def lane(n):
            ctx.phase(f"L{n}")
            pair = await asyncio.gather(ctx.agent(f"g{n}"), ctx.parallel([lambda: ctx.agent(f"h{n}")]))
            await asyncio.sleep(0)
            return [list(pair), await ctx.agent(f"after{n}")]
        return await ctx.parallel([lambda n=n: lane(n) for n in range(5)])
    """,
    "gather gives back errors": """
        import asyncio as aio
        from asyncio import gather as together, sleep
        async def bad():
            raise ValueError("b")
        got = await aio.gather(bad(), ctx.agent("x"), return_exceptions=True)
        await sleep(0)
        return [str(got[0]), got[1], list(await together())]
    """,
    "empty, single, generators": """
        return [
            await ctx.parallel([]),
            await ctx.parallel(lambda n=n: n for n in range(3)),
            await ctx.pipeline([], lambda v: v),
            await ctx.pipeline({"a": 1}),
            await ctx.pipeline("ab", lambda v: v * 2),
        ]
    """,
    "a failure that is caught": """
        try:
            await ctx.agent("fail once")
        except RuntimeError as error:
            return str(error)
    """,
    "what cannot be called is refused before anything runs": """
        seen = []
        for attempt in (
            lambda: ctx.parallel([lambda: ctx.agent("never"), 5]),
            lambda: ctx.pipeline([1], lambda v: ctx.agent("never"), "no"),
            lambda: ctx.parallel([ctx.agent("never")]),
            lambda: ctx.parallel([lambda: 1], on_error="maybe"),
            lambda: ctx.agent(5),
        ):
            try:
                await attempt()
            except RuntimeError as error:
                seen.append(str(error))
        return seen + [await ctx.parallel([lambda: ctx.agent("x")])]
    """,
}


def _body(text: str) -> str:
    return "\n".join(line.removeprefix("        ") for line in text.strip("\n").split("\n"))


def failures_of(host: NotingHost) -> list[Any]:
    # The texts of Python's own errors differ a little.
    return sorted((each.where, each.index, each.stage, each.code, each.label or "") for each in host.failures)


@pytest.mark.parametrize("name", SAME_IN_BOTH)
@pytest.mark.parametrize("width", [1, 8])
def test_a_script_asks_the_same_at_the_same_places_here_and_in_the_sandbox(name: str, width: int) -> None:
    async def main() -> None:
        script = module(_body(SAME_IN_BOTH[name]))
        inside, outside = NotingHost(), NotingHost()
        root = ("/3", "Around")
        there = await in_sandbox(script, inside, {"a": [1]}, width=width, root=Lane(*root))
        assert there == await here(script, outside, {"a": [1]}, width=width, root=Lane(*root))
        assert sorted(map(repr, inside.asked)) == sorted(map(repr, outside.asked))
        assert failures_of(inside) == failures_of(outside)
        lines = {failure.where: failure.line for failure in inside.failures}
        assert {each.where: each.line or lines[each.where] for each in outside.failures} == lines

    asyncio.run(main())


@pytest.mark.parametrize("width", [1, 3])
def test_no_more_branches_run_at_once_than_there_are_places(width: int) -> None:
    async def main() -> None:
        full = asyncio.Event()

        async def answer(prompt: str) -> str:
            if host.in_flight == width:
                full.set()
            await full.wait()
            return prompt

        host = NotingHost(answer)
        script = module("return await ctx.pipeline(range(9), lambda n: ctx.agent(str(n)))")
        assert await in_sandbox(script, host, width=width) == [str(n) for n in range(9)]
        assert host.most_in_flight == width

    asyncio.run(main())


def test_a_stage_is_called_once_whatever_its_body_gets_wrong() -> None:
    host = NotingHost()
    body = """
two = lambda a, b: a
stage = lambda value, item=None, index=None: [ctx.log(value), two(value, item, index)]
return await ctx.pipeline([1, 2], stage)
"""
    assert ran(body, host) == [None, None]
    assert host.logged == ["1", "2"]


def test_calls_reach_the_host_in_the_order_in_which_they_were_made() -> None:
    host = NotingHost()
    ran('ctx.phase("A")\nawait ctx.agent("1")\nctx.phase("B")\nawait ctx.agent("2")', host)
    assert [each[:2] if each[0] == "phase" else each[3] for each in host.asked] == [
        ("phase", "A"),
        "1",
        ("phase", "B"),
        "2",
    ]


def test_the_order_in_which_agents_end_moves_no_place() -> None:
    async def main() -> None:
        gates = {str(n): asyncio.Event() for n in range(6)}

        async def wait(prompt: str) -> str:
            head = prompt[0]
            if len(host.agents) == 6:
                for n in (3, 0, 5, 1, 4, 2):
                    gates[str(n)].set()
            if not prompt.endswith("b"):
                await gates[head].wait()
            return prompt

        host = NotingHost(wait)
        script = module(
            """
async def lane(n):
    first = await ctx.agent(f"{n}a")
    return [first, await ctx.agent(f"{n}b")]
return await ctx.parallel([lambda n=n: lane(n) for n in range(6)])
"""
        )
        assert await in_sandbox(script, host) == [[f"{n}a", f"{n}b"] for n in range(6)]
        assert sorted(host.agents) == sorted(
            (f"/0.{n}#{call}", None, f"{n}{'ab'[call]}") for n in range(6) for call in range(2)
        )

    asyncio.run(main())


def test_lanes_stay_apart_when_all_their_answers_come_at_once() -> None:
    async def main() -> None:
        everybody = asyncio.Event()

        async def answer(prompt: str) -> str:
            if len(host.agents) == 60:
                everybody.set()
            await everybody.wait()
            return prompt

        host = NotingHost(answer)
        body = """
import asyncio
async def lane(n):
    ctx.phase(f"L{n}")
    await asyncio.gather(*[ctx.agent(f"{n}") for _ in range(3)])
    first = ctx.uuid()
    await ctx.parallel([lambda: ctx.agent("in")])
    return [first, ctx.uuid()]
return await ctx.parallel([lambda n=n: lane(n) for n in range(20)])
"""
        drawn = await in_sandbox(module(body), host, width=20)
        assert drawn == [[f"uuid of /0.{n}?0", f"uuid of /0.{n}?1"] for n in range(20)]
        assert {each for each in host.agents if each[2] == "in"} == {
            (f"/0.{n}/0.0#0", f"L{n}", "in") for n in range(20)
        }

    asyncio.run(main())


def test_what_is_asked_of_the_budget_is_as_it_stands_then() -> None:
    body = """
before = [ctx.budget.total, ctx.budget.spent(), ctx.budget.remaining()]
await ctx.agent("x")
return before + [ctx.budget.spent(), ctx.budget.remaining()]
"""
    assert ran(body) == [1_000, 0, 1_000, 10, 990]


def test_without_a_limit_nothing_remains_to_be_told() -> None:
    class Rich(NotingHost):
        def budget(self) -> tuple[int | None, int]:
            return None, 5

    assert ran("return [ctx.budget.total, ctx.budget.spent(), ctx.budget.remaining()]", Rich()) == [None, 5, None]


def test_the_clock_stands_still_and_chance_is_that_of_the_seed() -> None:
    body = """
import random, time
from datetime import datetime
time.sleep(1000)
return [time.time(), datetime.now().isoformat(), random.random(), random.randint(1, 10**9), ctx.now()]
"""
    first, again = ran(body), ran(body)
    assert first == again
    assert first[0] == FIRST_MS / 1000
    assert first[1] == "2023-11-14T22:13:20.123000"
    assert first[4] == FIRST_MS


def test_two_runs_share_no_state() -> None:
    script = module("seen.append(1)\nreturn len(seen)", top="seen = []\n")
    host = NotingHost()
    assert [asyncio.run(in_sandbox(script, host)) for _ in range(2)] == [1, 1]


def test_names_of_the_script_may_hide_builtins() -> None:
    top = "type = id = len = str = list = min = range = dict = json = asyncio = gather = print = 5\n"
    script = module('return await ctx.parallel([lambda: ctx.agent("x"), lambda: 1 / 0])', top=top)
    host = NotingHost()
    assert asyncio.run(in_sandbox(script, host)) == ["re: x", None]
    assert [failure.code for failure in host.failures] == ["ZeroDivisionError"]


def test_output_is_logged_by_the_line() -> None:
    host = NotingHost()
    body = """
print("one", 2)
print("a", end="")
await ctx.agent("x")
print("b")
print()
print("two\\nlines")
ctx.log({"k": [1]})
print("no end", end="")
"""
    ran(body, host)
    assert host.logged == ["one 2", "ab", "two", "lines", "{'k': [1]}", "no end"]


def test_what_was_printed_before_an_error_is_logged() -> None:
    host = NotingHost()
    with pytest.raises(ScriptError):
        ran('print("last words", end="")\nraise ValueError("x")', host)
    assert host.logged == ["last words"]


# ---- results ----


def test_json_comes_back_as_it_is() -> None:
    value: Any = {"text": 'é "\u2028 🙂\n', "big": 10**30, "float": 0.1, "none": None, "list": [True, [], {}]}
    assert asyncio.run(in_sandbox(module("return [args, (1, 2)]"), NotingHost(), value)) == [value, [1, 2]]
    answers = NotingHost(lambda prompt: value)
    assert ran('return await ctx.agent("x")', answers) == value


@pytest.mark.parametrize(
    "value",
    ["{1, 2}", "{1: 2}", '[{"a": {2: 3}}]', "float('nan')", "float('inf')", "ctx", "b'x'", "ctx.agent", "10**5000"],
)
def test_a_result_that_is_not_json_is_refused(value: str) -> None:
    with pytest.raises(WorkflowInputError) as refused:
        ran(f"return {value}")
    assert refused.value.code == "not_serialisable"
    assert "invalid" not in str(refused.value)


@pytest.mark.parametrize("value", ["{1, 2}", "float('nan')", "ctx", "[print]"])
def test_an_argument_that_is_not_json_is_refused_at_the_call(value: str) -> None:
    host = NotingHost()
    body = f"""
try:
    await ctx.agent("x", schema={value})
except RuntimeError as error:
    return [str(error), await ctx.agent("y")]
"""
    told, answer = ran(body, host)
    assert "only JSON can be passed on" in told
    assert answer == "re: y"
    with pytest.raises(WorkflowInputError) as refused:
        ran(f'await ctx.agent("x", schema={value})')
    assert refused.value.code == "bad_call"


def test_an_answer_that_the_sandbox_cannot_hold_is_an_error_at_the_call() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(WorkflowInputError) as refused:
        ran('return await ctx.agent("x")', NotingHost(lambda prompt: deep))
    assert refused.value.code == "not_serialisable"
    with pytest.raises(TypeError):
        ran('return await ctx.agent("x")', NotingHost(lambda prompt: object()))


# ---- errors ----


def test_an_error_of_the_script_tells_where_it_came_from() -> None:
    script = module(
        'ctx.phase("x")\nreturn helper(0)',
        top="""def helper(value):
    doubled = value * 2
    return 1 / doubled
""",
    )
    with pytest.raises(ScriptError) as raised:
        asyncio.run(in_sandbox(script, NotingHost()))
    error = raised.value
    assert (error.code, error.error_type, error.message) == (
        "ZeroDivisionError",
        "ZeroDivisionError",
        "division by zero",
    )
    assert error.line == 3
    assert error.trace == (
        '  File "<workflow demo>", line 7, in main\n    return helper(0)\n'
        '  File "<workflow demo>", line 3, in helper\n    return 1 / doubled\n'
    )


def test_a_module_that_raises_tells_its_line() -> None:
    with pytest.raises(ScriptError) as raised:
        asyncio.run(in_sandbox(module("return 1", top="a = 1\nb = {}['k']\n"), NotingHost()))
    assert (raised.value.line, str(raised.value)) == (2, "KeyError: 'k'")


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit", "BaseException('x')", "MemoryError('mine')"])
def test_whatever_a_script_raises_is_only_its_own_end(raised: str) -> None:
    with pytest.raises(ScriptError) as error:
        ran(f"raise {raised}")
    assert error.value.error_type == raised.partition("(")[0]


def test_what_the_host_raised_leaves_as_the_object_that_it_was() -> None:
    mine = WorkflowAgentError(label="l", where="#0", reason="why")

    def answer(prompt: str) -> Any:
        raise mine if prompt == "second" else WorkflowAgentError(label="o", where="#1", reason="other")

    body = """
try:
    await ctx.agent("first")
except Exception:
    pass
await ctx.agent("second")
"""
    with pytest.raises(WorkflowAgentError) as raised:
        ran(body, NotingHost(answer))
    assert raised.value is mine
    assert vars(mine)["line"] == 7
    assert "line 7, in main" in mine.__notes__[0]


def test_of_two_errors_that_read_alike_the_later_one_has_left() -> None:
    raised: list[Exception] = []

    def answer(prompt: str) -> Any:
        raised.append(WorkflowAgentError(label="l", where="#0", reason="why"))
        raise raised[-1]

    body = """
for _ in range(2):
    try:
        await ctx.agent("x")
    except RuntimeError:
        pass
await ctx.agent("x")
"""
    with pytest.raises(WorkflowAgentError) as error:
        ran(body, NotingHost(answer))
    assert error.value is raised[2]


def test_an_error_of_a_host_that_is_none_of_ours_leaves_too() -> None:
    def answer(prompt: str) -> Any:
        raise LookupError("what")

    with pytest.raises(LookupError, match="what"):
        ran('await ctx.agent("x")', NotingHost(answer))


def test_the_same_text_raised_by_the_script_as_another_class_is_its_own() -> None:
    body = """
try:
    await ctx.agent("fail")
except RuntimeError as error:
    text = str(error)
raise ValueError(text)
"""
    with pytest.raises(ScriptError) as raised:
        ran(body)
    assert raised.value.code == "ValueError"


def test_on_request_the_first_failure_in_input_order_is_raised_once_all_have_ended() -> None:
    host = NotingHost()
    body = """
async def late():
    await ctx.agent("a")
    x = 1
    raise KeyError("late")
def early():
    raise ValueError("early")
await ctx.parallel([late, early, lambda: ctx.agent("b")], on_error="raise")
"""
    with pytest.raises(ScriptError) as raised:
        ran(body, host)
    assert (raised.value.code, str(raised.value), raised.value.line) == ("KeyError", "KeyError: 'late'", 6)
    assert sorted(prompt for _, _, prompt in host.agents) == ["a", "b"]
    assert [(failure.where, failure.line) for failure in host.failures] == [("/0.1", 8), ("/0.0", 6)]


def test_a_failed_slot_tells_its_line_wherever_it_failed() -> None:
    host = NotingHost()
    body = """
async def agent():
    await ctx.agent("ok")
    return await ctx.agent("fail")
async def test():
    value = 1
    if value > await ctx.agent("text"):
        return 1
async def loop():
    for each in await ctx.agent("text"):
        each.missing
async def loop_head():
    for each in 5:
        pass
async def deep():
    await ctx.agent("ok")
    return (lambda:
        1 / 0)()
async def after():
    try:
        await ctx.agent("fail")
    except RuntimeError:
        await ctx.agent("ok")
        raise ValueError("x")
return await ctx.parallel([agent, test, loop, loop_head, deep, after])
"""
    assert ran(body, host) == [None] * 6
    assert {failure.index: failure.line for failure in host.failures} == {0: 5, 1: 8, 2: 12, 3: 14, 4: 18, 5: 25}
    assert {failure.index: failure.code for failure in host.failures}[0] == "TOLD"


# ---- what ends a run ----


@pytest.mark.parametrize(
    "ending",
    [
        BudgetExhaustedError(resource="workflow_tokens", reason="spent"),
        WorkflowInputError("agent_cap", "enough"),
        StorageError("disk full"),
    ],
)
def test_an_ending_error_is_raised_once_what_runs_has_ended_and_nothing_more_is_begun(ending: Exception) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        ended: list[str] = []

        async def answer(prompt: str) -> str:
            if prompt == "end":
                gate.set()
                raise ending
            await gate.wait()
            await asyncio.sleep(0)
            ended.append(prompt)
            return prompt

        host = NotingHost(answer)
        script = module('return await ctx.parallel([lambda p=p: ctx.agent(p) for p in ["a", "end", "b", "c", "d"]])')
        with pytest.raises(type(ending)) as raised:
            await in_sandbox(script, host, width=2)
        assert raised.value is ending
        assert ended == ["a"]
        assert [prompt for _, _, prompt in host.agents] == ["a", "end"]
        assert host.failures == []

    asyncio.run(main())


def test_a_run_that_is_halted_ends_at_once_whatever_the_script_catches() -> None:
    async def main() -> None:
        halt = RunHaltedError("stopped")
        cancelled: list[str] = []

        async def answer(prompt: str) -> str:
            if prompt == "halt":
                raise halt
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(prompt)
                raise
            return prompt

        body = """
async def halting():
    while True:
        try:
            await ctx.agent("halt")
        except BaseException:
            pass
await ctx.parallel([lambda: ctx.agent("a"), halting])
"""
        with pytest.raises(RunHaltedError) as raised:
            await in_sandbox(module(body), NotingHost(answer))
        assert raised.value is halt
        assert cancelled == ["a"]

    asyncio.run(main())


def test_a_call_that_somebody_else_cancelled_is_a_failure_like_any_other() -> None:
    def answer(prompt: str) -> Any:
        raise asyncio.CancelledError("elsewhere")

    host = NotingHost(answer)
    assert ran('return await ctx.parallel([lambda: ctx.agent("x"), lambda: 1])', host) == [None, 1]
    assert "was cancelled" in host.failures[0].message


def test_a_call_that_cancels_its_own_task_ends_the_run() -> None:
    async def cancel(prompt: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(ExecutorError):
        ran('return await ctx.agent("x")', NotingHost(cancel))


def test_a_host_that_fails_to_note_a_failure_ends_the_run() -> None:
    class Broken(NotingHost):
        def slot_failed(self, failure: Any) -> None:
            raise StorageError("disk full")

    with pytest.raises(StorageError):
        ran("await ctx.parallel([lambda: 1 / 0])", Broken())


# ---- branches ----


def test_a_branch_that_waits_for_a_person_lets_one_more_begin() -> None:
    async def main() -> None:
        all_wait = asyncio.Event()

        async def answer(prompt: str) -> str:
            stand_in.get()()
            if len(host.agents) == 6:
                all_wait.set()
            await all_wait.wait()
            return prompt

        host = NotingHost(answer)
        script = module("return await ctx.parallel([lambda n=n: ctx.agent(str(n)) for n in range(6)])")
        assert await in_sandbox(script, host, width=1) == [str(n) for n in range(6)]
        assert host.most_in_flight == 6

    asyncio.run(main())


def test_one_more_is_begun_of_the_innermost_split_alone() -> None:
    async def main() -> None:
        inner_wait = asyncio.Event()

        async def answer(prompt: str) -> str:
            if prompt.startswith("in"):
                stand_in.get()()
                if sum(each[2].startswith("in") for each in host.agents) == 3:
                    inner_wait.set()
                await inner_wait.wait()
            return prompt

        host = NotingHost(answer)
        body = """
async def inner():
    return await ctx.parallel([lambda n=n: ctx.agent(f"in{n}") for n in range(3)])
return await ctx.parallel([inner, lambda: ctx.agent("out")])
"""
        assert await in_sandbox(module(body), host, width=1) == [["in0", "in1", "in2"], "out"]
        assert [prompt for _, _, prompt in host.agents] == ["in0", "in1", "in2", "out"]

    asyncio.run(main())


def test_4096_items_are_taken_and_4097_are_refused_before_anything_starts() -> None:
    host = NotingHost()
    body = """
assert await ctx.parallel([lambda: 1] * 4096) == [1] * 4096
refused = []
for attempt in (
    lambda: ctx.parallel([lambda: ctx.agent("never")] * 4097),
    lambda: ctx.pipeline(range(4097), lambda value: ctx.agent("never")),
):
    try:
        await attempt()
    except RuntimeError as error:
        refused.append(str(error))
return refused
"""
    assert ran(body, host) == ["parallel() was given 4097 items", "pipeline() was given 4097 items"]
    assert host.agents == []
