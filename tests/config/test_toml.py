"""The TOML twin: places of faults, calls as tables, and what TOML can say but a configuration cannot."""

from collections.abc import Mapping

import pytest

from fanfold.config.discovery import settings_of
from fanfold.config.toml_lines import KeyLines
from fanfold.errors import ConfigError


def problems_of(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings_of(text, ".toml", "agent.toml", environ or {})
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1\nb = @\n", "agent.toml:2:5: "),
        ("a = 1\na = 2\n", "agent.toml:2:6: "),
        ('\n\na = "open', "agent.toml:3"),
        ('{"default_model": "x/y"}', "agent.toml:1:1: "),
        ("a = 1" + "0" * 5000, "agent.toml: "),
    ],
)
def test_a_syntax_error_has_its_line(text: str, place: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith(place)
    assert "(at " not in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_paralel_tasks = 1", "1: unknown key 'max_paralel_tasks'; did you mean 'max_parallel_tasks'?"),
        ('\nmax_parallel_tasks = "8"', "2: max_parallel_tasks must be a whole number, found a string"),
        (
            "[providers.openai]\n# slots = 1\ntimeout_ms = 0",
            "3: providers.openai.timeout_ms must be at least 1",
        ),
        (
            '[providers."a.b"]\nbase_url = "http://x"\nmodels.m.tool_cal = true',
            """3: unknown key 'tool_cal' in providers."a.b".models.m; did you mean 'tool_call'?""",
        ),
        (
            "[providers.openai.models.m]\nlimit = { contxt = 1 }",
            "2: unknown key 'contxt' in providers.openai.models.m.limit; did you mean 'context'?",
        ),
        ("[permissions]\ndeny = [\n  1,\n]", "2: permissions.deny[0] must be a string, found a whole number"),
        ("[[providers]]\nkind = 'openai'", "1: providers must be a table { ... }, found a list"),
        (
            '[providers.openai]\nbase_url = { env = "NOPE" }',
            "2: providers.openai.base_url needs the environment variable NOPE, which is not set",
        ),
        (
            '[providers.openai]\napi_key = { env = "A", or = "B" }',
            '2: providers.openai.api_key must be a string or env("NAME"), found a table',
        ),
        (
            "default_model = 2026-01-01",
            "1: default_model: dates and times are not used here; put strings in quotes",
        ),
        (
            "[providers.openai.models.m]\ntemperature = nan",
            "2: providers.openai.models.m.temperature must be 0 or more, and finite",
        ),
        ("[providers.x]", "1: providers.x needs base_url, the address that it calls"),
    ],
)
def test_a_fault_of_meaning_has_the_line_of_its_key(text: str, message: str) -> None:
    assert problems_of(text) == [f"agent.toml:{message}"]


def test_all_faults_of_meaning_are_told_at_once() -> None:
    assert problems_of("max_tool_rounds = 0\nmax_parallel_tasks = 0\nx = 1\n")[:2] == [
        "agent.toml:1: max_tool_rounds must be at least 1",
        "agent.toml:2: max_parallel_tasks must be at least 1",
    ]


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "a = " + "[" * 70 + "]" * 70, ".".join("a" * 70) + " = 1"])
def test_depth_limit_holds(text: str) -> None:
    assert "nested more than 64 deep" in problems_of(text)[0]


def test_size_limits_hold() -> None:
    assert problems_of("#" * (1024 * 1024 + 1)) == ["agent.toml: this is larger than 1 MiB"]
    assert "more than 10,000 items" in problems_of("a = [" + "1," * 10_001 + "]")[0]
    entries = "".join(f"k{number} = 1\n" for number in range(10_001))
    assert problems_of("[t]\n" + entries)[0] == "agent.toml:1: more than 10,000 entries in one table"


def test_keys_are_not_looked_for_inside_long_strings() -> None:
    lines = KeyLines("a = \"\"\"\nb = 1 '''\n\"\"\"\nb = 2\nc = '''x'''\n\"d.e\" . f = 3\n")

    assert [lines.of(path) for path in (("a",), ("b",), ("c",), ("d.e", "f"))] == [1, 4, 5, 6]


def test_a_key_that_is_not_found_has_the_line_of_what_is_around_it_or_none() -> None:
    lines = KeyLines("[a.b]\nc = { d = 1 }\n")

    assert [lines.of(path) for path in (("a", "b", "c", "d"), ("a", "x"), ("y",))] == [2, 1, 0]
