"""The steps of `map` as its options state them, each checked before anything runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fanfold.cli.cells import cut, one_line
from fanfold.cli.items import Item
from fanfold.cli.named_input import read_text
from fanfold.contracts.codec import decode_json
from fanfold.contracts.record import JsonObject
from fanfold.delegation.builtin_agents import find_agent
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.kernel.schema import compile_schema
from fanfold.orchestration import template
from fanfold.orchestration.mapping import PREVIOUS, MapStep

DEFAULT_AGENT = "answer"
_LONGEST_KEY = 60


class _StepFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `--then @FILE` may say."""

    prompt: str
    agent: str = DEFAULT_AGENT
    schema: JsonObject | bool | str | None = None
    """The schema, or the name of its file beside this one."""
    model: str | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=0)] | None = None


def first_step(
    prompt: str | None, prompt_file: Path | None, schema: Path | None, agent: str, model: str | None
) -> MapStep:
    """The step of --prompt or --prompt-file, --schema, --agent and --model.

    Raises:
        UsageError: no prompt or two, an unreadable file, a schema that cannot be used.
    """
    if (prompt is None) == (prompt_file is None):
        raise UsageError("give either --prompt TEXT or --prompt-file FILE")
    text = prompt if prompt_file is None else read_text(prompt_file)
    return MapStep(
        prompt=_not_blank(text or "", "--prompt" if prompt_file is None else f"--prompt-file {prompt_file}"),
        agent=agent,
        output_schema=None if schema is None else _schema_of(schema),
        model=model,
    )


def next_step(text: str, model: str | None) -> MapStep:
    """One --then: a prompt, or `@FILE` with `{"prompt", "agent", "schema", "model", "max_steps"}`."""
    if not text.startswith("@"):
        return MapStep(prompt=_not_blank(text, "--then"), agent=DEFAULT_AGENT, model=model)
    path = Path(text[1:])
    place = f"--then {path}"
    try:
        step = decode_json(read_text(path), _StepFile)
    except msgspec.DecodeError as error:
        raise UsageError(f"{place}: {error}") from error
    schema = step.schema
    if isinstance(schema, str):
        schema = _schema_of(path.parent / schema)
    elif schema is not None:
        _compile(path, schema)
    return MapStep(
        prompt=_not_blank(step.prompt, place),
        agent=step.agent,
        output_schema=schema,
        model=model if step.model is None else step.model,
        max_steps=step.max_steps,
    )


def check_prompts(steps: Sequence[MapStep], items: Sequence[Item]) -> None:
    """Refuse prompts that do not fit the items.

    Raises:
        UsageError: a prompt names a field that an item does not have; or many items, and the first prompt names none
            although its agent has nothing but the prompt.
    """
    runnable = [item for item in items if item.problem is None]
    samples = {frozenset(item.fields): item for item in reversed(runnable)}
    for number, step in enumerate(steps):
        for names, item in samples.items():
            try:
                template.check(step.prompt, names | {PREVIOUS} if number else names)
            except UsageError as error:
                place = f"--then {number}" if number else "--prompt"
                raise UsageError(f"{place}, item {cut(one_line(item.key), _LONGEST_KEY)}: {error}") from error
    for number, step in enumerate(steps[1:], 1):
        if not _names_a_field(step.prompt):
            raise UsageError(
                f"--then {number}: the prompt names no field, not even {{{PREVIOUS}}}, so all get one answer"
            )
    agent = find_agent(steps[0].agent)
    if len(runnable) > 1 and agent is not None and not agent.tools and not _names_a_field(steps[0].prompt):
        raise UsageError(
            f"the prompt names no field, so all {len(runnable)} items would get the same answer: put {{content}} "
            f"into it, or another one (they have: {', '.join(sorted(runnable[0].fields))})"
        )


def _names_a_field(prompt: str) -> bool:
    try:
        template.check(prompt, ())
    except UsageError:
        return True
    return False


def _not_blank(prompt: str, place: str) -> str:
    if not prompt.strip():
        raise UsageError(f"{place}: the prompt is empty")
    return prompt


def _schema_of(path: Path) -> JsonObject | bool:
    try:
        schema: JsonObject | bool = decode_json(read_text(path), JsonObject | bool)
    except msgspec.DecodeError as error:
        raise _unusable(path, str(error)) from error
    _compile(path, schema)
    return schema


def _compile(path: Path, schema: Any) -> None:
    try:
        compile_schema(schema)
    except InvalidSpecError as error:
        raise _unusable(path, error.reason) from error


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(f"the schema in {path} cannot be used: {reason}")
