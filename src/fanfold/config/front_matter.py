"""Markdown with YAML front matter: what stands between two lines `---`, and the text below."""

import msgspec


class FrontMatter(msgspec.Struct, frozen=True):
    yaml: str
    first_line: int
    """Of `yaml` in the file, from 1."""
    body: str


def split_front_matter(text: str) -> FrontMatter | None:
    """The two parts of `text`; None when it does not begin with front matter, or that does not end.

    Only a whole line `---` opens or closes it, so dashes within a value are a part of that value.
    """
    lines = text.splitlines(keepends=True)
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if not lines or not _is_fence(lines[first]):
        return None
    last = next((index for index in range(first + 1, len(lines)) if _is_fence(lines[index])), None)
    if last is None:
        return None
    return FrontMatter("".join(lines[first + 1 : last]), first + 2, "".join(lines[last + 1 :]).strip())


def _is_fence(line: str) -> bool:
    return line.rstrip() == "---"
