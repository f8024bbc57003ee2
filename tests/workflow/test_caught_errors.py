"""A script that catches an error goes on in the same way here and in the sandbox, whatever the error is."""

import asyncio
import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold import errors
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.errors import FanfoldError
from fanfold.workflow.sandbox import check_inline
from fanfold.workflow.script_host import is_ending
from fanfold.workflow.scripts import text_sha
from tests.workflow.rig import Rig, Team, failure
from tests.workflow.sandbox_host import module


class Teapot(Exception):
    code = 418


class Late(KeyError):
    pass


def tree(root: type[FanfoldError] = FanfoldError) -> list[type[FanfoldError]]:
    return [
        root,
        *(each for child in root.__subclasses__() if child.__module__ == errors.__name__ for each in tree(child)),
    ]


_EXAMPLES: list[FanfoldError] = [
    errors.InvalidSpecError("no", index=1, field="agent"),
    errors.ConfigError(["one", "two"]),
    errors.MissingExtraError(feature="it", install="get it"),
    errors.WorkflowInputError("denied", "no"),
    errors.StepChangedError(workflow_id="w", task_ids=["a"]),
    errors.SessionBusyError(session_id="s"),
    errors.RunControlError("CLOSED", "it has ended"),
    errors.RunIdentityError(run_id="r"),
    errors.AlreadyActiveError(name="workflow/w"),
    errors.ControlError("NOT_SERVED", "no"),
    errors.SessionClosedError(session_id="s"),
    errors.StepLimitError(limit=3),
    errors.BudgetExhaustedError(resource="tokens", reason="spent"),
    errors.ProviderError("no answer", kind="timeout", retryable=True),
    errors.HookBlockedError(event="pre_tool", reason="no"),
    errors.ParkedError(tool_id="t", tool_name="ask", what="an answer"),
    errors.WorkflowAgentError(label="l", where="#0", reason="why", agent_code="TIMEOUT"),
    errors.WorkflowAgentError(label="l", where="#0", reason="why"),
    errors.ScriptError(error_type="KeyError", message="'k'", line=3),
    errors.SandboxError(reason="it ran too long"),
    errors.RunCancelledError(session_id="s"),
    errors.CorruptLogError(thread="t", line=2, reason="torn"),
    errors.AppendConflictError(thread="t", key="k", seq=4),
    errors.LogWriteError(path="p", reason="full"),
    errors.StoreConflictError(name="n", expected=1, actual=2),
    errors.FencedError(name="n", epoch=1),
    errors.CheckpointRefusedError(workflow_id="w", reason="other"),
    errors.ToolError(tool="t", message="no"),
    errors.McpError(server="s", reason="dead"),
    errors.SessionNotFoundError(session_id="s"),
    errors.CheckpointNotFoundError(run_id="r"),
]
_WITH_FIELDS = {type(each) for each in _EXAMPLES}
OURS = [*_EXAMPLES, *(each("it says") for each in tree() if each not in _WITH_FIELDS)]
PYTHONS: list[Exception] = [
    KeyError("k"),
    KeyError(5),
    KeyError(),
    OSError(2, "no such file"),
    ValueError(),
    Teapot("short"),
    Late("k"),
    json.JSONDecodeError("no", "doc", 1),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ValueError("long " * 2_000),
    ValueError("lone \ud800"),
]
for each in list(vars(builtins).values()):
    # A StopIteration cannot leave a coroutine, and those of Unicode and groups take more than a text.
    if isinstance(each, type) and issubclass(each, Exception) and each is not StopIteration:
        try:
            PYTHONS.append(each("it says"))
        except TypeError:
            pass

