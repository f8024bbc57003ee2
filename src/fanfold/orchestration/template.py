"""Prompt templates: `{name}` stands for a field, everything else for itself.

Only a brace pair around a plain name is a placeholder, so JSON in a prompt needs no escaping; `{{name}}` gives the
literal `{name}`.
"""

import re
from collections.abc import Collection, Mapping

from fanfold.errors import UsageError
from fanfold.nearest import did_you_mean

_PLACE = r"\{\{([^\W\d][\w.]*)\}\}|\{([^\W\d][\w.]*)\}"


def check(template: str, known: Collection[str]) -> None:
    """Refuse a template that names a field which its items do not have.

    Raises:
        UsageError: naming the field, the nearest one and all there are.
    """
    for found in re.finditer(_PLACE, template):
        name = found.group(2)
        if name is not None and name not in known:
            raise UsageError(
                f"the prompt names {{{name}}}, which the items do not have{did_you_mean(name, known)}"
                f" (they have: {', '.join(sorted(known))})"
            )


def render(template: str, fields: Mapping[str, str]) -> str:
    """The template with its fields filled in, in one pass: braces inside a value stay as they are."""
    return re.sub(_PLACE, lambda found: fields[found[2]] if found[2] else f"{{{found[1]}}}", template)
