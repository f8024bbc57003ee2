"""What a launch brings is refused before anything of it is used, with the place of the fault."""

import datetime
import enum
import json
import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.workflow_runs import WorkflowMeta
from fanfold.errors import WorkflowInputError
from fanfold.kernel.workflow_meta import (
    is_run_id,
    json_fault,
    parse_args,
    parse_meta,
    run_id_of,
    task_id_of,
    workflow_of,
)

META: dict[str, Any] = {"name": "audit", "description": "Looks at everything."}
HEX = "0123456789abcdef"
LIMIT = 1_048_576


class Text(str):
    pass


class Colour(enum.StrEnum):
    RED = "red"


class Number(int):
    pass


def refusal(call: Any, *args: Any) -> WorkflowInputError:
    with pytest.raises(WorkflowInputError) as caught:
        call(*args)
    return caught.value


# ---- meta data -----------------------------------------------------------------------------------------------


def test_whole_meta_data_are_taken() -> None:
    schema = {"type": "object", "properties": {"files": {"type": "array"}}}
    given = {**META, "phases": ["Find", "Verify"], "when_to_use": "After a change.", "args_schema": schema}
    assert parse_meta(given) == WorkflowMeta(
        name="audit",
        description="Looks at everything.",
        phases=("Find", "Verify"),
        when_to_use="After a change.",
        args_schema=schema,
    )


def test_what_is_none_counts_as_left_out() -> None:
    assert parse_meta({**META, "phases": None, "when_to_use": None, "args_schema": None}) == WorkflowMeta(**META)


def test_parsed_meta_data_are_taken_again() -> None:
    meta = parse_meta({**META, "phases": ("A",)})
    assert parse_meta(meta) == meta
    assert parse_meta(MappingProxyType(META)) == WorkflowMeta(**META)
    assert refusal(parse_meta, WorkflowMeta(name="../x", description="d")).code == "bad_meta"


@pytest.mark.parametrize(
    "name",
    ["a", "0", "Review-changes_2", "a.b", "a..b", "x" * 64, "console", "com", "com10", "null", "auxiliary", "nul-x"],
)
def test_safe_names_are_taken(name: str) -> None:
    assert parse_meta({**META, "name": name}).name == name
    assert is_run_id(run_id_of(name, HEX))


BAD_NAMES = [
    "", " ", "..", ".", ".a", "a.", "-a", "_a", "../x", "a/b", "a\\b", "a\0b", "a b", "a\n", "ä", "a\u0661", "x" * 65,
    "con", "NUL", "nul.txt", "Aux.tar.gz", "prn", "COM1", "lpt9.x", "com0", "LPT0",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unsafe_names_are_refused(name: str) -> None:
    error = refusal(parse_meta, {**META, "name": name})
    assert error.code == "bad_meta"
    assert "meta name" in str(error)
    assert not is_run_id(f"wf_{name}_{HEX}")
    assert refusal(run_id_of, name, HEX).code == "bad_run_id"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": None}, "name must be a str"),
        ({"name": 5}, "name must be a str"),
        ({"name": Text("audit")}, "name must be a str"),
        ({"description": None}, "description must be"),
        ({"description": ""}, "description must be"),
        ({"description": " \n"}, "description must be"),
        ({"description": ["x"]}, "description must be"),
        ({"description": "\ud800"}, "description holds a lone surrogate"),
        ({"when_to_use": ""}, "when_to_use must be"),
        ({"when_to_use": 5}, "when_to_use must be"),
        ({"phases": "Review"}, "phases must be a list"),
        ({"phases": {"Review": 1}}, "phases must be a list"),
        ({"phases": ["A", ""]}, "phases[1] must be"),
        ({"phases": ["A", None]}, "phases[1] must be"),
        ({"phases": ["A", 0]}, "phases[1] must be"),
        ({"phases": ["\udfff"]}, "phases[0] holds a lone surrogate"),
        ({"phases": ["A", "B", "A"]}, "phases[2] repeats 'A'"),
        ({"args_schema": True}, "args_schema must be a JSON Schema"),
        ({"args_schema": {"type": "objekt"}}, "args_schema: schema at #/type"),
        ({"args_schema": {"type": "array"}}, "its type is 'array'"),
        ({"args_schema": {"enum": [1, 2]}}, "no value of enum is of type object"),
        ({"args_schema": {"type": "object", "required": ["a"], "additionalProperties": False}}, "'a' is required"),
        ({"args_schema": {"const": float("nan")}}, "not JSON"),
        ({"args_schema": {"title": "\ud800"}}, "args_schema: schema at"),
        ({"phase": ["A"]}, "unknown key 'phase'; did you mean 'phases'?"),
        ({"whenToUse": "x"}, "unknown key 'whenToUse'; did you mean 'when_to_use'?"),
        ({5: "x"}, "unknown key 5"),
    ],
)
def test_bad_meta_data_are_refused_by_field(change: dict[Any, Any], named: str) -> None:
    error = refusal(parse_meta, {**META, **change})
    assert error.code == "bad_meta"
    assert named in str(error)


