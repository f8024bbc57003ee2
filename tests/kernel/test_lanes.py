"""Each tool is in one lane, and only what is known to be harmless is out of `execute`."""

import pytest

from fanfold.contracts.messages import ASK_USER, ToolSpec
from fanfold.contracts.policy import LANES, ConfirmationPolicy, Lane
from fanfold.kernel.lanes import asks_person, lane_of


def spec(name: str, *, is_read_only: bool = False) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"}, is_read_only=is_read_only)


@pytest.mark.parametrize(
    ("tool", "lane"),
    [
        (spec("read", is_read_only=True), "query"),
        (spec("search", is_read_only=True), "query"),
        (spec("mcp__files__list", is_read_only=True), "query"),
        (spec("task"), "generate"),
        (spec("task", is_read_only=True), "generate"),
        (spec("update_plan", is_read_only=True), "control"),
        (spec(ASK_USER), "control"),
        (spec("write"), "execute"),
        (spec("bash"), "execute"),
        (spec("Task"), "execute"),
        (spec("mcp__files__task"), "execute"),
        (spec("unheard_of"), "execute"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_tool_is_in_the_lane_of_what_it_does(tool: ToolSpec, lane: Lane) -> None:
    assert lane_of(tool) == lane


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("tool", [spec("read", is_read_only=True), spec("task"), spec("update_plan"), spec("write")])
def test_calls_run_unasked_in_the_named_lanes_only(lane: Lane, tool: ToolSpec) -> None:
    assert asks_person(ConfirmationPolicy(yolo_lanes=(lane,)), tool) == (lane_of(tool) != lane)


def test_without_lanes_everything_is_asked_and_a_policy_that_is_off_asks_nothing() -> None:
    assert asks_person(None, spec("write"))
    assert asks_person(ConfirmationPolicy(), spec("write"))
    assert not asks_person(ConfirmationPolicy(enabled=False), spec("write"))
