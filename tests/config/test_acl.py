"""The ACL parser: what it accepts, what it says about the rest, and where its limits are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.config.acl import parse_acl
from fanfold.config.problems import Problems
from fanfold.config.tree import Call, Plain, Sequence, Table, Value
from fanfold.errors import ConfigError

JSON_REFUSAL = (
    'agent.acl:1:1: this is not ACL: write `name = value` and `block "label" { ... }`; JSON is not accepted, '
    "and TOML goes into a file named .toml"
)


def plain(value: Value) -> object:
    """The tree without places: dict, list, scalars, `(function, arguments)`."""
    match value:
        case Table(entries=entries):
            return {key: plain(entry.value) for key, entry in entries.items()}
        case Sequence(items=items):
            return [plain(item) for item in items]
        case Call(function=function, arguments=arguments):
            return (function, [plain(argument) for argument in arguments])
        case Plain(value=scalar):
            return scalar


def parse(text: str) -> object:
    problems = Problems()
    tree = parse_acl(text, "agent.acl", problems)
    problems.raise_if_any()
    assert tree is not None
    return plain(tree)


def problems_of(text: str) -> list[str]:
    problems = Problems()
    parse_acl(text, "agent.acl", problems)
    if not problems:
        return []
    with pytest.raises(ConfigError) as caught:
        problems.raise_if_any()
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("", {}),
        ("\n # only\n // comments\n", {}),
        ('a = "x"  # why\nb = 1', {"a": "x", "b": 1}),
        ("a = -12\nb = 1.5\nc = -2e3\nd = 0", {"a": -12, "b": 1.5, "c": -2000.0, "d": 0}),
        ("a = true\nb = false\nc = null", {"a": True, "b": False, "c": None}),
        ('a = "42"', {"a": "42"}),
        (r'a = "tab\t quote\" back\\ \u00e9 \U0001F600"', {"a": 'tab\t quote" back\\ é 😀'}),
        ('a = "# no // comment"', {"a": "# no // comment"}),
        ("a = []\nb = [1, [2, 3,],]\nc = [\n  1, # one\n  2,\n]", {"a": [], "b": [1, [2, 3]], "c": [1, 2]}),
        ('a = { x = 1, "y z" = 2\n w-1 = 3 }', {"a": {"x": 1, "y z": 2, "w-1": 3}}),
        ('a = env("X")', {"a": ("env", ["X"])}),
        ('a = concat("p", env("Y"),)', {"a": ("concat", ["p", ("env", ["Y"])])}),
        ("a {}\r\nb { c = 1 }\r\n", {"a": {}, "b": {"c": 1}}),
        ('p "x" { a = 1 }\np "y" { m "1" { } }', {"p": {"x": {"a": 1}, "y": {"m": {"1": {}}}}}),
        ('p "x" "y" { a = 1 }\np "x" "z" { }', {"p": {"x": {"y": {"a": 1}, "z": {}}}}),
    ],
)  # fmt: skip
def test_text_means_tree(text: str, meaning: object) -> None:
    assert parse(text) == meaning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "1:5: expected a value after 'a =', found the end of the text"),
        ("a =\nb = 1", "1:4: expected a value after 'a =', found the end of the line"),
        ("sk-secret", "1:10: expected '=' or '{' after this name, found the end of the text"),
        ("= 1", "1:1: expected a name, found '='"),
        ("a = 1 b = 2", "1:7: expected a new line or ',' after the entry, found a name"),
        ("a = 1,, b = 2", "1:7: expected a name, found ','"),
        ("a: 1", "1:2: write '=' between a name and its value"),
        ("a = 'x'", "1:5: strings take double quotes"),
        ("a = 1;", "1:6: a line end or ',' ends an entry"),
        ("/* no */", "1:1: comments start with # or //"),
        ("a = @", "1:5: unexpected character '@'"),
        ("a = \x1b", "1:5: unexpected character '\\x1b'"),
        ('a = "x', "1:5: this string has no closing quote on its line"),
        ('a = "x\\"', "1:5: this string has no closing quote on its line"),
        (r'a = "\q"', r"1:5: unknown escape \q; known: \n \t \r \" \\ \uXXXX \UXXXXXXXX"),
        (r'a = "\ud800"', r"1:5: \ud800 is not a character"),
        (r'a = "\U00110000"', r"1:5: \U00110000 is not a character"),
        ("a = 007", "1:5: this is not a number; put strings in double quotes"),
        ("a = 1.2.3", "1:5: this is not a number; put strings in double quotes"),
        ("a = 1e999", "1:5: this number is too large"),
        ("a = " + "9" * 5000, "1:5: this number is too large"),
        ("a = True", "1:5: this bare word is not a value; write true in lower case"),
        ("a = sk-secret", "1:5: this bare word is not a value; put strings in double quotes"),
        ("a = [1 2]", "1:8: expected ',' or ']' in the list of line 1, found a number"),
        ("a = [,]", "1:6: expected a value or ']' in the list of line 1, found ','"),
        ("a = f(1", "1:8: expected ',' or ')' in the list of line 1, found the end of the text"),
        ('a sk-secret "b"', "1:3: expected '=' or '{' after this name, found a name"),
        ("p x { }", '1:3: labels take double quotes: "x"'),
        ("a {\n b = 1\n", "1:3: this '{' is never closed"),
        ("a = 1\n}", "2:1: this '}' closes nothing"),
        ("a = 1\nb = 2\na = 3", "3:1: 'a' is set twice; first at line 1"),
        ("a = { b = 1, b = 2 }", "1:14: 'b' is set twice; first at line 1"),
        ('p "x" { }\np "x" { }', "2:1: 'p.x' is set twice; first at line 1"),
        ('p = 1\np "x" { }', "2:1: 'p' is set twice; first at line 1"),
        ('p { }\np "x" { }', "2:1: 'p' is set twice; first at line 1"),
    ],
)
def test_each_fault_has_one_line_with_its_place(text: str, message: str) -> None:
    assert problems_of(text) == [f"agent.acl:{message}"]


@pytest.mark.parametrize("text", ['{"default_model": "x/y"}', " \n[1]", "[providers.x]\nkind = 'openai'"])
def test_json_and_toml_are_refused_in_one_line(text: str) -> None:
    assert problems_of(text) == [JSON_REFUSAL]


def test_all_faults_are_told_at_once_and_what_is_sound_between_them_stays() -> None:
    text = """\
