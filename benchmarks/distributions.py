"""What `pip install fanfold` installs, told from the installed metadata."""

from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def core_distributions() -> set[str]:
    """Names of fanfold and all that it requires here, without its extras."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting: list[tuple[str, frozenset[str]]] = [("fanfold", frozenset())]
    while waiting:
        wanted = waiting.pop()
        if wanted not in found:
            found.add(wanted)
            waiting += _requirements(*wanted)
    return {name for name, _ in found}


def _requirements(name: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    asked = [Requirement(text) for text in requires(name) or ()]
    return [
        (canonicalize_name(each.name), frozenset(each.extras))
        for each in asked
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
    ]
