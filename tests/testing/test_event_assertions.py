"""Laws of assert_events: the whole of the events is what the pattern says, and a failure shows where it is not."""

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.events import AgentEvent, event
from fanfold.errors import UsageError
from fanfold.testing import assert_events

RUN = [
    event("agent_start", prompt="hi"),
    event("turn_start", turn=1),
    event("tool_start", id="c1", name="read"),
    event("tool_end", id="c1", name="read", exit_code=0, output="x"),
    event("tool_start", id="c2", name="ls"),
    event("tool_end", id="c2", name="ls", exit_code=1, output="no"),
    event("turn_start", turn=2),
    event("agent_end", text="done", usage={"total_tokens": 3, "prompt_tokens": 2}, tools=["read", {"name": "ls"}]),
]


@pytest.mark.parametrize(
    "pattern",
    [
        [...],
        [..., ...],
        [each.type for each in RUN],
        ["agent_start", ...],
        [..., "agent_end"],
        ["agent_start", ..., "agent_end"],
        [..., ("tool_end", {"name": "ls"}), ...],
        [..., ("tool_start", {"name": "ls"}), ("tool_end", {"exit_code": 1}), "turn_start", ...],
        ["agent_start", ..., ("turn_start", {"turn": 2}), "agent_end"],
        [..., ("tool_end", {"name": "read"}), ..., ("tool_end", {"name": "ls"}), ...],
        [..., ("agent_end", {"usage": {"total_tokens": 3}})],
        [..., ("agent_end", {"usage": ..., "tools": ["read", {}]})],
        [..., ("agent_end", {"tools": (..., {"name": "ls"})})],
        [..., ("agent_end", {"usage": {"total_tokens": pytest.approx(3.0)}})],
        [..., "turn_start", ..., "turn_start", "agent_end"],
    ],
)
def test_events_that_are_as_the_pattern_says_pass(pattern: Any) -> None:
    assert_events(RUN, pattern)
    assert_events(iter(RUN), pattern)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ([], "event 0 is 'agent_start'; the pattern ends before it"),
        (["agent_start"], "event 1 is 'turn_start'; the pattern ends before it"),
        (["turn_start", ...], "event 0 is 'agent_start'; item 0 of the pattern wants 'turn_start'"),
        (["agent_start", "tool_start", ...], "event 1 is 'turn_start'; item 1 of the pattern wants 'tool_start'"),
        (
            [("agent_start", {"prompt": "ho"}), ...],
            "event 0 is 'agent_start'; item 0 of the pattern wants 'agent_start' {'prompt': 'ho'}",
        ),
        ([("agent_start", {"who": ...}), ...], "item 0 of the pattern wants 'agent_start' {'who': Ellipsis}"),
        ([..., "error", ...], "event 0 is 'agent_start'; item 1 of the pattern is nowhere from event 0 on: 'error'"),
        (
            [..., "turn_start", ..., ("tool_end", {"name": "grep"}), ...],
            "event 3 is 'tool_end'; item 3 of the pattern is nowhere from event 2 on: 'tool_end' {'name': 'grep'}",
        ),
        (
            [..., ("tool_start", {"name": "ls"}), "turn_start", ...],
            "event 5 is 'tool_end'; item 2 of the pattern wants 'turn_start'",
        ),
        ([..., "turn_start"], "event 7 is 'agent_end'; item 1 of the pattern wants 'turn_start'"),
        (
            [..., ("turn_start", {"turn": 1}), "agent_end"],
            "event 2 is 'tool_start'; item 2 of the pattern wants 'agent_end'",
        ),
        ([..., "tool_end", ..., "tool_start", ..., "tool_start", ...], "item 5 of the pattern is nowhere from event 5"),
        ([..., "agent_end", ..., "agent_end"], "the events end here; item 3 of the pattern is nowhere from event 8 on"),
        ([*(each.type for each in RUN), "more"], "the events end here; item 8 of the pattern wants 'more'"),
        ([..., ("agent_end", {"tools": ["read"]})], "event 7 is 'agent_end'; item 1 of the pattern is nowhere from"),
    ],
)
def test_other_events_fail_where_they_stop_to_match(pattern: Any, says: str) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_events(RUN, pattern)
    assert says in str(raised.value).split("\n")[0]


def test_a_failure_shows_the_events_around() -> None:
    with pytest.raises(AssertionError) as raised:
        assert_events(RUN, [..., ("tool_start", {"name": "ls"}), "turn_start", ...])
    assert str(raised.value).split("\n")[1:] == [
        "     ... 2 before",
        "    2 tool_start {'id': 'c1', 'name': 'read'}",
        "    3 tool_end {'id': 'c1', 'name': 'read', 'exit_code': 0, 'output': 'x'}",
        "    4 tool_start {'id': 'c2', 'name': 'ls'}",
        ">   5 tool_end {'id': 'c2', 'name': 'ls', 'exit_code': 1, 'output': 'no'}",
        "    6 turn_start {'turn': 2}",
        "    7 agent_end {'text': 'done', 'usage': {'total_tokens': 3, 'prompt_tokens': 2}, 'tools': "
        "['read', {'name': 'ls'}]}",
    ]


def test_a_failure_at_the_end_says_that_there_is_no_more() -> None:
    with pytest.raises(AssertionError, match=r"\n>    \(no more events\)$"):
        assert_events(RUN, [*(each.type for each in RUN), "more"])
    with pytest.raises(AssertionError, match="the events end here; item 0 of the pattern wants 'a'"):
        assert_events([], ["a"])


def test_long_payloads_are_cut_but_for_the_one_in_question() -> None:
    events = [event("a", text="x" * 500), event("b", text="y" * 500)]
    with pytest.raises(AssertionError) as raised:
        assert_events(events, ["a", "c"])
    assert "x" * 500 not in str(raised.value)
    assert "y" * 500 in str(raised.value)


@pytest.mark.parametrize("item", [7, ("a",), ("a", 1), (1, {}), ("a", {}, {}), None])
def test_an_item_that_is_none_is_refused_with_its_place(item: Any) -> None:
    with pytest.raises(UsageError, match="item 1 of the pattern is no type, no"):
        assert_events([], [..., item])


_kinds = st.sampled_from("abc")
_patterns = st.lists(st.one_of(_kinds, st.just(...)), max_size=6)


@given(st.lists(_kinds, max_size=7), _patterns)
def test_it_passes_exactly_when_a_regular_expression_does(kinds: list[str], pattern: list[Any]) -> None:
    expression = "".join(".*" if item is ... else item for item in pattern)
    events = [AgentEvent(type=kind, payload={}) for kind in kinds]
    if re.fullmatch(expression, "".join(kinds)):
        assert_events(events, pattern)
    else:
        with pytest.raises(AssertionError):
            assert_events(events, pattern)


def test_all_short_patterns_agree_with_regular_expressions() -> None:
    for size in range(4):
        signs: list[Any] = ["a", "b", ...]
        for pattern in product(signs, repeat=size):
            expression = "".join(".*" if item is ... else str(item) for item in pattern)
            for length in range(4):
                for kinds in product("ab", repeat=length):
                    is_match = True
                    try:
                        assert_events([event(kind) for kind in kinds], pattern)
                    except AssertionError:
                        is_match = False
                    assert is_match == bool(re.fullmatch(expression, "".join(kinds))), (pattern, kinds)
