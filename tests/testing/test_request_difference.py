"""Laws of a miss: the nearest recording is shown, with everything that differs and nothing that does not."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.messages import AssistantMessage, ModelRequest, ToolCall, ToolMessage, UserMessage
from fanfold.testing import Cassette, CassetteMissError, ScriptedModel
from fanfold.testing.recorded_call import recorded_request
from fanfold.testing.request_difference import MAX_DIFF_LINES, MAX_LINE, difference
from tests.testing.model_calls import READ, ask, request

BASE = request("look at it", AssistantMessage("I do."), "and now?", tools=(READ,))


def between(recorded: ModelRequest, asked: ModelRequest) -> str:
    return difference(recorded_request(recorded), recorded_request(asked))


def changed(**fields: Any) -> ModelRequest:
    return request("look at it", AssistantMessage("I do."), "and now?", **{"tools": (READ,), **fields})


def tool(**fields: Any) -> Any:
    return type(READ)(**{"name": "read", "description": READ.description, "parameters": READ.parameters, **fields})


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (BASE, ""),
        (changed(model="m2"), "model: recorded 'm', asked 'm2'"),
        (changed(temperature=0.2), "temperature: recorded None, asked 0.2"),
        (changed(max_output_tokens=7), "max_output_tokens: recorded None, asked 7"),
        (changed(system="Be long."), "system:  (- recorded, + asked)\n  -Be brief.\n  +Be long."),
        (changed(output_schema={"type": "object"}), "output_schema: recorded None, asked {'type': 'object'}"),
        (changed(tools=()), "tools: only recorded: read"),
        (changed(tools=(READ, tool(name="grep"))), "tools: only asked: grep"),
        (
            changed(tools=(tool(description="Read a file.\nIt is changed."),)),
            "tools.read.description:  (- recorded, + asked)\n"
            "  @@ line 1 @@\n   Read a file.\n  -It is not changed.\n  +It is changed.",
        ),
        (
            request("look at it", AssistantMessage("I do."), "and then? ", tools=(READ,)),
            "messages[2].text (user):  (- recorded, + asked)\n  -and now?\n  +and then?·",
        ),
        (
            request("look at it", tools=(READ,)),
            'messages[1]: only recorded: {"role":"assistant","text":"I do."}\n'
            'messages[2]: only recorded: {"role":"user","text":"and now?"}',
        ),
        (
            request("look at it", ToolMessage("c", "read", False, "no"), "and now?", tools=(READ,)),
            'messages[1]: recorded {"role":"assistant","text":"I do."}\n'
            'messages[1]: asked    {"role":"tool","call_id":"c","name":"read","ok":false,"output":"no"}',
        ),
        (
            request("look at it", AssistantMessage("I do.", (ToolCall("c", "read", {}),)), "and now?", tools=(READ,)),
            "messages[1].calls (assistant): recorded None, asked [{'id': 'c', 'name': 'read', 'args': {}}]",
        ),
    ],
)
def test_what_differs_is_shown_and_nothing_else(asked: ModelRequest, shown: str) -> None:
    assert between(BASE, asked) == shown


def test_arguments_of_calls_are_compared_line_by_line() -> None:
    def calling(path: str) -> ModelRequest:
        return request("x", AssistantMessage("", (ToolCall("c", "read", {"path": path, "n": 1}),)))

    shown = between(calling("a.py"), calling("b.py")).split("\n")
    assert shown[0] == "messages[1].calls (assistant):  (- recorded, + asked)"
    assert [line.strip() for line in shown if line[2] in "-+"] == ['-      "path": "a.py"', '+      "path": "b.py"']


def test_tools_in_another_order_are_told_as_such() -> None:
    other = tool(name="grep")
    shown = between(request("x", tools=(READ, other)), request("x", tools=(other, READ)))
    assert shown == "tools: recorded in the order read, grep; asked in the order grep, read"


def test_a_long_line_is_cut_to_where_it_differs() -> None:
    start, end = "a" * 5_000, "b" * 5_000
    shown = between(request(f"{start}OLD{end}"), request(f"{start}NEW{end}")).split("\n")
    assert len(shown) == 3
    assert all(len(line) < MAX_LINE + 10 for line in shown)
    assert shown[1].startswith("  -…aaa")
    assert "aOLDb" in shown[1]
    assert "aNEWb" in shown[2]
    assert shown[2].endswith("b…")


def test_a_long_difference_is_cut() -> None:
    old, new = ("\n".join(f"{word} {number}" for number in range(500)) for word in ("old", "new"))
    shown = between(request(old), request(new)).split("\n")
    assert len(shown) == MAX_DIFF_LINES + 2
    assert "more lines of this difference" in shown[-1]


def test_nothing_in_a_difference_speaks_to_the_terminal() -> None:
    shown = between(request("a\x1b[31m\r"), request("b\x07"))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "-a\\x1b[31m\\r" in shown


# ---- a miss ---------------------------------------------------------------------------------------------------------


def miss_of(cassette: Cassette, asked: ModelRequest) -> CassetteMissError:
    with pytest.raises(CassetteMissError) as raised:
        ask(cassette, asked)
    assert cassette.misses[-1] is raised.value
    return raised.value


def recorded(path: Path, *requests: ModelRequest) -> Cassette:
    ask(Cassette(path, "record", inner=ScriptedModel(lambda _: "yes")), *requests)
    return Cassette(path)


def test_a_miss_shows_the_nearest_recording_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    cassette = recorded(path, request("count the apples"), request("what is the weather in Bergen?"), request("sing"))
    ask(cassette, request("sing"))
    miss = miss_of(cassette, request("what is the weather in Oslo?"))
    near = recorded_request(request("what is the weather in Bergen?")).id()
    lines = path.read_text().split("\n")
    line = max(at for at in range(lines.index(f'      "id": "{near}",')) if lines[at] == "    {") + 1
    assert str(miss) == (
        f"{path} has no recording of this request (3 recorded, 2 not asked for yet).\n"
        f"The nearest one, {near} at line {line}, differs in\n"
        "  messages[0].text (user):  (- recorded, + asked)\n"
        "    -what is the weather in Bergen?\n"
        "    +what is the weather in Oslo?\n"
        f'To record: Cassette({str(path)!r}, "record", inner=<a ModelClient>)'
    )
    assert miss.difference in str(miss).replace("\n  ", "\n")
    assert miss.path == str(path)


def test_of_two_that_are_equally_near_the_one_that_was_not_asked_for_is_shown(tmp_path: Path) -> None:
    cassette = recorded(tmp_path / "c.json", request("ab 1"), request("ab 2"))
    assert "-ab 1" in str(miss_of(cassette, request("ab 3")))
    ask(cassette, request("ab 1"))
    assert "-ab 2" in str(miss_of(cassette, request("ab 3")))


def test_the_nearest_of_a_conversation_is_the_one_with_the_same_past(tmp_path: Path) -> None:
    past = ("tell me about trees", AssistantMessage("They are tall."))
    cassette = recorded(
        tmp_path / "c.json",
        request("go on, please"),
        request(*past, "go on, I beg you"),
        request("tell me about trees"),
    )
    shown = str(miss_of(cassette, request(*past, "go on, please")))
    assert "messages[2].text" in shown
    assert "-go on, I beg you" in shown


def test_a_miss_without_any_recording_shows_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    assert str(miss_of(Cassette(path, record_hint="press the red button"), request("hello"))) == (
        f"the cassette {path} does not exist; asked was:\n"
        "  model m, 1 messages, the newest (user): hello\nTo record: press the red button"
    )


def test_a_miss_is_an_assertion_error_that_can_be_pickled(tmp_path: Path) -> None:
    miss = miss_of(recorded(tmp_path / "c.json", request("a")), request("b"))
    assert isinstance(miss, AssertionError)
    again = pickle.loads(pickle.dumps(miss))
    assert (type(again), str(again), vars(again)) == (CassetteMissError, str(miss), vars(miss))
    assert miss.code == "CASSETTE_MISS"


def test_a_thousand_recordings_are_compared_within_moments(tmp_path: Path) -> None:
    cassette = recorded(tmp_path / "c.json", *[request(f"{number} {'word ' * 900}") for number in range(1_000)])
    near = recorded_request(request(f"777 {'word ' * 900}")).id()
    assert near in str(miss_of(cassette, request(f"777 {'word ' * 900}!")))


def test_misses_of_calls_at_once_are_all_kept(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "c.json")

    async def main() -> None:
        results = await asyncio.gather(
            *[cassette.generate(request(UserMessage(str(number)))) for number in range(5)], return_exceptions=True
        )
        assert results == cassette.misses

    asyncio.run(main())
    assert len(cassette.misses) == 5
