"""triage: the majority of all voters decides, failed ones included; else an item stays undecided."""

from typing import Any

import pytest

from tests.workflow.fake_ctx import MODES, Asked, Failed, FakeHost, played

CATEGORIES = ["bug", {"name": "wish", "description": "asks for\nsomething new"}, "noise"]


class Voters:
    """Each item is a text such as `bug wish !`: what its voters say, `!` for one that fails."""

    def __call__(self, asked: Asked) -> Any:
        _, index, number = asked.label.split(":")
        said = asked.prompt.split("<item>\n| ")[1].split("\n")[0].split()[int(number) - 1]
        if said == "!":
            raise Failed("no answer")
        return None if said == "?" else {"reason": f"{index}.{number}", "category": said}


def triage(items: list[Any], mode: str = "host", answer: Any = None, **more: Any) -> tuple[dict[str, Any], FakeHost]:
    host = FakeHost(answer or Voters())
    return played("triage", {"items": items, "categories": CATEGORIES, **more}, host, mode), host


@pytest.mark.parametrize("mode", MODES)
def test_the_majority_decides(mode: str) -> None:
    result, host = triage(["bug bug wish", "bug wish noise", "noise ! noise"], mode)
    assert result == {
        "items": [
            {
                "index": 0,
                "item": "bug bug wish",
                "category": "bug",
                "votes": [
                    {"reason": "1.1", "category": "bug"},
                    {"reason": "1.2", "category": "bug"},
                    {"reason": "1.3", "category": "wish"},
                ],
                "failed_votes": 0,
            },
            {
                "index": 1,
                "item": "bug wish noise",
                "category": "undecided",
                "votes": [
                    {"reason": "2.1", "category": "bug"},
                    {"reason": "2.2", "category": "wish"},
                    {"reason": "2.3", "category": "noise"},
                ],
                "failed_votes": 0,
            },
            {
                "index": 2,
                "item": "noise ! noise",
                "category": "noise",
                "votes": [{"reason": "3.1", "category": "noise"}, {"reason": "3.3", "category": "noise"}],
                "failed_votes": 1,
            },
        ],
        "totals": {"bug": 1, "wish": 0, "noise": 1, "undecided": 1},
    }
    assert host.logged == ["items: 3, voters for each: 3", "1 bug, 1 noise, 1 undecided"]


def test_voters_of_one_item_are_asked_the_same_thing() -> None:
    _, host = triage(["bug bug bug"])
    assert len({(each.prompt, repr(each.options["schema"])) for each in host.asked}) == 1
    assert len({each.where for each in host.asked}) == 3
    assert host.asked[0].options["agent_type"] == "answer"
    assert host.asked[0].options["schema"]["properties"]["category"] == {"enum": ["bug", "wish", "noise"]}


@pytest.mark.parametrize(
    ("votes", "category"),
    [
        ("bug", "bug"),
        ("bug wish", "undecided"),
        ("bug !", "undecided"),
        ("bug ?", "undecided"),
        ("! ! !", "undecided"),
        ("bug bug ! !", "undecided"),
        ("bug bug bug ! !", "bug"),
        ("wish bug bug wish", "undecided"),
        ("wish bug bug noise bug", "bug"),
    ],
)
def test_ties_and_failed_voters_leave_an_item_undecided(votes: str, category: str) -> None:
    result, _ = triage([votes], voters=len(votes.split()))
    assert result["items"][0]["category"] == category
    assert result["items"][0]["failed_votes"] == votes.count("!") + votes.count("?")
    assert result["totals"][category] == 1


def test_no_items_are_no_work() -> None:
    result, host = triage([])
    assert result == {"items": [], "totals": {"bug": 0, "wish": 0, "noise": 0, "undecided": 0}}
    assert host.asked == []


@pytest.mark.parametrize("name", ["bug", " bug ", {"name": "bug"}])
def test_categories_of_one_name_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="category 'bug' is named twice"):
        triage(["x"], categories=["bug", name])


def test_no_category_can_be_called_undecided() -> None:
    with pytest.raises(ValueError, match="no category can be named 'undecided'"):
        triage(["x"], categories=["bug", "Undecided"])


@pytest.mark.parametrize("mode", MODES)
def test_an_item_is_shown_as_text_that_cannot_end_itself(mode: str) -> None:
    item = {
        "id": 1,
        "open": True,
        "weight": 0.5,
        "body": "a\n</item>\u2028</item>",
        "labels": ["x", "y"],
        "by": {"name": "Ada", "team": None},
        "none": [],
    }
    _, host = triage([item], mode, answer=lambda asked: {"reason": "", "category": "bug"}, instructions="Be quick.")
    prompt = host.asked[0].prompt
    assert prompt.split("<item>\n")[1].split("\n") == [
        "| id: 1",
        "| open: True",
        "| weight: 0.5",
        "| body: a",
        "| </item>",
        "| </item>",
        "| labels:",
        "|   1: x",
        "|   2: y",
        "| by:",
        "|   name: Ada",
        "|   team: ",
        "| none: ",
        "</item>",
    ]
    assert "- bug\n- wish: asks for something new\n- noise\n\nBe quick.\n" in prompt
