"""What is no spec, item, stage, budget or option is refused by name, before anything runs."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold import Agent, AgentStepSpec, MapItem, MapStep, SessionOptions
from fanfold.contracts.messages import ModelRequest
from fanfold.errors import FanfoldError, InvalidSpecError, UsageError
from fanfold.testing import ScriptedModel

SPEC = {"task_id": "a", "agent": "answer", "prompt": "p"}
ITEM = MapItem(key="k", fields={"item": "x"})
STEP = MapStep(prompt="{item}")


def refused(tmp_path: Path, call: Any, says: str, error: type[Exception] = UsageError) -> None:
    model = ScriptedModel([])

    async def main() -> None:
        async with await Agent.create_async(models={"a/b": model}) as agent:
            session = await agent.session_async(tmp_path)
            with pytest.raises(error, match=says):
                await call(session)

    asyncio.run(main())
    assert model.requests == []


@pytest.mark.parametrize("specs", [5, None, "x", {"task_id": "a"}, [None], [5], ["x"], [{**SPEC, "prompt": 5}]])
def test_specs(tmp_path: Path, specs: Any) -> None:
    refused(tmp_path, lambda session: session.parallel_async(specs), "^invalid AgentStepSpec: ", InvalidSpecError)


def test_a_struct_is_checked_like_a_mapping(tmp_path: Path) -> None:
    wrong: Any = AgentStepSpec(task_id="a", agent="answer", prompt="p", max_steps="5")  # type: ignore[arg-type]
    says = r"specs\[0\].max_steps: Expected `int"
    refused(tmp_path, lambda session: session.parallel_async([wrong]), says, InvalidSpecError)


@pytest.mark.parametrize("budget", [-1, 1.5, True, "5", [], float("nan")])
def test_budgets(tmp_path: Path, budget: Any) -> None:
    refused(tmp_path, lambda session: session.parallel_async([SPEC], budget_tokens=budget), "a token budget must be")


@pytest.mark.parametrize(("stages", "says"), [([5], r"stages\[0\] is a int"), (["x"], r"stages\[0\] is a str")])
def test_stages(tmp_path: Path, stages: Any, says: str) -> None:
    refused(tmp_path, lambda session: session.pipeline_async([1], stages), says)


@pytest.mark.parametrize("timeout_ms", [0, -1, "5", 1.5, float("nan")])
def test_stage_timeouts(tmp_path: Path, timeout_ms: Any) -> None:
    refused(tmp_path, lambda session: session.pipeline_async([1], [], timeout_ms=timeout_ms), "timeout_ms must be")


@pytest.mark.parametrize("item", [float("nan"), {1, 2}, object(), "\ud800"])
def test_pipeline_items(tmp_path: Path, item: Any) -> None:
    says = r"items\[0\] is no JSON data"
    refused(tmp_path, lambda session: session.pipeline_async([item], [lambda ctx: None]), says, TypeError)


@pytest.mark.parametrize(
    ("items", "steps", "says"),
    [
        ([5], [STEP], r"items\[0\]: Expected `object`"),
        ([{"key": "k"}], [STEP], r"items\[0\]: Object missing required field `fields`"),
        ([MapItem(key="k", fields={"item": 5})], [STEP], r"items\[0\]: Expected `str`"),  # type: ignore[dict-item]
        ([ITEM], [5], r"steps\[0\]: Expected `object`"),
        ([ITEM], [{"prompt": "{item}", "agnt": "x"}], r"steps\[0\]: Object contains unknown field `agnt`"),
        ([ITEM], [{"prompt": " "}], r"steps\[0\]: the prompt is empty"),
        ([ITEM], [MapStep(prompt="x", max_steps=-1)], r"steps\[0\]: Expected `int` >= 0"),
        ([ITEM], [MapStep(prompt="x", output_schema={"type": "nonsense"})], r"steps\[0\]: .*schema"),
    ],
)
def test_items_and_steps_of_a_map(tmp_path: Path, items: Any, steps: Any, says: str) -> None:
    refused(tmp_path, lambda session: session.map_async(items, steps), says)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model", 5),
        ("approvals", "maybe"),
        ("max_parallel_tasks", 0),
        ("max_parallel_tasks", "5"),
        ("max_tool_rounds", -1),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("instructions", 5),
        ("allow_unsandboxed_bash", "no"),
        ("permission_policy", 5),
        ("host_env", 5),
        ("tenant_id", 5),
    ],
)
def test_session_options(tmp_path: Path, option: str, value: Any) -> None:
    async def main() -> None:
        async with await Agent.create_async(models={"a/b": ScriptedModel([])}) as agent:
            with pytest.raises(FanfoldError, match=option):
                await agent.session_async(tmp_path, **{option: value})
            options = SessionOptions()
            setattr(options, option, value)
            with pytest.raises(FanfoldError, match=option):
                await agent.session_async(tmp_path, options)

    asyncio.run(main())


# ---- what is accepted ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class AsDataclass:
    yes: bool


class AsStruct(msgspec.Struct):
    yes: bool


class AsModel:
    """What a pydantic model class offers."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}

    @classmethod
    def model_validate(cls, value: Any) -> "AsModel":
        return cls()


@pytest.mark.parametrize("schema", [AsDataclass, AsStruct, AsModel, AsModel.model_json_schema()])
def test_a_schema_may_be_a_class(tmp_path: Path, schema: Any) -> None:
    model = ScriptedModel(lambda _: '{"yes": true}')

    async def main() -> None:
        async with await Agent.create_async(models={"a/b": model}) as agent:
            session = await agent.session_async(tmp_path)
            [outcome] = await session.parallel_async([{**SPEC, "output_schema": schema}])
            assert outcome.structured == {"yes": True}
            steps = [{"prompt": "about {item}", "output_schema": schema}]
            [row] = (await session.map_async([{"key": "k", "fields": {"item": "x"}}], steps)).rows
            assert row.outcome.structured == {"yes": True}

    asyncio.run(main())


def test_a_stage_that_stops_is_logged_when_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stage(ctx: dict[str, Any]) -> Any:
        raise KeyError("oops")

    def never(_: ModelRequest) -> str:
        raise AssertionError

    async def main() -> None:
        async with await Agent.create_async(models={"a/b": ScriptedModel(never)}) as agent:
            session = await agent.session_async(tmp_path)
            assert await session.pipeline_async([1], [stage]) == [None]

    asyncio.run(main())
    assert [each.getMessage() for each in caplog.records] == ["stage 0 of item 0: it raised KeyError: 'oops'"]