@pytest.mark.parametrize("given", [None, [], "audit", 5, [("name", "a"), ("description", "b")], b"{}"])
def test_meta_that_is_no_dict_is_refused(given: object) -> None:
    error = refusal(parse_meta, given)
    assert error.code == "bad_meta"
    assert "must be a dict" in str(error)


@pytest.mark.parametrize("missing", ["name", "description"])
def test_what_is_required_is_named(missing: str) -> None:
    assert missing in str(refusal(parse_meta, {key: META[key] for key in META if key != missing}))


def test_a_schema_that_also_takes_other_types_is_taken() -> None:
    for types in (["object", "null"], "object"):
        assert parse_meta({**META, "args_schema": {"type": types}}).args_schema == {"type": types}
    assert parse_meta({**META, "args_schema": {}}).args_schema == {}


# ---- args ----------------------------------------------------------------------------------------------------


def args_of(given: object, schema: dict[str, Any] | None = None, limit: int = LIMIT) -> dict[str, Any]:
    return parse_args(given, parse_meta({**META, "args_schema": schema}), limit)


def test_no_args_are_an_empty_object() -> None:
    assert args_of(None) == args_of({}) == args_of(MappingProxyType({})) == {}
    assert args_of(MappingProxyType({"a": 1})) == {"a": 1}
    assert "required" in str(refusal(args_of, None, {"type": "object", "required": ["files"]}))


def test_the_text_of_an_object_is_parsed_once() -> None:
    assert args_of('{"files": ["a"], "n": 1}') == {"files": ["a"], "n": 1}
    assert args_of('{"inner": "{\\"a\\": 1}"}') == {"inner": '{"a": 1}'}


@pytest.mark.parametrize(
    "given",
    ["", "undefined", "[object Object]", "[1]", "5", "null", '"{}"', '"{\\"a\\":1}"', "{", '{"a": NaN}', '{"a": 1e999}',
     "\ud800", '{"a": "\\ud800"}', [], ["a"], (), 5, 1.5, True, False, {"a"}, b"{}", object()],
)  # fmt: skip
def test_args_that_are_no_object_are_refused(given: object) -> None:
    assert refusal(args_of, given).code == "bad_args"


@pytest.mark.parametrize(
    ("args", "place"),
    [
        ({"a": [1, math.nan]}, "$.a[1]: nan is no JSON number"),
        ({"a": -math.inf}, "$.a: -inf is no JSON number"),
        ({"a": {"b c": {1, 2}}}, '$.a["b c"]: set is no JSON type'),
        ({"a": b"x"}, "$.a: bytes is no JSON type"),
        ({"when": datetime.datetime(2026, 1, 1)}, "$.when: datetime is no JSON type"),
        ({"a": ({"b": object()},)}, "$.a[0].b: object is no JSON type"),
        ({"a": {1: "x"}}, "$.a: the key 1 is no text"),
        ({None: 1}, "$: the key None is no text"),
        ({True: 1}, "$: the key True is no text"),
        ({"\ud800": 1}, "is no text"),
        ({"a": "\udfff"}, "$.a: a lone surrogate"),
        ({"a": Colour.RED}, "$.a: Colour is no JSON type"),
        ({"a": Number(5)}, "$.a: Number is no JSON type"),
        ({"a": 10**5000}, "$.a: too large a number"),
    ],
)
def test_the_place_of_what_is_no_json_is_told(args: object, place: str) -> None:
    error = refusal(args_of, args)
    assert error.code == "bad_args"
    assert place in str(error)


def test_the_first_fault_in_the_order_of_the_text_is_told() -> None:
    assert json_fault({"a": [1, {2}], "b": {3}, "c": math.nan}) == (
        "$.a[1]: set is no JSON type; use dict, list, str, int, float, bool or None"
    )
    assert json_fault([[1, {2}], {3}]) == json_fault([[1, {2}]])


def test_whole_numbers_may_be_long_and_count_by_their_digits() -> None:
    longest = 2**10_000 - 1
    assert args_of({"n": longest}) == {"n": longest}
    assert "too large" in str(json_fault({"n": longest + 1}))
    assert json_fault([longest] * 10, 20_000) == "$: it takes more than 20,000 bytes"


