"""The text that `env("NAME")` and `concat(a, b, ...)` stand for."""

import re
from collections.abc import Mapping

import msgspec

from fanfold.config.problems import Problems
from fanfold.config.tree import Call, Plain, Value, child_path, kind_of
from fanfold.nearest import did_you_mean

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FUNCTIONS = ("env", "concat")


class Text(msgspec.Struct, frozen=True):
    value: str
    variables: tuple[str, ...] = ()
    """Read on the way."""
    missing: str | None = None
    """The first variable that is unset or empty."""


def text_of(value: Value, environ: Mapping[str, str], problems: Problems) -> Text | None:
    """The string that `value` is or gives, else None; what is wrong with a call is added to `problems`."""
    match value:
        case Plain(value=str() as text):
            return Text(text)
        case Call(function="env"):
            return _env(value, environ, problems)
        case Call(function="concat"):
            return _concat(value, environ, problems)
        case Call(function=name):
            problems.add(value.place, f"unknown function '{child_path('', name)}'{did_you_mean(name, _FUNCTIONS)}")
            return None
        case _:
            return None


def _env(call: Call, environ: Mapping[str, str], problems: Problems) -> Text | None:
    match call.arguments:
        case (Plain(value=str() as name),) if _VARIABLE.match(name):
            found = environ.get(name, "")
            return Text(found, (name,), None if found else name)
        case _:
            problems.add(call.place, 'env() takes the name of one environment variable, such as env("OPENAI_API_KEY")')
            return None


def _concat(call: Call, environ: Mapping[str, str], problems: Problems) -> Text | None:
    parts: list[Text] = []
    for argument in call.arguments:
        part = text_of(argument, environ, problems)
        if part is not None:
            parts.append(part)
        elif not isinstance(argument, Call):
            problems.add(argument.place, f"concat() joins strings, found {kind_of(argument)}")
    if len(parts) < len(call.arguments):
        return None
    return Text(
        "".join(part.value for part in parts),
        tuple(name for part in parts for name in part.variables),
        next((part.missing for part in parts if part.missing), None),
    )
