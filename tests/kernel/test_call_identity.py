"""Two calls are the same call exactly when they mean the same, and a draw is the same in each attempt."""

import hashlib
import itertools
import json
import math
import unicodedata
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.policy import PermissionPolicy
from fanfold.errors import WorkflowInputError
from fanfold.kernel.call_identity import CallMeaning, agent_sha, call_identity, drawn_float, drawn_uuid

CALL = CallMeaning(prompt="Look for bugs.", agent="general", agent_sha="a" * 64)
FULL = CallMeaning(
    prompt="Look for bugs.",
    schema={"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}},
    agent="review",
    agent_sha="b" * 64,
    model="anthropic/claude",
    max_steps=5,
    isolation="worktree",
    tools=("read", "search"),
)


def identity(**fields: Any) -> str:
    return call_identity(msgspec.structs.replace(CALL, **fields))[0]


def test_an_identity_is_the_digest_of_sorted_json() -> None:
    for call in (CALL, FULL):
        found, written = call_identity(call)
        assert found == hashlib.sha256(written).hexdigest()
        fields = json.loads(written)
        assert list(fields) == sorted(
            ["v", "kind", "prompt", "schema", "agent", "agent_sha", "model", "max_steps", "isolation", "tools"]
        )
        assert json.dumps(fields, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode() == written


def test_identities_of_earlier_journals_stay_as_they_are() -> None:
    """Pinned: a change of them makes every recorded answer worthless."""
    assert call_identity(CALL)[0] == "ec43ee3ba746f284a6b5a43824a6cc77068fbc65d7b3076353f49a3d7efacd05"
    assert call_identity(FULL)[0] == "f0af5a3792a8f49c9bda872dcd23fef20ee0b2b505fee0d110f6558d9750ff7c"


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"prompt": "Look for bugs"},
        {"prompt": "Look for bugs. "},
        {"prompt": "Look for bugs.\n"},
        {"schema": {}},
        {"schema": True},
        {"agent": "review"},
        {"agent_sha": "b" * 64},
        {"agent_sha": None},
        {"model": "openai/gpt"},
        {"max_steps": 0},
        {"max_steps": 50},
        {"isolation": "worktree"},
        {"tools": ()},
        {"tools": ("read",)},
    ],
)
def test_whatever_a_call_means_counts(change: dict[str, Any]) -> None:
    assert identity(**change) != identity()


def test_each_byte_of_a_prompt_counts() -> None:
    texts = [
        "é",
        unicodedata.normalize("NFD", "é"),
        "a\nb",
        "a\r\nb",
        "a\rb",
        "a\u2028b",
        "a b",
        "a\u00a0b",
        "a\0b",
        "ab",
    ]
    assert len({identity(prompt=text) for text in texts}) == len(texts)


def test_no_text_can_pass_for_another_field() -> None:
    one = identity(prompt='x","schema":null', agent="y")
    two = identity(prompt="x", agent='y","schema":null')
    assert one != two
    for between, nothing in itertools.product(("|", "\0", "\n", ",", ", ", " "), ("None", "null", "")):
        # between prompt and agent stands a schema, which there is none of
        gap = f"{between}{nothing}{between}"
        assert identity(prompt=f"x{gap}y", agent="z") != identity(prompt="x", agent=f"y{gap}z")


def test_the_order_of_keys_in_a_schema_does_not_count_and_its_values_do() -> None:
    one = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": [1, 2]}}}
    two = {"properties": {"b": {"enum": [1, 2]}, "a": {"type": "string"}}, "type": "object"}
    assert identity(schema=one) == identity(schema=two)
    different = [{"const": 1}, {"const": 1.0}, {"const": True}, {"const": "1"}, {"enum": [1, 2]}, {"enum": [2, 1]}]
    assert len({identity(schema=each) for each in different}) == len(different)


@given(st.text(), st.text())
def test_equal_identities_are_equal_prompts(one: str, two: str) -> None:
    assert (identity(prompt=one) == identity(prompt=two)) == (one == two)


@pytest.mark.parametrize("change", [{"prompt": "\ud800"}, {"schema": {"const": object()}}, {"schema": {None: 1}}])
def test_what_json_cannot_hold_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WorkflowInputError) as caught:
        identity(**change)
    assert caught.value.code == "bad_call"


# ---- definitions ---------------------------------------------------------------------------------------------

AGENT = AgentDefinition(name="fixer", description="Fixes.", prompt="You fix.", tools=("edit",))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"prompt": "You fix it."},
        {"tools": ("edit", "read")},
        {"permissions": PermissionPolicy(deny=("bash",))},
        {"model": "openai/gpt"},
        {"max_steps": 10},
        {"confirmation_inheritance": "auto_approve"},
    ],
)
def test_whatever_makes_an_agent_do_what_it_does_counts(change: dict[str, Any]) -> None:
    assert agent_sha(msgspec.structs.replace(AGENT, **change)) != agent_sha(AGENT)


def test_what_only_others_see_of_an_agent_does_not_count() -> None:
    """A field that is new in definitions counts until somebody says here that it does not."""
    assert agent_sha(msgspec.structs.replace(AGENT, description="Repairs.", is_hidden=True)) == agent_sha(AGENT)
    assert len(agent_sha(AGENT)) == 64


# ---- draws ---------------------------------------------------------------------------------------------------


def test_draws_are_the_same_each_time_and_others_elsewhere() -> None:
    places = [("wf_a", "?0"), ("wf_a", "?1"), ("wf_b", "?0"), ("wf_a?0", ""), ("", "wf_a?0"), ("wf_a?", "0")]
    for draw in (drawn_float, drawn_uuid):
        drawn = [draw(seed, where) for seed, where in places]
        assert drawn == [draw(seed, where) for seed, where in places]
        assert len(set(drawn)) == len(places)


def test_draws_of_earlier_runs_stay_as_they_are() -> None:
    """Pinned: prompts are made of them."""
    assert drawn_float("wf_a_0123456789abcdef", "/0.1?3") == 0.06864763326316181
    assert drawn_uuid("wf_a_0123456789abcdef", "/0.1?3") == "2dfb0f16-ad86-8912-a637-c95045438bee"


@given(st.text(), st.text())
def test_a_float_is_below_one_and_a_uuid_is_one(seed: str, where: str) -> None:
    assert 0.0 <= drawn_float(seed, where) < 1.0
    drawn = uuid.UUID(drawn_uuid(seed, where))
    assert str(drawn) == drawn_uuid(seed, where)
    assert drawn.variant == uuid.RFC_4122
    assert drawn.version == 8


def test_floats_are_spread_evenly() -> None:
    count = 20_000
    drawn = [drawn_float("seed", f"?{number}") for number in range(count)]
    in_tenths = [sum(int(each * 10) == tenth for each in drawn) for tenth in range(10)]
    assert all(abs(each - count / 10) < 5 * math.sqrt(count / 10) for each in in_tenths)
    assert len(set(drawn)) == count
    assert any(each < 0.001 for each in drawn)
    assert any(each > 0.999 for each in drawn)
