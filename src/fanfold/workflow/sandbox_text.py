"""The text of an inline script as the sandbox gets it: each line is where it was, so that what fails can be found.

Two things are put in. A mark before each simple statement says which line is about to run, since code in the sandbox
cannot ask where an error came from; and `asyncio` becomes the prelude's, whose tasks stay in the lane that began them.
For the type check `ctx` gets its type.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import resources

_ASYNCIO = "__fanfold_asyncio__"
_LINE = "__fanfold_line__[0]"
_UNMARKED = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass, ast.Break, ast.Continue)
Change = tuple[int, int, str]
"""Start and end in the UTF-8 text, and what is to stand there."""


@cache
def packaged(name: str) -> str:
    return resources.files("fanfold.workflow").joinpath(name).read_text("utf-8")


def runnable_text(script: str) -> str:
    """Raises SyntaxError, ValueError."""
    lines = _Lines(script)
    module = ast.parse(script)
    changes = [*_marks(module, lines), *_tests(module, lines), *_imports(module, lines)]
    return _changed(lines.text, changes)


def checkable_text(script: str) -> str:
    """With the type of `ctx` in all functions that do not name one. Raises SyntaxError, ValueError."""
    lines = _Lines(script)
    return _changed(lines.text, list(_types(ast.parse(script), lines)))


class _Lines:
    def __init__(self, script: str) -> None:
        self.text = script.encode()
        # As Python counts them: a form feed or U+2028 ends no line, which is why this is not `splitlines`.
        self._starts = [0]
        for line in script.replace("\r\n", "\0\n").replace("\r", "\n").split("\n"):
            self._starts.append(self._starts[-1] + len(line.encode()) + 1)

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.arg) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def replaced(self, statement: ast.stmt, new: str) -> Change:
        """By `new` on its first line; the others stay, and are empty."""
        start, end = self.start(statement), self.end(statement)
        return start, end, new + "\n" * self.text[start:end].count(b"\n")


def _changed(text: bytes, changes: list[Change]) -> str:
    parts: list[bytes] = []
    at = 0
    for start, end, new in sorted(changes):
        parts += [text[at:start], new.encode()]
        at = end
    return b"".join([*parts, text[at:]]).decode()


def _types(module: ast.Module, lines: _Lines) -> Iterator[Change]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if argument.arg == "ctx" and argument.annotation is None:
                    yield lines.end(argument), lines.end(argument), ": WorkflowContext"
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            yield lines.replaced(node, "pass")  # the sandbox takes it, its type checker does not know it


def _marks(module: ast.Module, lines: _Lines) -> Iterator[Change]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):  # the body of a class takes no such statement
            continue
        for statement in ast.iter_child_nodes(node):
            if isinstance(statement, ast.stmt) and _is_markable(statement):
                start = lines.start(statement)
                yield start, start, f"{_LINE}={statement.lineno};"


def _is_markable(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False  # may be a docstring
    has_suite = hasattr(statement, "body") or isinstance(statement, ast.Match)
    return not has_suite and not isinstance(statement, _UNMARKED)


def _tests(module: ast.Module, lines: _Lines) -> Iterator[Change]:
    """What stands between `if`, `while` or `for` and the colon."""
    for node in ast.walk(module):
        tested = node.iter if isinstance(node, ast.For) else node.test if isinstance(node, ast.If | ast.While) else None
        if tested is not None:
            start, end = lines.start(tested), lines.end(tested)
            yield start, start, f"(__fanfold_at__({tested.lineno})or("
            yield end, end, "))"


def _imports(module: ast.Module, lines: _Lines) -> Iterator[Change]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [each for each in node.names if each.name == "asyncio"]
            others = [each for each in node.names if each.name != "asyncio"]
            bound = [f"{each.asname or each.name}={_ASYNCIO}" for each in names]
            rest = ", ".join(f"{each.name} as {each.asname}" if each.asname else each.name for each in others)
        elif isinstance(node, ast.ImportFrom) and node.module == "asyncio" and not node.level:
            pairs = [(each.asname or each.name, each.name) for each in node.names]
            if pairs == [("*", "*")]:
                pairs = [("gather", "gather"), ("sleep", "sleep")]
            bound = [f"{name}={_ASYNCIO}.{original}" for name, original in pairs]
            rest = ""
        else:
            continue
        if bound:
            yield lines.replaced(node, ";".join([*bound, *([f"import {rest}"] if rest else [])]))
