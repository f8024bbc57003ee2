"""What in the text of a host script would make its runs differ, or not do what was meant: found without running it.

A resumed script is run again from its beginning and answered from the journal, so whatever it takes from elsewhere (the
clock, chance, files, the order in which things end) may lead it to other calls than before.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Literal

from fanfold.contracts.record import Record
from fanfold.nearest import did_you_mean
from fanfold.workflow.calls import AgentCall
from fanfold.workflow.scripts import BY_SPEED

_CLOCK = "the clock differs from run to run: use ctx.now(), when the run was first launched in Unix ms"
_CHANCE = "chance differs from run to run: use ctx.random(), the same at its place in each attempt"
_UUID = "it differs from run to run: use ctx.uuid(), the same at its place in each attempt"
_COMPLETION = "the order in which things end differs from run to run: use ctx.parallel or ctx.pipeline"
_TASKS = "calls of tasks that run at once may swap places: use ctx.parallel or ctx.pipeline"
_WORLD = "what it finds may differ when the run is resumed: let an agent do it, or pass it as an argument"
_HASHES = "it differs from process to process"

_ERRORS = {f"asyncio.{name}": _COMPLETION for name in BY_SPEED}
_WARNINGS = {
    "asyncio.create_task": _TASKS,
    "asyncio.ensure_future": _TASKS,
    "asyncio.gather": _TASKS,
    "asyncio.TaskGroup": _TASKS,
    "datetime.date.today": _CLOCK,
    "datetime.datetime.now": _CLOCK,
    "datetime.datetime.today": _CLOCK,
    "datetime.datetime.utcnow": _CLOCK,
    "glob.glob": _WORLD,
    "glob.iglob": _WORLD,
    "hash": _HASHES,
    "id": _HASHES,
    "input": _WORLD,
    "open": _WORLD,
    "os.environ": _WORLD,
    "os.getenv": _WORLD,
    "os.getpid": _HASHES,
    "os.listdir": _WORLD,
    "os.popen": _WORLD,
    "os.scandir": _WORLD,
    "os.system": _WORLD,
    "os.urandom": _CHANCE,
    "os.walk": _WORLD,
    "random.SystemRandom": _CHANCE,
    "time.sleep": "it keeps all agents of this process waiting: use await asyncio.sleep(...)",
}
_MODULES = {"random": _CHANCE, "secrets": _CHANCE, "subprocess": _WORLD, "time": _CLOCK, "uuid": _UUID}
"""Each call of these, but for `_HARMLESS`."""
_HARMLESS = frozenset(
    {"random.Random", "random.seed", "time.strptime", "time.mktime", "uuid.UUID", "uuid.uuid3", "uuid.uuid5"}
)
_FILE_METHODS = frozenset({"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "rglob"})
_ORDERED = frozenset({"list", "tuple", "enumerate", "iter"})
_ORDERLESS = frozenset({"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"})
_AWAITED = frozenset({"agent", "parallel", "pipeline", "workflow"})
_PLAIN = frozenset({"phase", "log", "failure", "now", "random", "uuid"})
_OPTIONS = frozenset(AgentCall.__struct_fields__) - {"prompt"}


class Finding(Record, frozen=True, kw_only=True):
    line: int | None = None
    severity: Literal["error", "warning"]
    code: str
    """`bad_script`, `bad_meta`, `not_repeatable`, `completion_order`, `not_awaited`, `late_binding`, `bad_call`, ..."""
    message: str


def finding_line(place: str, finding: Finding) -> str:
    """`audit.py:12: warning: time.time(): ...`; `place` is what the script is called."""
    where = place if finding.line is None else f"{place}:{finding.line}"
    return f"{where}: {finding.severity}: {finding.message}"


def find_hazards(text: str, phases: Sequence[str] | None) -> list[Finding]:
    """By line. `text` is Python; `phases` are those that its META announces."""
    module = ast.parse(text)
    looker = _Looker(_imported(module), phases)
    try:
        looker.visit(module)
    except RecursionError:
        looker.found.append(Finding(severity="warning", code="too_deep", message="it is nested too deeply to be read"))
    return sorted(looker.found, key=lambda each: each.line or 0)


def _imported(module: ast.Module) -> dict[str, str]:
    """What imported names stand for: `now` for `time.time`."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for each in node.names:
                names[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


class _Looker(ast.NodeVisitor):
    def __init__(self, imported: dict[str, str], phases: Sequence[str] | None) -> None:
        self._imported = imported
        self._phases = phases
        self._in_loops: list[frozenset[str]] = []
        """Names that the loops around change with each turn."""
        self._orderless: set[int] = set()
        """Expressions whose order does not matter to what takes them."""
        self.found: list[Finding] = []

    def _tell(self, node: ast.AST, severity: Literal["error", "warning"], code: str, message: str) -> None:
        self.found.append(Finding(line=getattr(node, "lineno", None), severity=severity, code=code, message=message))

    # ---- names ----

    def _name_of(self, node: ast.AST) -> str | None:
        """`datetime.datetime.now`, however it was imported; None for what is no plain name."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            inner = self._name_of(node.value)
            return None if inner is None else f"{inner}.{node.attr}"
        return None

    def _verb_of(self, node: ast.AST) -> str | None:
        """`agent`, of a call of `ctx.agent`."""
        name = self._name_of(node.func) if isinstance(node, ast.Call) else None
        verb = None if name is None else name.removeprefix("ctx.")
        return verb if verb != name else None

    # ---- nodes ----

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._name_of(node) == "os.environ":
            self._tell(node, "warning", "not_repeatable", f"os.environ: {_WORLD}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._name_of(node.func)
        if name is not None:
            self._called(node, name)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _FILE_METHODS:
            self._tell(node, "warning", "not_repeatable", f"{node.func.attr}(): {_WORLD}")
        verb = self._verb_of(node)
        if verb is not None:
            self._asked(node, verb)
        if name in _ORDERLESS:
            self._orderless |= {id(each) for each in node.args}
        if name in _ORDERED and node.args and id(node) not in self._orderless:
            self._iterated(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "append" and self._in_loops:
            for each in node.args:
                self._bound_late(each, frozenset(name for names in self._in_loops for name in names))
        self.generic_visit(node)

    def _called(self, node: ast.Call, name: str) -> None:
        if name in _ERRORS:
            self._tell(node, "error", "completion_order", f"{name}(): {_ERRORS[name]}")
        elif name in _WARNINGS:
            self._tell(node, "warning", "not_repeatable", f"{name}(): {_WARNINGS[name]}")
        elif name in _HARMLESS:
            if name == "random.Random" and not node.args:
                self._tell(node, "warning", "not_repeatable", f"{name}(): {_CHANCE}")
        elif "." in name and name.partition(".")[0] in _MODULES:
            self._tell(node, "warning", "not_repeatable", f"{name}(): {_MODULES[name.partition('.')[0]]}")

    def _asked(self, node: ast.Call, verb: str) -> None:
        if verb not in _AWAITED | _PLAIN:
            hint = did_you_mean(verb, _AWAITED | _PLAIN)
            self._tell(node, "error", "bad_call", f"there is no ctx.{verb}(){hint}")
        if verb == "agent":
            self._check_options(node)
        if verb in ("parallel", "pipeline") and node.args:
            self._check_branches(node.args[0], verb)
        titles = [each.value for each in node.keywords if each.arg == "phase"]
        for title in titles if verb != "phase" else node.args[:1]:
            self._check_phase(title)

    def _check_options(self, node: ast.Call) -> None:
        if len(node.args) > 1:
            self._tell(node, "error", "bad_call", "ctx.agent() takes the prompt; name everything else: schema=, label=")
        for each in node.keywords:
            if each.arg is not None and each.arg not in _OPTIONS | {"prompt"}:
                hint = did_you_mean(each.arg, _OPTIONS)
                self._tell(each.value, "error", "bad_call", f"ctx.agent() has no option '{each.arg}'{hint}")

    def _check_branches(self, given: ast.expr, verb: str) -> None:
        self._iterated(given)
        elements = given.elts if isinstance(given, ast.List | ast.Tuple) else []
        if isinstance(given, ast.ListComp | ast.GeneratorExp):
            elements = [given.elt]
        for each in elements:
            if verb == "parallel" and self._verb_of(each) in _AWAITED:
                reason = "ctx.parallel() takes functions, not calls that run already: write `lambda: ctx.agent(...)`"
                self._tell(each, "error", "bad_call", reason)

    def _check_phase(self, title: ast.expr) -> None:
        if self._phases is None or not isinstance(title, ast.Constant) or not isinstance(title.value, str):
            return
        if title.value not in self._phases:
            hint = did_you_mean(title.value, self._phases)
            self._tell(title, "warning", "unknown_phase", f"phase '{title.value}' is not among META's phases{hint}")

    def visit_Expr(self, node: ast.Expr) -> None:
        verb = self._verb_of(node.value)
        if verb in _AWAITED:
            self._tell(
                node, "error", "not_awaited", f"ctx.{verb}() is not awaited, so nothing runs: await ctx.{verb}()"
            )
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        verb = self._verb_of(node.value)
        if verb in _PLAIN:
            self._tell(node, "error", "bad_call", f"ctx.{verb}() answers at once and cannot be awaited")
        self.generic_visit(node)

    # ---- loops ----

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._iterated(node.iter)
        self._in_loops.append(frozenset(_names_in(node.target)))
        self.generic_visit(node)
        self._in_loops.pop()

    visit_AsyncFor = visit_For

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> None:
        changing = frozenset(name for each in node.generators for name in _names_in(each.target))
        self._bound_late(node.elt, changing)
        if id(node) not in self._orderless:
            for each in node.generators:
                self._iterated(each.iter)
        self.generic_visit(node)

    visit_GeneratorExp = visit_ListComp

    def _iterated(self, given: ast.expr) -> None:
        is_set = isinstance(given, ast.Set | ast.SetComp)
        if is_set or (isinstance(given, ast.Call) and self._name_of(given.func) in ("set", "frozenset")):
            reason = "the order of a set differs from process to process: use sorted(...)"
            self._tell(given, "warning", "not_repeatable", reason)

    def _bound_late(self, given: ast.expr, changing: frozenset[str]) -> None:
        """A function that is called behind the loop sees the last value of its variable."""
        if not isinstance(given, ast.Lambda):
            return
        own = {each.arg for each in (*given.args.posonlyargs, *given.args.args, *given.args.kwonlyargs)}
        for name in sorted((changing & set(_names_in(given.body))) - own):
            reason = f"each of these functions sees the last value of '{name}': write `lambda {name}={name}: ...`"
            self._tell(given, "error", "late_binding", reason)


def _names_in(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
