"""Errors of the host as a script in the sandbox catches them: by class, as far as the sandbox has that, and by text."""

from fanfold.errors import FanfoldError
from fanfold.foreign import described
from fanfold.kernel.plain_text import plain

OURS = "RuntimeError"
"""What ours are there, as their root is one."""
_NAMED = frozenset(
    {
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "Exception",
        "IndexError",
        "KeyError",
        "LookupError",
        "MemoryError",
        "NameError",
        "NotImplementedError",
        "OSError",
        "OverflowError",
        "RecursionError",
        "RuntimeError",
        "TimeoutError",
        "TypeError",
        "ValueError",
        "ZeroDivisionError",
    }
)
"""Those of Python that the prelude can raise."""


def as_caught(error: Exception) -> tuple[str, str]:
    """The name of the class that the sandbox raises, the nearest that it has, and its text."""
    if isinstance(error, FanfoldError):
        return OURS, plain(str(error))
    named = next(each for each in type(error).__mro__ if each.__module__ == "builtins" and each.__name__ in _NAMED)
    try:
        text = str(error.args[0]) if named is KeyError and len(error.args) == 1 else str(error)  # it quotes its key
    except Exception:  # noqa: BLE001  a class whose errors cannot even be told
        text = described(error)
    return named.__name__, plain(text)
