"""Laws of the configuration over arbitrary text."""

import re
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.config.discovery import load, settings_of
from fanfold.errors import ConfigError

WORDS = (
    *"\"{}[]()=,\n\t\r #\\-':.\x00\ud800é",
    *[
        "//",
        "1",
        "1.5",
        "default_model",
        "providers",
        "models",
        "limit",
        "permissions",
        "allow",
        "headers",
        "api_key",
        "base_url",
    ],
    *["env", "concat", "null", "true", '"openai"', '"X"'],
)
fragments = st.lists(st.sampled_from(WORDS), max_size=60).map("".join)


def problems_of(read: Callable[[], object]) -> tuple[str, ...]:
    try:
        read()
    except ConfigError as error:
        return error.problems
    return ()


@given(st.text(max_size=200) | fragments, st.sampled_from([".acl", ".toml"]))
@settings(max_examples=300)
def test_any_text_gives_settings_or_problems_with_places(text: str, suffix: str) -> None:
    for problem in problems_of(lambda: settings_of(text, suffix, "agent", {"X": "x"})):
        assert re.match(r"agent(:\d+(:\d+)?)?: .+\Z", problem)


@given(st.text(max_size=50) | fragments)
def test_any_source_gives_settings_or_problems(source: str) -> None:
    for problem in problems_of(lambda: load(source, start=Path("no-such-directory"), environ={})):
        assert problem
