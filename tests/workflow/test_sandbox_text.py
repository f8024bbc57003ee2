"""The text that the sandbox gets does what the script says, on the same lines."""

import ast
from typing import Any

import pytest

from fanfold.workflow.sandbox_text import checkable_text, runnable_text

SCRIPTS = {
    "one line suites": "for n in [1, 2]: out.append(n); out.append(-n)\nif out: out.append(5)\nelse: out.append(6)\n",
    "multi line": "out.append(\n  1 +\n  2\n)\nif (out and\n    len(out)):\n  out += [\n    3]\n",
    "tuples in for": "for n in 1, 2:\n  out.append(n)\nfor n in *[3], *[4]:\n  out.append(n)\n",
    "walrus": "if n := len(out) + 1:\n  out.append(n)\nwhile (n := n - 1) > -3:\n  out.append(n)\n",
    "parentheses": "if (1) and (0):\n  out.append(1)\nelif (2):\n  out.append(2)\nwhile (len(out) < 3): out += [0]\n",
    "lambda and conditional": "f = lambda a, b=(1 if out else 2): a + b\nout.append(f(1) if f else 0)\n",
    "docstrings": 'def f():\n  """Doc."""\n  return f.__doc__\nout.append(f())\n"alone"\n',
    "class": "class A:\n  x = 1\n  def m(self):\n    self.y = 2\n    return self.y\nout.append([A.x, A().m()])\n",
    "try": "try:\n  1 / 0\nexcept ZeroDivisionError as e:\n  out.append(str(e))\nelse:\n  out.append(1)\nfinally:\n"
    "  out.append(2)\n",
    "match": "match [1, 2]:\n  case [a, b] if a:\n    out.append(b)\n  case _:\n    out.append(0)\n",
    "unicode": "é = '\u2028é\x0c'; out.append(é)\nif é: out.append(len(é)); é = 'ü'\nout.append(é)\n",
    "windows lines": "x = 1\r\nif x:\r\n  out.append(x)\r\n  out.append(2)\r\n",
    "mac lines": "x = 1\rif x:\r  out.append(x)\r",
    "continuation": "x = 1 + \\\n  2\nif x and \\\n   x:\n  out.append(x)\n",
    "f-strings": "x = 2\nout.append(f'{x:>{x}} {x!r} {x + 1}')\nout.append(f'''{\n  x}''')\n",
    "global and nonlocal": "g = 1\ndef f():\n  global g\n  g = 2\n  h = 1\n  def i():\n    nonlocal h\n    h = 3\n"
    "  i()\n  return h\nout += [f(), g]\n",
    "del, assert, raise": "try:\n  x = 1\n  assert x\n  raise KeyError(x)\nexcept KeyError: out.append('k')\n",
    "loops with else": "for n in []:\n  pass\nelse:\n  out.append('e')\nwhile 0: pass\nelse: out.append('w')\n",
    "no newline at the end": "out.append(1)",
    "only a comment": "# nothing\n",
    "empty": "",
    "decorated": "def d(f): return f\n@d\ndef f(a=1, *b, c: int = 2, **e) -> int:\n  return a + c\nout.append(f())\n",
    "comprehensions": "out += [n for n in range(3) if n if n > 1]\nout.append({n: [m for m in [n]] for n in [1]})\n",
    "annotated": "x: int = 1\ny: int\nx += 1\nout.append(x)\n",
}


def run(text: str) -> tuple[list[Any], list[int]]:
    line, seen, out = [0], [], list[Any]()

    def at(number: int) -> None:
        line[0] = number

    class Out(list[Any]):
        def append(self, value: Any) -> None:
            seen.append(line[0])
            super().append(value)

    out = Out()
    exec(compile(text, "x", "exec"), {"out": out, "__fanfold_line__": line, "__fanfold_at__": at})
    return list(out), seen


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_marked_script_does_the_same(name: str) -> None:
    script = SCRIPTS[name]
    marked = runnable_text(script)
    assert run(marked)[0] == run(script)[0]
    assert marked.count("\n") == script.count("\n")


def test_marks_tell_the_line_that_runs() -> None:
    script = "out.append(1)\n\nif out.append(2) or 1:\n  x = 1; out.append(3)\n  out.append(\n    4)\n"
    script += "for n in [out.append(5)]: pass\n"
    assert run(runnable_text(script)) == ([1, 2, 3, 4, 5], [1, 3, 4, 5, 7])


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_name_stays_on_its_line(name: str) -> None:
    def names(text: str) -> list[tuple[int, str]]:
        found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
        return sorted((node.lineno, node.id) for node in found if not node.id.startswith("__fanfold"))

    assert names(runnable_text(SCRIPTS[name])) == names(SCRIPTS[name])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import asyncio\n", "asyncio=__fanfold_asyncio__\n"),
        ("import asyncio as aio, json\n", "aio=__fanfold_asyncio__;import json\n"),
        ("import json as j, os, asyncio\n", "asyncio=__fanfold_asyncio__;import json as j, os\n"),
        ("from asyncio import gather, sleep as s\n", "gather=__fanfold_asyncio__.gather;s=__fanfold_asyncio__.sleep\n"),
        ("from asyncio import (\n  gather,\n)\n1\n", "gather=__fanfold_asyncio__.gather\n\n\n1\n"),
        (
            "from asyncio import *\n",
            "gather=__fanfold_asyncio__.gather;sleep=__fanfold_asyncio__.sleep\n",
        ),
        ("from .asyncio import x\nimport json\nfrom json import dumps\n", None),
        (
            "def f():\n  import asyncio; return 1\n",
            "def f():\n  asyncio=__fanfold_asyncio__; __fanfold_line__[0]=2;return 1\n",
        ),
    ],
)
def test_asyncio_is_that_of_the_prelude(script: str, expected: str | None) -> None:
    assert runnable_text(script) == (script if expected is None else expected)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("async def f(ctx, args): pass\n", "async def f(ctx: WorkflowContext, args): pass\n"),
        ("def f(a, ctx=None, *, b): pass\n", "def f(a, ctx: WorkflowContext=None, *, b): pass\n"),
        ("def f(*, ctx): pass\n", "def f(*, ctx: WorkflowContext): pass\n"),
        (
            "def f(ctx: int, é='é', /): pass\ndef g(é, ctx): 'é'\n",
            "def f(ctx: int, é='é', /): pass\ndef g(é, ctx: WorkflowContext): 'é'\n",
        ),
        ("from __future__ import (\n  annotations)\nlambda ctx: 1\n", "pass\n\nlambda ctx: 1\n"),
    ],
)
def test_the_types_of_ctx_are_put_in(script: str, expected: str) -> None:
    assert checkable_text(script) == expected