OF_A_CALL = """
seen = []
for number in range(args["count"]):
    try:
        await ctx.workflow("raises", {"number": number})
    except Exception as error:
        kinds = [name for name, kind in KINDS.items() if isinstance(error, kind)]
        seen.append([ctx.failure(error), str(error) if args["as_text"] else "", kinds])
others = [number for number in range(args["count"]) if number not in args["endings"]]
slots = await ctx.parallel([lambda n=number: ctx.workflow("raises", {"number": n}) for number in others])
return [seen, slots]
"""
KINDS = """KINDS = {
    "ValueError": ValueError, "LookupError": LookupError, "KeyError": KeyError, "IndexError": IndexError,
    "OSError": OSError, "TimeoutError": TimeoutError, "TypeError": TypeError,
    "ArithmeticError": ArithmeticError, "AttributeError": AttributeError, "RuntimeError": RuntimeError,
    "NotImplementedError": NotImplementedError, "NameError": NameError,
}
"""
OF_EVERY_VERB = """
import asyncio

async def refused(call):
    try:
        await call()
    except RuntimeError as error:
        return [ctx.failure(error), str(error)]

async def phase():
    ctx.phase(args["blank"])

async def own(kind):
    if kind == "value":
        raise ValueError("mine")
    if kind == "key":
        return {}["k"]
    if kind == "again":
        try:
            await ctx.agent("fail first")
        except RuntimeError as error:
            raise RuntimeError(str(error) + ", again")
    assert not kind, "said"

found = []
for prompt in ("fail", "fail by timeout", "fail without a code"):
    found.append(await refused(lambda: ctx.agent(prompt, label=f"the {prompt}")))
found.append(await refused(lambda: ctx.agent(args["blank"])))
found.append(await refused(lambda: ctx.agent("x", **args["wrong"])))
found.append(await refused(lambda: ctx.agent("x", schema={"type": "nonsense"})))
found.append(await refused(lambda: ctx.parallel(args["things"])))
found.append(await refused(lambda: ctx.parallel([lambda: 1], on_error=args["blank"])))
found.append(await refused(lambda: ctx.pipeline(range(99), lambda each: each)))
found.append(await refused(phase))
found.append(await refused(lambda: ctx.workflow("unknown")))
found.append(await refused(lambda: ctx.workflow("denied")))
found.append(await refused(lambda: ctx.workflow("picky", {"number": "one"})))
found.append(await refused(lambda: ctx.workflow("nests")))
found.append(await refused(lambda: ctx.workflow("gives-a-set")))
together = await asyncio.gather(*[own(kind) for kind in ("value", "key", "again", "said")], return_exceptions=True)
found.append([ctx.failure(each) for each in together])
try:
    await ctx.parallel([lambda: own("value"), lambda: ctx.agent("fail in a slot")], on_error="raise")
except Exception as error:
    found.append(ctx.failure(error))
try:
    await ctx.pipeline([1, 2], lambda each: ctx.agent(f"fail {each}"), on_error="raise")
except Exception as error:
    found.append(ctx.failure(error))
return found
"""
OF_LIMITS = """
found = []
for number in range(4):
    try:
        await ctx.agent(f"about {number}")
    except Exception as error:
        found.append([ctx.failure(error), str(error)])
try:
    await ctx.parallel([lambda: ctx.agent("more")])
except Exception as error:
    found.append(ctx.failure(error))
return found
"""


async def answered(spec: AgentStepSpec) -> Any:
    if not spec.prompt.startswith("fail"):
        return "fine"
    return failure(spec, error_code={"fail by timeout": "TIMEOUT", "fail without a code": None}.get(spec.prompt, "NO"))


def rig(place: Path, raised: list[Exception], **limits: int) -> Rig:
    made = Rig(
        place,
        Team(answered),
        takes_inline=True,
        rules={"denied": "deny"},
        limits=WorkflowLimits(**{"max_items": 98, **limits}),
    )

    async def raises(ctx: Any, args: Any) -> None:
        error = raised[args["number"]]
        error.__traceback__ = None  # of where it was raised before
        raise error

    async def nests(ctx: Any, args: Any) -> Any:
        return await ctx.workflow("picky", {})

    async def gives_a_set(ctx: Any, args: Any) -> Any:
        return {1}

    made.register(raises, name="raises")
    made.register(raises, name="denied")
    made.register(nests, name="nests")
    made.register(gives_a_set, name="gives-a-set")
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    made.register(raises, name="picky", args_schema=schema)
    return made


