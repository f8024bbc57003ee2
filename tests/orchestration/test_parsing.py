"""A class given as `output_schema` comes back as its instance; what it refuses is a failure, and no other is lost."""

import copy
import dataclasses
import datetime
import enum
import pickle
from typing import Any, TypedDict

import msgspec
import pytest

from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.orchestration.parsing import parsers_of, with_parsed
from fanfold.orchestration.specs import parse_specs


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Finding(msgspec.Struct):
    title: str
    level: Level = Level.LOW
    line: int | None = None

    def __post_init__(self) -> None:
        if not self.title:
            raise ValueError("a title is needed")
        if self.title == "bug":
            raise KeyError("no such thing")


@dataclasses.dataclass
class Point:
    x: int
    seen: datetime.date | None = None
    names: dict[int, str] = dataclasses.field(default_factory=dict[int, str])


class Pair(TypedDict):
    left: int


class Model:
    """Has the methods of a pydantic model."""

    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

    @classmethod
    def model_validate(cls, value: Any) -> "Model":
        if value["name"] == "nobody":
            raise ValueError("nobody is no name")
        return cls(value["name"])


def spec(output_schema: Any = None) -> dict[str, Any]:
    return {"task_id": "t", "agent": "answer", "prompt": "p", "output_schema": output_schema}


def outcome(structured: Any, **fields: Any) -> StepOutcome:
    given = {"task_id": "t", "session_id": "s", "agent": "a", "output": "said", "success": True, **fields}
    return StepOutcome(structured=structured, **given)


def parsed_by(source: Any, structured: Any) -> StepOutcome:
    [parser] = parsers_of([spec(source)])
    return with_parsed(outcome(structured), parser)


@pytest.mark.parametrize(
    ("source", "structured", "instance"),
    [
        (Finding, {"title": "leak", "level": "high", "line": 3}, Finding("leak", Level.HIGH, 3)),
        (Point, {"x": 1, "seen": "2024-02-29"}, Point(1, datetime.date(2024, 2, 29))),
        (Point, {"x": 1, "names": {"7": "seven"}}, Point(1, None, {7: "seven"})),
        (Pair, {"left": 1}, {"left": 1}),
        (list[Finding], [{"title": "leak"}], [Finding("leak")]),
        (Finding | None, None, None),
        (Point, {"x": 2.0}, Point(2)),
    ],
)
def test_a_value_becomes_an_instance_of_its_class(source: Any, structured: Any, instance: Any) -> None:
    found = parsed_by(source, structured)
    assert found.success
    assert found.parsed == instance
    assert found.structured == structured


def test_a_model_validates_its_value() -> None:
    found = parsed_by(Model, {"name": "Ada"})
    assert isinstance(found.parsed, Model)
    assert found.parsed.name == "Ada"


@pytest.mark.parametrize(
    ("source", "structured", "why"),
    [
        (Finding, {"title": ""}, "$: a title is needed"),
        (list[Finding], [{"title": "x"}, {"title": ""}], "$[1]: a title is needed"),
        (Finding, {"title": "bug"}, "KeyError: 'no such thing'"),
        (Finding, {"title": "x", "line": "3"}, "$.line: Expected `int | null`, got `str`"),
        (Model, {"name": "nobody"}, "ValueError: nobody is no name"),
        (Finding, None, "$: Expected `object`, got `null`"),
    ],
)
def test_what_the_class_refuses_is_a_failure_that_says_why(source: Any, structured: Any, why: str) -> None:
    found = parsed_by(source, structured)
    assert (found.success, found.structured, found.parsed) == (False, None, None)
    assert found.output == f"said\n\n[structured output failed: {why}]"
    assert "structured" not in found


def test_only_classes_have_parsers() -> None:
    plain = [None, True, {"type": "object"}]
    assert parsers_of([spec(each) for each in plain]) == [None, None, None]
    [parser, other] = parsers_of([AgentStepSpec(**spec(Point)), {"task_id": "t", "agent": "a", "prompt": "p"}])
    assert parser is not None
    assert parser({"x": 1}) == Point(1)
    assert other is None


def test_the_specs_are_left_as_they_were_given() -> None:
    given = [spec(Finding)]
    [step], [parser] = parse_specs(given), parsers_of(given)
    assert isinstance(step.output_schema, dict)
    assert parser is not None
    assert given == [spec(Finding)]


def test_without_a_parser_or_a_success_an_outcome_stays_itself() -> None:
    [parser] = parsers_of([spec(Point)])
    good, bad = outcome({"x": 1}), outcome(None, success=False)
    assert with_parsed(good, None) is good
    assert with_parsed(bad, parser) is bad
    assert good.parsed is None


def test_the_instance_is_no_part_of_the_record() -> None:
    plain, found = outcome({"x": 1}), parsed_by(Point, {"x": 1})
    assert found.parsed == Point(1)
    assert plain.parsed is None
    assert found == plain
    assert "parsed" not in found
    assert found.get("parsed") is None
    assert found.keys() == plain.keys()
    assert dict(found) == found.to_dict() == plain.to_dict()
    assert msgspec.json.encode(found) == msgspec.json.encode(plain)
    assert msgspec.to_builtins(found) == msgspec.to_builtins(plain)
    assert repr(found) == repr(plain)
    assert "parsed" not in StepOutcome.__struct_fields__


def test_a_copy_is_an_outcome_without_the_instance() -> None:
    found = parsed_by(Point, {"x": 1})
    again = msgspec.json.decode(msgspec.json.encode(found), type=StepOutcome)
    for each in (again, copy.copy(found), pickle.loads(pickle.dumps(found)), msgspec.structs.replace(found)):
        assert each == found
        assert each.parsed is None
    assert found.parsed == Point(1)


def test_an_outcome_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        outcome(None).parsed = 1  # type: ignore[misc]


def test_the_outcome_that_was_given_is_not_touched() -> None:
    shared = outcome({"x": 1})
    [parser] = parsers_of([spec(Point)])
    assert with_parsed(shared, parser).parsed == Point(1)
    assert shared.parsed is None


def test_a_strict_pydantic_model_reads_dates_and_names_every_fault() -> None:
    pydantic = pytest.importorskip("pydantic")
    made = pydantic.create_model(
        "Made", __config__={"strict": True}, day=(datetime.date, ...), size=(int, pydantic.Field(ge=1))
    )
    good = parsed_by(made, {"day": "2024-02-29", "size": 2.0})
    assert (good.parsed.day, good.parsed.size) == (datetime.date(2024, 2, 29), 2)
    bad = parsed_by(made, {"day": "never", "size": 0})
    assert bad.output.startswith("said\n\n[structured output failed: $.day: Input should be a valid date")
    assert bad.output.endswith("; $.size: Input should be greater than or equal to 1]")
