"""A web page as a model reads it: its text with headings, lists, links and code, as Markdown or plain."""

import re
from urllib.parse import urljoin

import msgspec

from fanfold.tools.html_tokens import End, Start, Text, tokens
from fanfold.tools.page_writer import WITHIN, PageWriter

_NEVER = frozenset(
    {
        "script", "style", "template", "noscript", "iframe", "object", "embed", "canvas", "svg", "math", "audio",
        "video", "select", "datalist",
    }
)  # fmt: skip
_AROUND = frozenset({"nav", "footer", "aside", "dialog", "menu", "button"})
_ROLES_AROUND = frozenset({"navigation", "banner", "contentinfo", "complementary", "search", "dialog"})
_OPEN_ENDED = frozenset({"p", "li", "dt", "dd", "tr", "td", "th", "option"})
"""They need no end tag: the next one of their kind ends them."""
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


class Readable(msgspec.Struct, frozen=True):
    title: str
    text: str


def readable(source: str, url: str, *, is_markdown: bool, body_only: bool) -> Readable:
    """What `source`, the page at `url`, says; links are made absolute.

    Args:
        body_only: without navigation and the like; where a page marks its `<main>` part, only that.
    """
    page = _read(source, url, is_markdown, body_only)
    if body_only and not page.text:  # it marks everything as something beside the matter
        page = _read(source, url, is_markdown, False)
    return page


def _read(source: str, url: str, is_markdown: bool, body_only: bool) -> Readable:
    reader = _Reader(is_markdown, url, body_only)
    for token in tokens(source):
        match token:
            case Text():
                reader.take_text(token.text)
            case Start():
                reader.take_start(token)
            case End():
                reader.take_end(token.name)
        if reader.is_done:
            break
    return Readable(" ".join(reader.title.split()), reader.out.finished())


class _Reader:
    def __init__(self, is_markdown: bool, url: str, body_only: bool) -> None:
        self.out = PageWriter(is_markdown)
        self.title = ""
        self.is_done = False
        self._url = url
        self._body_only = body_only
        self._is_in_title = False
        self._main: str | None = None
        self._main_depth = 0
        self._skipped = ""
        self._skipped_depth = 0

    def take_text(self, text: str) -> None:
        if self._is_in_title:
            self.title = self.title or text
        elif not self._skipped:
            self.out.add(text)

    def take_start(self, tag: Start) -> None:
        if self._goes_on_skipping(tag.name):
            return
        if tag.name not in _VOID and self._is_skipped(tag):
            self._skipped, self._skipped_depth = tag.name, 1
            return
        if self._body_only:
            self._enter_main(tag)
        name = tag.name
        if name == "title":
            self._is_in_title = True
        elif name == "base":
            self._url = self._absolute(tag.attributes.get("href", ""))
        elif name == "a":
            self.out.open("a", self._link(tag.attributes.get("href", "")))
        elif name == "img":
            self.out.add_image(tag.attributes.get("alt", ""), self._link(tag.attributes.get("src", "")))
        else:
            self.out.start(name, tag.attributes)

    def take_end(self, name: str) -> None:
        if self._skipped:
            if name == self._skipped:
                self._skipped_depth -= 1
                if self._skipped_depth == 0:
                    self._skipped = ""
            return
        if name == "title":
            self._is_in_title = False
        elif name == self._main:
            self._main_depth -= 1
            self.is_done = self._main_depth == 0
        if not self.is_done:
            self.out.end(name)

    def _goes_on_skipping(self, name: str) -> bool:
        if self._skipped and name == self._skipped and name in _OPEN_ENDED:
            self._skipped = ""
        elif name == self._skipped:
            self._skipped_depth += 1
        return bool(self._skipped)

    def _is_skipped(self, tag: Start) -> bool:
        if tag.name in _NEVER or (tag.name in _AROUND and self._body_only):
            return True
        given = tag.attributes
        if self._body_only and given.get("role", "").strip().lower() in _ROLES_AROUND:
            return True
        return tag.name not in ("html", "body") and ("hidden" in given or bool(_HIDDEN.search(given.get("style", ""))))

    def _enter_main(self, tag: Start) -> None:
        if self._main is None and (tag.name == "main" or tag.attributes.get("role") == "main"):
            self._main = tag.name
            self.out = PageWriter(self.out.is_markdown)  # what came before is not wanted
        if tag.name == self._main:
            self._main_depth += 1

    def _link(self, target: str) -> str:
        """The absolute form of a link that can be followed, `WITHIN` for one into this page, else nothing."""
        target = target.strip()
        if target.startswith("#"):
            return WITHIN
        found = self._absolute(target) if target else ""
        return found if found.startswith(("http://", "https://", "mailto:")) else ""

    def _absolute(self, target: str) -> str:
        try:
            return urljoin(self._url, target.strip()).replace(" ", "%20")
        except ValueError:
            return self._url
