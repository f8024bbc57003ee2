"""One agent definition: the keys of its file, checked, as a record (notes 7.1)."""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import replace

from fanfold.config.front_matter import split_front_matter
from fanfold.config.problems import MAX_SHOWN, Problems
from fanfold.config.reading import TableReader
from fanfold.config.tool_names import BUILTIN_TOOLS, ToolRule, parse_tool_rule, split_list
from fanfold.config.tree import Entry, Place, Plain, Table
from fanfold.contracts.agents import AgentDefinition, ConfirmationInheritance, WorkerAgentSpec, WorkerKind
from fanfold.contracts.policy import Decision, PermissionPolicy
from fanfold.errors import ConfigError
from fanfold.kernel.worker_kinds import parse_kind
from fanfold.nearest import did_you_mean

AnyAgent = AgentDefinition | WorkerAgentSpec

MAX_NAME_CHARACTERS = 128
MAX_VALUES = 2_000
"""In one comma list; as many as YAML values in a whole definition."""
_INHERITANCES: tuple[ConfirmationInheritance, ...] = ("inherit_parent", "auto_approve", "deny_on_ask")
_DECISIONS: tuple[Decision, ...] = ("allow", "deny", "ask")
_ALLOWED_KEYS = ("tools", "allowedTools", "allowed_tools")
_DENIED_KEYS = ("disallowedTools", "disallowed-tools", "disallowed_tools")
_STEPS_KEYS = ("max_steps", "maxTurns")
_COSMETIC = frozenset(("color",))
_WITHOUT_MEANING = frozenset(
    ("background", "effort", "initialPrompt", "mcpServers", "memory", "native", "permissionMode", "skills")
)
"""Keys of other runtimes. Without them the agent may do no more than with them, so it is loaded all the same."""


class ParsedAgent(msgspec.Struct, frozen=True):
    agent: AnyAgent
    warnings: tuple[str, ...]
    """`file:line:column: ...` of each thing that is taken otherwise than it was written."""


def parse_agent(text: str, file: str, *, is_markdown: bool, tool_names: Collection[str] = ()) -> ParsedAgent:
    """The agent that `text` defines; a worker when it has the key `kind`.

    Args:
        file: names the text in messages.
        tool_names: tools that exist beside the built-in ones.

    Raises:
        ConfigError: with every fault, each with its place.
    """
    from fanfold.config.yaml_tree import parse_yaml  # with PyYAML: milliseconds for those who have such files only

    if "\0" in text:
        raise ConfigError(f"{file}: it holds a NUL character, so it is no text")
    problems = Problems()
    yaml, first_line, body, what = text, 1, "", "Failed to parse agent YAML"
    if is_markdown:
        matter = split_front_matter(text)
        if matter is None:
            raise ConfigError(f"{file}: Invalid markdown format: missing YAML frontmatter between two lines ---")
        yaml, first_line, body = matter.yaml, matter.first_line, matter.body
        what = "Failed to parse agent frontmatter"
    table = parse_yaml(yaml, file, problems, first_line=first_line, what=what)
    problems.raise_if_any()
    keys = _Keys(table or Table(Place(file, first_line)), body, problems, tool_names)
    agent = keys.worker() if table is not None and "kind" in table.entries else keys.definition()
    problems.raise_if_any()
    more = len(keys.warnings) - MAX_SHOWN
    told = [*keys.warnings[:MAX_SHOWN], *([f"{file}: ... and {more} more"] if more > 0 else [])]
    return ParsedAgent(agent, tuple(told))


