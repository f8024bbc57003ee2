"""A matcher lets through what its patterns mean, and no spelling of a path or a command slips past."""

from typing import Any

import pytest

from fanfold.contracts.governance import HookMatcher
from fanfold.kernel.hook_match import is_heard


def heard(matcher: HookMatcher, tool: str, **args: Any) -> bool:
    return is_heard(matcher, {"session_id": "s", "tool": tool, "args": args})


@pytest.mark.parametrize(
    ("pattern", "tool", "expected"),
    [
        ("write", "write", True),
        ("WRITE", "write", True),
        ("write", "writer", False),
        ("w*", "write", True),
        ("?rite", "write", True),
        ("*", "anything", True),
        ("mcp__files", "mcp__files__read", True),
        ("mcp__files", "mcp__files2__read", False),
        ("mcp__*__read", "mcp__files__read", True),
        ("", "write", False),
    ],
)
def test_a_tool_is_matched_by_its_name(pattern: str, tool: str, expected: bool) -> None:
    assert heard(HookMatcher(tool=pattern), tool) == expected


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("write", {"file_path": "secret/key"}, True),
        ("write", {"file_path": "./a/../secret/key"}, True),
        ("write", {"file_path": "secret\\key"}, True),
        ("write", {"file_path": "public/key"}, False),
        ("read", {"files": [{"path": "a"}, {"path": "secret/key"}]}, True),
        ("read", {"files": [{"path": "a"}, {}, 5]}, False),
        ("mcp__files__read", {"path": "secret/key"}, True),
        ("mcp__files__read", {"files": ["secret/key"]}, True),
        ("search", {"query": "secret/key"}, False),
        ("bash", {"command": "cat secret/key"}, False),
        ("write", {"file_path": 5}, False),
    ],
)
def test_a_path_is_matched_as_written_and_as_it_is(tool: str, args: dict[str, Any], expected: bool) -> None:
    assert heard(HookMatcher(path_pattern="secret/**"), tool, **args) == expected


def test_a_link_is_matched_by_its_own_name_and_by_where_it_leads() -> None:
    payload = {"tool": "write", "args": {"file_path": "link"}}
    for pattern, expected in (("link", True), ("target", True), ("other", False)):
        assert is_heard(HookMatcher(path_pattern=pattern), payload, lambda _: "target") == expected


@pytest.mark.parametrize("tool", ["ls", "search"])
def test_a_tool_that_looks_here_by_default_is_matched_so(tool: str) -> None:
    assert heard(HookMatcher(path_pattern="."), tool)
    assert not heard(HookMatcher(path_pattern="."), tool, path="src")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("rm a", True),
        ("cd x && rm -rf y", True),
        ("echo $(rm a)", True),
        ("sudo 'rm' a", True),
        ("echo rm", False),
        ("", False),
    ],
)
def test_a_command_is_matched_wherever_it_stands_in_the_line(command: str, expected: bool) -> None:
    assert heard(HookMatcher(command_pattern="rm:*"), "bash", command=command) == expected
    assert not heard(HookMatcher(command_pattern="rm:*"), "write", command=command)


def test_every_pattern_that_is_set_must_match() -> None:
    matcher = HookMatcher(tool="write", path_pattern="a*", session_id="s")
    assert heard(matcher, "write", file_path="a")
    assert not heard(matcher, "write", file_path="b")
    assert not heard(matcher, "edit", file_path="a")
    assert not is_heard(matcher, {"session_id": "t", "tool": "write", "args": {"file_path": "a"}})


@pytest.mark.parametrize("payload", [{}, {"tool": "write"}, {"tool": "bash", "args": "no object"}])
def test_patterns_match_nothing_where_there_is_nothing_to_match(payload: dict[str, Any]) -> None:
    assert is_heard(HookMatcher(), payload)
    for matcher in (HookMatcher(path_pattern="**"), HookMatcher(command_pattern="x*"), HookMatcher(session_id="s")):
        assert not is_heard(matcher, payload)
