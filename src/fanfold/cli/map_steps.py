"""The steps of `map` as its options state them, each checked before anything runs."""

from pathlib import Path
from typing import Any

import msgspec

from fanfold.contracts.record import JsonObject
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.kernel.schema import compile_schema
from fanfold.orchestration.mapping import MapStep
from fanfold.session.builtin_agents import BUILTIN_AGENTS, find_agent

DEFAULT_AGENT = "answer"


class _StepFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `--then @FILE` may say."""

    prompt: str
    agent: str = DEFAULT_AGENT
    schema: JsonObject | bool | str | None = None
    """The schema, or the name of its file beside this one."""
    model: str | None = None
    max_steps: int | None = None


def first_step(
    prompt: str | None, prompt_file: Path | None, schema: Path | None, agent: str, model: str | None
) -> MapStep:
    """The step of --prompt or --prompt-file, --schema, --agent and --model.

    Raises:
        UsageError: no prompt or two, an unknown agent, an unreadable file, a schema that cannot be used.
    """
    if (prompt is None) == (prompt_file is None):
        raise UsageError("give either --prompt TEXT or --prompt-file FILE")
    text = prompt if prompt is not None else _read("--prompt-file", prompt_file or Path())
    return MapStep(
        prompt=text,
        agent=_known(agent),
        output_schema=None if schema is None else _schema_of(schema),
        model=model,
    )


def next_step(text: str, model: str | None) -> MapStep:
    """One --then: a prompt, or `@FILE` with `{"prompt", "agent", "schema", "model", "max_steps"}`."""
    if not text.startswith("@"):
        return MapStep(prompt=text, agent=DEFAULT_AGENT, model=model)
    path = Path(text[1:])
    try:
        step = msgspec.json.decode(_read("--then", path), type=_StepFile)
    except msgspec.DecodeError as error:
        raise UsageError(f"--then {path}: {error}") from error
    schema = step.schema
    if isinstance(schema, str):
        schema = _schema_of(path.parent / schema)
    elif schema is not None:
        _compile(str(path), schema)
    return MapStep(
        prompt=step.prompt,
        agent=_known(step.agent),
        output_schema=schema,
        model=step.model or model,
        max_steps=step.max_steps,
    )


def _known(name: str) -> str:
    if find_agent(name) is None:
        raise UsageError(f"there is no agent '{name}'; there are: {', '.join(BUILTIN_AGENTS)}")
    return name


def _schema_of(path: Path) -> Any:
    try:
        schema: Any = msgspec.json.decode(_read("--schema", path))
    except msgspec.DecodeError as error:
        raise UsageError(f"--schema {path}: not JSON: {error}") from error
    _compile(str(path), schema)
    return schema


def _compile(place: str, schema: object) -> None:
    try:
        compile_schema(schema)
    except InvalidSpecError as error:
        raise UsageError(f"the schema in {place} cannot be used: {error.reason}") from error


def _read(option: str, path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {path} is not UTF-8 text") from error