class _Keys:
    def __init__(self, table: Table, body: str, problems: Problems, tool_names: Collection[str]) -> None:
        self._body = body
        self._problems = problems
        self._tool_names = tool_names
        self.warnings: list[str] = []
        self._reader = TableReader(self._without_foreign(table), "", {}, problems)

    def definition(self) -> AgentDefinition:
        reader = self._reader
        allowed, denied = self._one_list(_ALLOWED_KEYS), self._one_list(_DENIED_KEYS)
        tools = ("*",) if allowed is None else _tools_of(allowed)
        agent = AgentDefinition(
            name=self._name(),
            description=reader.text("description", ""),
            prompt=self._prompt() or "",
            tools=() if reader.flag("tool_free", False) else tools,
            model=self._model(),
            confirmation_inheritance=reader.choice("confirmation_inheritance", "inherit_parent", _INHERITANCES),
            is_hidden=reader.flag("hidden", False),
        )
        changes: dict[str, Any] = {"permissions": self._permissions(allowed, denied), "max_steps": self._max_steps()}
        reader.finish()
        return replace(agent, **{name: value for name, value in changes.items() if value is not None})

    def worker(self) -> WorkerAgentSpec:
        reader = self._reader
        tools = self._one_list(("tools",))
        for each in tools or ():
            if each.has_pattern:
                self._fault("tools", f"of a worker's tools give the names; {each.rule} belongs under permissions")
        has_inheritance = self._is_given("confirmation_inheritance")
        inheritance: ConfirmationInheritance = reader.choice(
            "confirmation_inheritance", "inherit_parent", _INHERITANCES
        )
        worker = WorkerAgentSpec(
            name=self._name(),
            description=reader.text("description", ""),
            kind=self._kind(),
            prompt=self._prompt(),
            permissions=self._permissions(None, None),
            tools=None if tools is None else _tools_of(tools),
            model=self._model(),
            max_steps=self._max_steps(),
            confirmation_inheritance=inheritance if has_inheritance else None,
            hidden=reader.flag("hidden", False),
        )
        reader.finish()
        return worker

    def _without_foreign(self, table: Table) -> Table:
        own: dict[str, Entry] = {}
        for key, entry in table.entries.items():
            if key in _WITHOUT_MEANING:
                self._foreign(key, entry)
            elif key not in _COSMETIC:
                own[key] = entry
        return Table(table.place, own)

    def _foreign(self, key: str, entry: Entry) -> None:
        mode = entry.value.value if isinstance(entry.value, Plain) else None
        if key != "permissionMode":
            self._warn(entry.place, f"{key} has no meaning here")
        elif mode == "plan":
            self._problems.add(entry.place, "permissionMode: plan is not known here; list read-only tools under tools")
        elif mode != "default":
            self._warn(entry.place, "permissionMode has no meaning here: an agent may never more than its session")

    # ---- plain keys ----

    def _name(self) -> str:
        name = self._reader.text("name", "").strip()
        if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            self._fault("name", f"name must be 1 to {MAX_NAME_CHARACTERS} characters on one line")
        if not name and not self._problems:
            self._fault("name", "Agent name is required")
        return name

    def _kind(self) -> WorkerKind:
        text = self._reader.text("kind", None)
        if text is not None:
            try:
                return parse_kind(text)
            except ConfigError as error:
                self._fault("kind", error.problems[0])
        return "custom"

    def _prompt(self) -> str | None:
        prompt = self._reader.text("prompt", None)
        if prompt is not None and self._body:
            self._warn(self._place("prompt"), "the text below the front matter is not used, for it has a prompt")
        return prompt or self._body or None

    def _max_steps(self) -> int | None:
        given = [self._reader.integer(key, None) for key in self._only_one(_STEPS_KEYS)]
        return given[0] if given else None

    def _model(self) -> str | None:
        """`provider/model-id`, also from the two as a table; None for the session's own."""
        entry = self._reader.table.entries.get("model")
        if entry is not None and isinstance(entry.value, Table):
            reader = self._reader.sub_table("model")
            assert reader is not None
            provider, model = reader.text("provider", ""), reader.text("model", "")
            reader.finish()
            reference = f"{provider}/{model}" if provider else model
        else:
            reference = self._reader.text("model", "")
        if not reference or reference == "inherit" or "/" in reference:
            return reference if "/" in reference else None
        self._warn(
            self._place("model"), f"model {reference!r} is no provider/model-id; the session's own model is used"
        )
        return None

    # ---- tools and permissions ----

    def _one_list(self, keys: tuple[str, ...]) -> list[ToolRule] | None:
        """The entries under that one of `keys` which is there; None when none is."""
        found = self._only_one(keys)
        return self._list(self._reader, found[0]) if found else None

    def _list(self, reader: TableReader, key: str) -> list[ToolRule]:
        """A list or a comma list of tools and rules."""
        found: list[ToolRule] = []
        entry = reader.table.entries.get(key)

        def take(text: str) -> None:
            found.append(self._known(key, parse_tool_rule(text, self._tool_names), entry))

        if entry is None or not isinstance(entry.value, Plain):
            reader.texts(key, take)
            return found
        entries = split_list(reader.text(key, ""))
        if len(entries) > MAX_VALUES:
            self._problems.add(entry.value.place, f"{key}: more than {MAX_VALUES:,} entries")
            return found
        for text in entries:
            try:
                take(text)
            except ConfigError as error:
                self._problems.add(entry.value.place, f"{key}: {error.problems[0]}")
        return found

    def _known(self, key: str, rule: ToolRule, entry: Entry | None) -> ToolRule:
        if not rule.is_known and entry is not None:
            near = did_you_mean(rule.tool, (*BUILTIN_TOOLS, *self._tool_names))
            self._warn(entry.place, f"{key}: there is no tool {rule.tool!r} here{near}")
        return rule

    def _permissions(self, allowed: list[ToolRule] | None, denied: list[ToolRule] | None) -> PermissionPolicy | None:
        """None where nothing is said of them."""
        reader = self._reader.sub_table("permissions")
        if reader is None:
            if allowed is None and denied is None:
                return None
            return PermissionPolicy(
                allow=_rules_of(allowed),
                deny=_rules_of(denied),
                default_decision="allow" if allowed is None else "deny",
            )
        lists = {key: tuple(each.rule for each in self._list(reader, key)) for key in ("allow", "deny", "ask")}
        key = "default_decision" if "default_decision" in reader.table.entries else "default"
        decision: Decision = reader.choice(key, "ask" if allowed is None else "deny", _DECISIONS)
        reader.finish()
        return PermissionPolicy(
            allow=tuple(dict.fromkeys((*_rules_of(allowed), *lists["allow"]))),
            deny=tuple(dict.fromkeys((*_rules_of(denied), *lists["deny"]))),
            ask=lists["ask"],
            default_decision=decision,
        )

    # ---- what is said of it ----

    def _only_one(self, keys: tuple[str, ...]) -> list[str]:
        """The one of `keys`, which mean the same, that is there and not null."""
        entries = self._reader.table.entries
        found = [key for key in keys if self._is_given(key)]
        for second in found[1:]:
            place = entries.pop(second).place
            self._problems.add(place, f"{second} and {found[0]} mean the same; keep one of them")
        for key in keys:
            if key not in found:
                self._reader.text(key, None)  # so that it counts as known
        return found[:1]

    def _is_given(self, key: str) -> bool:
        entry = self._reader.table.entries.get(key)
        return entry is not None and not (isinstance(entry.value, Plain) and entry.value.value is None)

    def _place(self, key: str) -> Place:
        entry = self._reader.table.entries.get(key)
        return self._reader.table.place if entry is None else entry.place

    def _fault(self, key: str, text: str) -> None:
        self._problems.add(self._place(key), text)

    def _warn(self, place: Place, text: str) -> None:
        self.warnings.append(f"{place.exact()}: {text}")


def _tools_of(rules: list[ToolRule]) -> tuple[str, ...]:
    """Each once. Children never delegate, so `task` is none of their tools."""
    return tuple(dict.fromkeys(each.tool for each in rules if each.tool != "task"))


def _rules_of(rules: list[ToolRule] | None) -> tuple[str, ...]:
    entries = ((each.rule if each.has_pattern else each.tool) for each in rules or () if each.tool != "task")
    return tuple(dict.fromkeys(entries))
