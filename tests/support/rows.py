"""Rows: what has to hold, in a sentence each, and the tests that would tell if it did not."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

Row = tuple[str, ...]
"""A sentence, then the tests, each as `path::name`."""


def check_row(row: Row) -> None:
    """Raises AssertionError: it is no sentence, has no test, names one twice, or one that there is not."""
    sentence, *tests = row
    assert sentence.endswith(".")
    assert tests
    assert len(set(tests)) == len(tests)
    for each in tests:
        path, _, name = each.partition("::")
        assert (ROOT / path).is_file(), path
        assert name in _named_in(path), each


@cache
def _named_in(path: str) -> frozenset[str]:
    """The names of the tests, and of the classes of tests, that stand in a file."""
    return frozenset(_tests_of(ast.parse((ROOT / path).read_text(encoding="utf-8")).body))


def _tests_of(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from (node.name, *_tests_of(node.body))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
