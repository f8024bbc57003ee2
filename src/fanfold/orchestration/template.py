"""Prompt templates: `{name}` stands for a field, everything else for itself.

Only a brace pair around a plain name is a placeholder, so JSON in a prompt needs no escaping; `{{name}}` gives the
literal `{name}`.
"""

import difflib
import re
from collections.abc import Collection, Mapping

from fanfold.errors import UsageError

_PLACE = re.compile(r"\{\{([^\W\d][\w.]*)\}\}|\{([^\W\d][\w.]*)\}")


def check(template: str, known: Collection[str]) -> None:
    """Refuse a template that names a field which its items do not have.

    Raises:
        UsageError: naming the field, the nearest one and all there are.
    """
    for found in _PLACE.finditer(template):
        name = found.group(2)
        if name is not None and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {{{near[0]}}}? " if near else ""
            fields = ", ".join(sorted(known))
            raise UsageError(f"the prompt names {{{name}}}, which the items do not have; {advice}there are: {fields}")


def render(template: str, fields: Mapping[str, str]) -> str:
    """The template with its fields filled in, in one pass: braces inside a value stay as they are."""
    return _PLACE.sub(lambda found: fields[found.group(2)] if found.group(2) else f"{{{found.group(1)}}}", template)
