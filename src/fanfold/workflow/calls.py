"""One call of `agent`, as a script wrote it: checked, and what it means."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import Repeat
from fanfold.errors import InvalidSpecError, WorkflowInputError
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.schema import OutputSchema, compile_schema
from fanfold.nearest import did_you_mean

LABEL_CHARACTERS = 60
DEFAULT_AGENT = "general"


class AgentCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What `ctx.agent(prompt, ...)` takes."""

    prompt: str
    schema: JsonObject | bool | None = None
    label: str | None = None
    """For people; no part of what the call means. None: the beginning of the prompt."""
    phase: str | None = None
    model: str | None = None
    agent_type: str = DEFAULT_AGENT
    max_steps: int | None = None
    isolation: Literal["worktree"] | None = None
    timeout_ms: int | None = None
    retries: int | None = None
    share: bool = False
    """Let equal calls of this run share one answer."""
    repeat: Repeat = "rerun"
    """What a resume does where an earlier attempt has begun the agent and has no answer of it; no part of what the call
    means."""

    @property
    def title(self) -> str:
        if self.label:
            return self.label
        if len(self.prompt) <= LABEL_CHARACTERS and "\n" not in self.prompt:
            return self.prompt
        line = " ".join(self.prompt[: 2 * LABEL_CHARACTERS].split())
        return line if len(line) <= LABEL_CHARACTERS else f"{line[: LABEL_CHARACTERS - 1]}…"


_FIELDS = frozenset(AgentCall.__struct_fields__) - {"prompt"}
_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_plain(value)


def _is_count(least: int) -> _Check:
    return lambda value: type(value) is int and least <= value <= 2**53


_CHECKS: dict[str, tuple[_Check, str]] = {
    "schema": (lambda value: isinstance(value, dict | bool), "a JSON Schema: a dict or a boolean"),
    "label": (_is_text, "text that is not blank"),
    "phase": (_is_text, "text that is not blank"),
    "model": (_is_text, "`provider/model-id`"),
    "agent_type": (_is_text, "the name of an agent"),
    "max_steps": (_is_count(0), "a whole number, 0 or more"),
    "isolation": (lambda value: value == "worktree", '"worktree"'),
    "timeout_ms": (_is_count(1), "a whole number of milliseconds, 1 or more"),
    "retries": (_is_count(0), "a whole number, 0 or more"),
    "share": (lambda value: isinstance(value, bool), "True or False"),
    "repeat": (lambda value: value in ("rerun", "skip", "ask"), '"rerun", "skip" or "ask"'),
}


def parse_call(prompt: object, options: Mapping[str, Any]) -> AgentCall:
    """Raises WorkflowInputError, `bad_call`, naming the option."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise _bad(f"the prompt must be text that is not blank, got {_shown(prompt)}")
    if not is_plain(prompt):
        raise _bad("the prompt has lone surrogates, which cannot be written as UTF-8")
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _FIELDS:
            raise _bad(
                f"there is no option {name!r}{did_you_mean(name, _FIELDS)}; there are: {', '.join(sorted(_FIELDS))}"
            )
        if value is None:
            continue
        check, wanted = _CHECKS[name]
        if not check(value):
            raise _bad(f"{name} must be {wanted}, got {_shown(value)}")
        given[name] = value
    return AgentCall(prompt=prompt, **given)


class Schemas:
    """The schemas of one run, each compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[bytes, OutputSchema] = {}

    def of(self, schema: JsonObject | bool) -> OutputSchema:
        """Raises WorkflowInputError, `bad_call`: it is none, or nothing can match it."""
        try:
            written = encode_json(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise _bad(f"schema is not JSON: {error}") from None
        known = self._compiled.get(written)
        if known is None:
            try:
                known = self._compiled[written] = compile_schema(cast("object", schema))
            except InvalidSpecError as error:
                raise _bad(f"schema: {error}") from None
        return known


def _bad(reason: str) -> WorkflowInputError:
    return WorkflowInputError("bad_call", f"agent(): {reason}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