a = "open
b = 1
c {
  d = [1 2,
    3]
  e = 2
  f = [1,
  g = 3
  h = { i = @, j = 4 }
}
k: 5
l = 6
"""
    problems = Problems()
    tree = parse_acl(text, "agent.acl", problems)

    assert problems_of(text) == [
        "agent.acl:1:5: this string has no closing quote on its line",
        "agent.acl:4:10: expected ',' or ']' in the list of line 4, found a number",
        "agent.acl:8:3: expected ']' to end the list of line 7, found the next entry",
        "agent.acl:9:13: unexpected character '@'",
        "agent.acl:11:2: write '=' between a name and its value",
    ]
    assert tree is not None
    assert plain(tree) == {"b": 1, "c": {"e": 2, "g": 3, "h": {"j": 4}}, "l": 6}


def test_a_label_without_closing_quote_does_not_unbalance_the_braces() -> None:
    assert problems_of('p "x {\n a = 1\n}\nb = 2') == ["agent.acl:1:3: this string has no closing quote on its line"]


def test_no_meaning_is_given_to_a_text_whose_braces_do_not_match() -> None:
    assert parse_acl("a {\n b = 1\n", "agent.acl", Problems()) is None
    assert parse_acl("a = 1 }\n", "agent.acl", Problems()) is None


def test_only_the_first_fifty_faults_are_shown() -> None:
    shown = problems_of("a = @\n" * 60)
    assert len(shown) == 51
    assert shown[-1] == "... and 10 more"


def test_document_limit_is_one_mebibyte_of_utf8() -> None:
    assert problems_of("#" + "é" * (512 * 1024 - 1)) == []
    assert problems_of("#" + "é" * (512 * 1024)) == ["agent.acl: this is larger than 1 MiB"]


@pytest.mark.parametrize(("opening", "closing"), [("a = [", "]"), ("a = f(", ")")])
def test_depth_limit_holds_for_lists_and_calls(opening: str, closing: str) -> None:
    opener = opening[-1]
    assert problems_of(opening + opener.replace("(", "f(") * 63 + closing * 64) == []
    assert len(problems_of(opening + opener.replace("(", "f(") * 64 + closing * 65)) == 1


def test_depth_limit_counts_labels() -> None:
    assert problems_of("a" + ' "x"' * 63 + " {}") == []
    assert problems_of("a" + ' "x"' * 64 + " {}") == ["agent.acl:1:259: nested more than 64 deep"]
    assert problems_of("a {" * 64 + "}" * 64) == []
    assert problems_of("a {" * 65 + "}" * 65) == ["agent.acl:1:195: nested more than 64 deep"]


def test_item_limits() -> None:
    assert problems_of("a = [" + "1," * 10_000 + "]") == []
    assert problems_of("a = [" + "1," * 10_001 + "]\nb = @") == [
        "agent.acl:1:20006: more than 10,000 items in one list",
        "agent.acl:2:5: unexpected character '@'",
    ]
    entries = "".join(f"k{number} = 1\n" for number in range(10_001))
    assert problems_of(entries) == ["agent.acl:10001:1: more than 10,000 entries in one table"]
    assert problems_of("t {\n" + entries + "}\nb = @") == [
        "agent.acl:10002:1: more than 10,000 entries in one table",
        "agent.acl:10004:5: unexpected character '@'",
    ]
    blocks = "".join(f'p "{number}" {{}}\n' for number in range(10_001))
    assert problems_of(blocks) == ["agent.acl:10001:1: more than 10,000 entries in one table"]


def test_token_limit_is_256_kib_of_utf8() -> None:
    longest = 256 * 1024 - 2
    assert problems_of(f'a = "{"x" * longest}"') == []
    assert problems_of(f'a = "{"x" * (longest + 1)}"') == ["agent.acl:1:5: this is longer than 256 KiB"]
    assert problems_of(f'a = "{"é" * (longest // 2 + 1)}"') == ["agent.acl:1:5: this is longer than 256 KiB"]


# ---- what is printed parses to the same tree ---------------------------------------------------

Tree = dict[str, object]

keys = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["a", "b-c", "_d", "true"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
)
calls = st.tuples(st.sampled_from(["env", "concat", "other"]), st.lists(scalars, max_size=3))
values = st.recursive(
    scalars | calls,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
trees = st.dictionaries(keys, values, max_size=5)


def printed(tree: Tree) -> str:
    return "\n".join(_entry(key, value) for key, value in tree.items())


def _entry(key: str, value: object) -> str:
    """A table as a block where it can be one, so that both ways to write it are covered."""
    match value:
        case {"a": dict() as inner, **others} if not others:
            return f'{_string(key)} "a" {{\n{printed(inner)}\n}}'
        case dict():
            return f"{_string(key)} {{\n{printed(value)}\n}}"
        case _:
            return f"{_string(key)} = {_value(value)}"


def _value(value: object) -> str:
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return _string(value)
        case tuple():
            function, arguments = value
            return f"{function}({', '.join(map(_value, arguments))})"
        case list():
            return "[\n" + "".join(f"{_value(item)},\n" for item in value) + "]"
        case dict():
            return "{ " + ", ".join(f"{_string(key)} = {_value(item)}" for key, item in value.items()) + " }"
        case _:
            return repr(value)


def _string(text: str) -> str:
    escapes = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}
    return '"' + "".join(escapes.get(character, character) for character in text) + '"'


@given(trees)
def test_what_is_printed_parses_to_the_same_tree(tree: Tree) -> None:
    again = parse(printed(tree))
    assert again == tree
    assert repr(again) == repr(tree)  # also tells 1 from 1.0 and True, and -0.0 from 0.0