def journalled(given: Rig, result: WorkflowResult) -> list[Any]:
    lines = Path(given.files.directory, f"{result.run_id}.journal.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    kept = ("t", "id", "path", "label", "status", "value", "error")
    return sorted(repr([each.get(name) for name in kept]) for each in records if "path" in each)


async def in_both(place: Path, body: str, raised: list[Exception], args: Any, top: str = "", **more: Any) -> Any:
    """What the text comes to, which is the same: its result, and every other trace of it."""
    script = module(body, top).replace("META = {}", 'META = {"name": "demo", "description": "a demo"}')
    budget = more.pop("budget_tokens", None)
    inline, trusted = rig(place / "inline", raised, **more), rig(place / "trusted", raised, **more)
    for each in (inline, trusted):  # the names of all workflows are told
        each.folder.scripts["demo.py"] = script
        each.folder.approve("demo.py", text_sha(script))
    there = await inline.workflows.run_async(None, args, script=script, budget_tokens=budget)
    here = await trusted.workflows.run_async("demo", args, budget_tokens=budget)
    assert (there.status, there.error) == (here.status, here.error)
    assert there.value == here.value
    assert there.counts == here.counts
    found = [sorted(each.failures, key=lambda failure: failure.where) for each in (there, here)]
    # Here there is none for a coroutine that a lambda has made.
    lines = [b.line if a.line is None else a.line for a, b in zip(found[1], found[0], strict=True)]
    assert found[0] == [replace(each, line=line) for each, line in zip(found[1], lines, strict=True)]
    assert journalled(inline, there) == journalled(trusted, here)
    return there


def test_every_class_of_ours_has_an_example() -> None:
    assert {type(each) for each in OURS} == set(tree())


def test_each_of_our_errors_tells_its_code_and_what_it_says(tmp_path: Path) -> None:
    async def main() -> None:
        endings = [number for number, each in enumerate(OURS) if is_ending(each)]
        args: JsonObject = {"count": len(OURS), "as_text": True, "endings": endings}
        result = await in_both(tmp_path, OF_A_CALL, list(OURS), args, top="KINDS = {'RuntimeError': RuntimeError}\n")
        seen, slots = result.value
        assert [each[0]["code"] for each in seen] == [each.code for each in OURS]
        assert [each[0]["message"] for each in seen] == [str(each) for each in OURS]
        assert [each[1] for each in seen] == [str(each) for each in OURS]
        assert [each[2] for each in seen] == [["RuntimeError"]] * len(OURS)
        agents = [each[0] for each in seen if each[0]["code"] == "AGENT_FAILED"]
        assert [each["agent_code"] for each in agents] == ["TIMEOUT", None]
        assert [(each["label"], each["where"]) for each in agents] == [("l", "#0")] * 2
        assert slots == [None] * (len(OURS) - len(endings))
        assert len(result.failures) == len(slots)

    asyncio.run(main())


def test_errors_of_python_that_a_nested_workflow_raised_are_caught_by_their_class(tmp_path: Path) -> None:
    async def main() -> None:
        args: JsonObject = {"count": len(PYTHONS), "as_text": False, "endings": []}
        result = await in_both(tmp_path, OF_A_CALL, PYTHONS, args, top=KINDS)
        seen, _ = result.value
        assert [each[0]["code"] for each in seen] == [type(each).__name__ for each in PYTHONS]
        kinds = dict(zip([each[0]["message"] for each in seen], [each[2] for each in seen], strict=True))
        assert kinds["Teapot: short"] == []
        assert kinds["Late: 'k'"] == ["LookupError", "KeyError"]
        assert kinds["FileNotFoundError: [Errno 2] no such file"] == ["OSError"]

    asyncio.run(main())


def test_what_each_verb_raises_is_told_alike(tmp_path: Path) -> None:
    async def main() -> None:
        result = await in_both(tmp_path, OF_EVERY_VERB, [], {"blank": "", "things": [1], "wrong": {"lable": "y"}})
        codes = [each[0]["code"] for each in result.value[:15]]
        assert codes[:3] == ["AGENT_FAILED"] * 3
        assert codes[3:8] == ["bad_call"] * 5
        assert codes[8:12] == ["fanout_limit", "bad_call", "unknown_workflow", "denied"]
        assert codes[12:] == ["bad_args", "nesting", "not_serialisable"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("limit", "code"), [({"max_agents": 2}, "agent_cap"), ({"budget_tokens": 15}, "BUDGET_EXHAUSTED")]
)
def test_a_limit_that_is_caught_is_told_alike(tmp_path: Path, limit: dict[str, Any], code: str) -> None:
    async def main() -> None:
        result = await in_both(tmp_path, OF_LIMITS, [], {}, **limit)
        assert [each[0]["code"] for each in result.value[:-1]] == [code] * 2
        assert result.value[-1]["code"] == code

    asyncio.run(main())


def test_a_script_that_looks_for_attributes_is_told_before_its_launch_what_there_is() -> None:
    body = """
try:
    await ctx.agent("x")
except RuntimeError as error:
    return error.code
"""
    with pytest.raises(errors.WorkflowInputError, match=r"line 6: .* `code`; ctx\.failure\(error\) has its code"):
        asyncio.run(check_inline(module(body)))
    asyncio.run(check_inline(module(body.replace("error.code", 'ctx.failure(error)["code"]'))))
