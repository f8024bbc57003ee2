"""Scripts: a workflow's text or function, ready to be run.

A text is a module with `META = {...}`, a pure literal, and one top-level `async def <any name>(ctx, args)`. It is read
without being executed, so a bad one is refused before any of its code runs, and it is executed anew for each run, so
nothing that it keeps in its module outlives the run.
"""

import ast
import hashlib
import linecache
import traceback
from collections.abc import Awaitable, Callable
from functools import lru_cache
from types import CodeType
from typing import Any, cast

import msgspec

from fanfold.contracts.workflow_runs import RunFault, SourceKind, WorkflowMeta
from fanfold.errors import FanfoldError, WorkflowInputError
from fanfold.foreign import described
from fanfold.kernel.plain_text import plain
from fanfold.kernel.workflow_meta import parse_meta

MAX_SCRIPT_BYTES = 1_048_576
MAX_FAULT_CHARACTERS = 4_000
ScriptFunction = Callable[[Any, Any], Awaitable[Any]]


class Script(msgspec.Struct, frozen=True, kw_only=True):
    meta: WorkflowMeta
    kind: SourceKind
    entry: str
    """Name of the function."""
    text: str | None = None
    """None for a registered function, which is `function`."""
    path: str | None = None
    sha256: str | None = None
    """Of the text."""
    function: ScriptFunction | None = None

    @property
    def file_name(self) -> str:
        """What tracebacks call it."""
        code = getattr(self.function, "__code__", None)
        if code is not None:
            return str(code.co_filename)
        return self.path or f"<workflow {self.meta.name}>"


def text_sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def registered(meta: object, function: object) -> Script:
    """A script from a host's own function.

    Raises:
        WorkflowInputError: `bad_meta`, or `bad_script` for what cannot be called with `(ctx, args)`.
    """
    parsed = parse_meta(meta)
    if not callable(function):
        raise WorkflowInputError("bad_script", f"workflow '{parsed.name}': its script must be a function (ctx, args)")
    script = cast("ScriptFunction", function)
    return Script(meta=parsed, kind="registered", entry=getattr(function, "__name__", "script"), function=script)


@lru_cache(maxsize=256)
def read_script(text: str, kind: SourceKind, path: str | None = None) -> Script:
    """A script from its text, none of which is executed.

    Raises:
        WorkflowInputError: `bad_script` or `bad_meta`, naming the line.
    """
    where = path or "the script"
    if len(text) > MAX_SCRIPT_BYTES:
        raise WorkflowInputError("bad_script", f"{where} is longer than {MAX_SCRIPT_BYTES} characters")
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        fault = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise WorkflowInputError("bad_script", f"{where} is no Python: {fault}") from None
    meta = parse_meta(_literal_meta(module, where))
    _require_order(module, where)
    return Script(meta=meta, kind=kind, entry=_entry_of(module, where), text=text, path=path, sha256=text_sha(text))


BY_SPEED = ("as_completed", "wait")
"""Of asyncio: they tell which agent was quicker, so a script that goes by them could not be resumed (notes 4)."""


def _require_order(module: ast.Module, where: str) -> None:
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in BY_SPEED
            and isinstance(node.value, ast.Name)
            and node.value.id == "asyncio"
        ):
            reason = f"asyncio.{node.attr} tells which agent was quicker, and each attempt would go another way"
            raise WorkflowInputError(
                "bad_script", f"{where}, line {node.lineno}: {reason}; use ctx.parallel or ctx.pipeline"
            )


def _literal_meta(module: ast.Module, where: str) -> object:
    for statement in module.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        if any(isinstance(target, ast.Name) and target.id == "META" for target in targets):
            try:
                return ast.literal_eval(cast("ast.Assign", statement).value)
            except (ValueError, TypeError, RecursionError, MemoryError):
                reason = (
                    f"{where}, line {statement.lineno}: META must be a literal: it is read without running the script"
                )
                raise WorkflowInputError("bad_meta", reason) from None
    reason = f'{where} has no META; write META = {{"name": "...", "description": "..."}} at its top'
    raise WorkflowInputError("bad_meta", reason)


def _entry_of(module: ast.Module, where: str) -> str:
    found = [
        each.name
        for each in module.body
        if isinstance(each, ast.AsyncFunctionDef)
        and [arg.arg for arg in (*each.args.posonlyargs, *each.args.args)][:1] == ["ctx"]
        and len(each.args.posonlyargs) + len(each.args.args) == 2
    ]
    if len(found) == 1:
        return found[0]
    many = f"several: {', '.join(found)}" if found else "none"
    raise WorkflowInputError(
        "bad_script", f"{where} must have one top-level `async def <name>(ctx, args)`; it has {many}"
    )


def function_of(script: Script) -> ScriptFunction:
    """What to call; the module of a text is executed for it.

    Raises:
        WorkflowInputError: `bad_script`, its module raises.
    """
    if script.function is not None:
        return script.function
    assert script.text is not None
    name = script.file_name
    namespace: dict[str, Any] = {"__name__": f"workflow_{script.meta.name}", "__file__": name}
    try:
        exec(_compiled(script.text, name), namespace)
    except (Exception, SystemExit) as error:
        line = script_line(error, name)
        at = "" if line is None else f", line {line}"
        raise WorkflowInputError("bad_script", f"{name}{at}: {fault_text(error)}") from error
    return cast("ScriptFunction", namespace[script.entry])


@lru_cache(maxsize=64)
def _compiled(text: str, name: str) -> CodeType:
    if name.startswith("<"):  # so that a traceback can show its lines
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return compile(text, name, "exec")


def fault_text(error: BaseException) -> str:
    """What a script has raised, as files and wires can carry it: what its code says may be anything."""
    return clipped(str(error) if isinstance(error, FanfoldError) else described(error))


def clipped(text: str) -> str:
    return plain(text if len(text) <= MAX_FAULT_CHARACTERS else f"{text[: MAX_FAULT_CHARACTERS - 1]}…")


def fault_code(error: BaseException) -> str:
    """Its code, if it is one of ours, or its class: what other classes call `code` may be anything."""
    code: object = error.code if isinstance(error, FanfoldError) else None
    return plain(code if isinstance(code, str) and code else type(error).__name__)


def fault_line(error: BaseException, file_name: str) -> int | None:
    """The line of the script at which `error` left it, also where the sandbox tells it."""
    told: object = getattr(error, "line", None) if isinstance(error, FanfoldError) else None
    return told if isinstance(told, int) else script_line(error, file_name)


def fault_of(error: BaseException, file_name: str) -> RunFault:
    """What a run or a plan tells of the error that ended its script, the one in `file_name`."""
    return RunFault(code=fault_code(error), message=fault_text(error), line=fault_line(error, file_name))


def ended_process(error: SystemExit) -> WorkflowInputError:
    """What stands for `sys.exit` in a script: let out of a task it would end the whole event loop."""
    told = WorkflowInputError("bad_script", f"a script must not end its process ({described(error)}): return or raise")
    return told.with_traceback(error.__traceback__)


def script_line(error: BaseException, file_name: str) -> int | None:
    """The line of the script at which `error` left it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file_name]
    return lines[-1] if lines else None
