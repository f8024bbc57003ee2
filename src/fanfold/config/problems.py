"""Every fault of a configuration, gathered to be told at once."""

from collections.abc import Iterable

from fanfold.config.tree import Place
from fanfold.errors import ConfigError

MAX_SHOWN = 50


class Problems:
    def __init__(self) -> None:
        self._found: list[tuple[Place, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: Place, text: str) -> None:
        self._found.append((place, text))

    def raise_if_any(self) -> None:
        """Raises:
        ConfigError: with `file:line:column: text` of each fault, in the order of the file.
        """
        if not self._found:
            return
        ordered = sorted(self._found, key=lambda found: (found[0].line, found[0].column))
        lines = [f"{place.exact()}: {text}" for place, text in ordered[:MAX_SHOWN]]
        if len(ordered) > MAX_SHOWN:
            lines.append(f"... and {len(ordered) - MAX_SHOWN} more")
        raise ConfigError(lines)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'api_key'?`, or the known names when none is near, or nothing when there are none."""
    import difflib  # a millisecond that only a faulty configuration has to pay

    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
