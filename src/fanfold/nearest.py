"""The word that somebody probably meant."""

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'api_key'?`, or the known names when none is near, or nothing when there are none."""
    import difflib  # a millisecond that only a mistake has to pay

    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
