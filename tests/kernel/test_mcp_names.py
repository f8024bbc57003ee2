"""Names of MCP tools: valid, different, and told apart by server, whatever a server calls them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.mcp_names import server_name_fault, tool_names
from fanfold.kernel.permissions import parse_rule

servers = st.from_regex(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*", fullmatch=True).filter(lambda name: len(name) <= 32)
own_names = st.lists(st.text() | st.from_regex(r"[a-z_.]{0,60}", fullmatch=True), unique=True, max_size=8)


@given(servers, own_names)
def test_names_are_valid_and_different(server: str, own: list[str]) -> None:
    names = tool_names(server, own)
    assert list(names) == own
    assert len(set(names.values())) == len(own)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names.values())


@given(servers, servers, own_names)
def test_a_rule_for_a_server_covers_its_tools_and_no_other(server: str, other: str, own: list[str]) -> None:
    rule = parse_rule(f"mcp__{server}")
    assert all(rule.names(name) for name in tool_names(server, own).values())
    if other.lower() != server.lower():
        assert not any(rule.names(name) for name in tool_names(other, own).values())


@given(servers, own_names, st.data())
def test_a_name_that_fits_is_kept_and_others_do_not_depend_on_their_neighbours(
    server: str, own: list[str], data: st.DataObject
) -> None:
    names = tool_names(server, own)
    assert tool_names(server, data.draw(st.permutations(own))) == names
    for each, name in names.items():
        assert tool_names(server, [each])[each] == name
        if re.fullmatch(r"[A-Za-z0-9_-]{1,20}", each):
            assert name == f"mcp__{server}__{each}"


def test_a_tool_that_has_taken_the_short_name_of_another_keeps_it() -> None:
    short = tool_names("s", ["a.b"])["a.b"].removeprefix("mcp__s__")
    names = tool_names("s", ["a.b", short])
    assert names[short] == f"mcp__s__{short}"
    assert names["a.b"] != names[short]


@pytest.mark.parametrize("name", ["", "a b", "a__b", "_a", "a_", "a.b", "é", "a\n", "a" * 33, "a/b"])
def test_names_of_servers_that_rules_could_not_tell_apart_are_refused(name: str) -> None:
    assert server_name_fault(name) is not None


@pytest.mark.parametrize("name", ["a", "A-1", "git_hub", "-", "a" * 32])
def test_plain_names_of_servers_are_fine(name: str) -> None:
    assert server_name_fault(name) is None
