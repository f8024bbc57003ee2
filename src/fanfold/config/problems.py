"""Every fault of a configuration, gathered to be told at once."""

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
