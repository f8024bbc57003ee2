"""The public surface is what the package says, and no more than a reader can hold."""

import ast
import inspect
from pathlib import Path

import pytest

import fanfold


def test_the_names_for_type_checkers_are_the_names_at_run_time() -> None:
    tree = ast.parse(Path(inspect.getfile(fanfold)).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    static = {alias.name: node.module for node in imports for alias in node.names}
    assert {name: getattr(fanfold, name).__module__ for name in static} == static
    assert set(fanfold.__all__) == {"__version__", *static}
    assert len(static) <= 40


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        _ = fanfold.Agnet
    assert "Agent" in dir(fanfold)
