"""Laws of a step with an output schema, from the wire to the instance."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentEvent, StepOutcome
from fanfold.protocols import ModelCapabilities
from fanfold.providers.http import HttpTransport
from fanfold.testing import ScriptedModel
from tests.providers.calls import BOTH_WIRES, OPENAI, provider
from tests.session.test_steps import run_steps, step
from tests.support.chat_server import Call, ChatServer, Say

ANSWER = '{"city": "San Francisco", "people": 800000}'
MODES = [(wire, mode) for wire in BOTH_WIRES for mode in ("forced_tool", "prompt", "json_schema")]


@dataclass
class Place:
    city: str
    people: int = 0


def asked(workspace: Path, wire: Callable[..., Any], mode: str, said: Say) -> tuple[StepOutcome, list[AgentEvent], int]:
    """The outcome of one step that asks for a `Place`, what its listener heard, and the number of model calls."""

    async def main() -> tuple[StepOutcome, list[AgentEvent], int]:
        transport, heard = HttpTransport(), list[AgentEvent]()
        async with ChatServer([said]) as server:
            client = wire(transport, provider(server.base_url, structured_output=mode), None, "m")
            async with await Agent.create_async(models={"a/b": client}) as agent:
                session = await agent.session_async(workspace, stream_partials=True)
                [outcome] = await session.parallel_async([step("t", output_schema=Place)], events=heard.append)
            await transport.close()
            return outcome, heard, len(server.requests)

    return asyncio.run(main())


@pytest.mark.parametrize(("wire", "mode"), [each for each in MODES if each[0] is OPENAI or each[1] != "json_schema"])
def test_a_class_comes_back_as_its_instance_and_is_seen_arriving_on_each_wire(
    tmp_path: Path, wire: Callable[..., Any], mode: str
) -> None:
    said = Say(calls=(Call("emit_step_output", ANSWER),)) if mode == "forced_tool" else Say(ANSWER)
    outcome, heard, model_calls = asked(tmp_path, wire, mode, said)
    assert outcome.parsed == Place("San Francisco", 800000)
    assert model_calls == 1
    partials = [item.payload["object"] for item in heard if item.type == "structured_partial"]
    assert len(partials) > 1
    assert partials[0] != partials[-1]


@pytest.mark.parametrize("wire", BOTH_WIRES)
def test_an_answer_that_stands_in_the_reasoning_alone_is_found(tmp_path: Path, wire: Callable[..., Any]) -> None:
    said = Say(reasoning=ANSWER, stop="stop" if wire is OPENAI else "end_turn")
    outcome, heard, _ = asked(tmp_path, wire, "prompt", said)
    assert outcome.parsed == Place("San Francisco", 800000)
    assert [item for item in heard if item.type == "structured_partial"] == []


def test_a_repair_is_asked_for_without_tools_so_that_it_can_be_forced(tmp_path: Path) -> None:
    model = ScriptedModel(["no", '{"city": "x"}'], capabilities=ModelCapabilities(structured="forced_tool"))
    [outcome] = run_steps(tmp_path, model, step("t", agent="explore", output_schema=Place))
    assert outcome.parsed == Place("x")
    first, repair = model.requests
    assert first.tools
    assert first.output_schema is None
    assert not repair.tools
    assert repair.output_schema is not None


def test_partials_are_streamed_only_on_request(tmp_path: Path) -> None:
    heard: list[AgentEvent] = []
    run_steps(tmp_path, ScriptedModel([ANSWER]), step("t", output_schema=Place), events=heard.append)
    assert [item for item in heard if item.type == "structured_partial"] == []