def test_args_are_what_json_gives_back_and_nobody_elses() -> None:
    inner = [1]
    given = {"t": (1, (2,)), "l": inner, "big": 2**70, "f": 0.1, "n": None, "deep": {"u": "\u2028é"}}
    args = args_of(given)
    assert args == {"t": [1, [2]], "l": [1], "big": 2**70, "f": 0.1, "n": None, "deep": {"u": "\u2028é"}}
    inner.append(2)
    assert args["l"] == [1]


def nested(levels: int, leaf: object = 1) -> Any:
    value: Any = leaf
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("leaf", [1, {}, []])
def test_args_may_be_nested_so_deep_and_no_deeper(leaf: object) -> None:
    levels = 199 if leaf == 1 else 198
    assert args_of({"a": nested(levels, leaf)}) == {"a": nested(levels, leaf)}
    assert "nested deeper than 200 levels" in str(refusal(args_of, {"a": nested(levels + 1, leaf)}))


@pytest.mark.parametrize("levels", [1_000, 10_000, 200_000])
def test_a_bomb_of_brackets_is_refused(levels: int) -> None:
    assert refusal(args_of, {"a": nested(levels)}).code == "bad_args"
    assert refusal(args_of, '{"a":' * levels + "1" + "}" * levels, None, 10**7).code == "bad_args"


def test_what_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["me"] = [endless]
    assert "nested deeper" in str(refusal(args_of, endless))


def test_a_part_that_is_held_a_billion_times_is_refused_in_no_time() -> None:
    part: Any
    for part in ([], "x" * 1_000, {"k" * 100: 1}):
        many: Any = part
        for _ in range(60):
            many = [many, many]
        assert "more than 1,048,576 bytes" in str(refusal(args_of, {"a": many}))


def test_args_may_be_so_long_and_no_longer() -> None:
    args: dict[str, Any]
    for args in ({"a": "x" * 90}, {"a": ["é"] * 15}, {"a": [8] * 46}, {"": [{}, [], None, True, 0.5, {"k": ""}]}):
        size = len(json.dumps(args, separators=(",", ":"), ensure_ascii=False).encode())
        assert args_of(args, None, size) == args
        assert "bytes" in str(refusal(args_of, args, None, size - 1))
    text = '{"a":1}' + " " * 93
    assert args_of(text, None, 100) == {"a": 1}
    assert "bytes" in str(refusal(args_of, text + " ", None, 100))


SCHEMA = {
    "type": "object",
    "properties": {"files": {"type": "array", "items": {"type": "string"}}},
    "required": ["files"],
}


def test_args_must_match_their_schema() -> None:
    assert args_of({"files": ("a",)}, SCHEMA) == {"files": ["a"]}
    error = refusal(args_of, {"files": ["a", 5]}, SCHEMA)
    assert error.code == "bad_args"
    assert "$.files[1]" in str(error)
    assert "workflow 'audit'" in str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values))
def test_json_has_no_fault_and_comes_back(value: dict[str, Any]) -> None:
    assert json_fault(value) is None
    assert args_of(value) == value
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    assert json_fault(value, size) is None, "the estimate is no more than what it takes"


# ---- ids -----------------------------------------------------------------------------------------------------


def test_a_run_id_leads_back_to_its_workflow() -> None:
    for name in ("audit", "a_b", "wf_x_0123456789abcdef", "a.b-c"):
        run_id = run_id_of(name, HEX)
        assert run_id == f"wf_{name}_{HEX}"
        assert workflow_of(run_id) == name
        assert task_id_of(run_id) == f"local_workflow_{run_id}"


@pytest.mark.parametrize(
    "text",
    ["", "wf_", f"wf__{HEX}", f"wf_x_../../y_{HEX}", "wf_x_../../y", f"wf_x_{HEX[:-1]}", f"wf_x_{HEX.upper()}",
     f"wf_x_{HEX}\n", f"wf_a\nb_{HEX}", f" wf_x_{HEX}", f"wf_x_{HEX}.json", f"wf_x{HEX}", f"xwf_x_{HEX}",
     f"wf_{'x' * 65}_{HEX}", f"wf_nul_{HEX}", f"wf_a._{HEX}", f"wf_\ud800_{HEX}", None, 5, b"wf_x_0123456789abcdef"],
)  # fmt: skip
def test_what_is_no_run_id_is_refused(text: Any) -> None:
    assert not is_run_id(text)
    assert refusal(workflow_of, text).code == "bad_run_id"


def test_random_digits_must_be_digits() -> None:
    for digits in ("", "0" * 15, "0" * 17, "g" * 16, "../../../../etc/x"):
        assert refusal(run_id_of, "audit", digits).code == "bad_run_id"
