"""A web page as a model reads it: its text with headings, lists, links and code, as Markdown or plain."""

import re
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from fanfold.tools.html_tokens import End, Start, Text, tokens

MAX_OPEN = 24
"""Links, emphasis, lists and quotes within each other; what is nested deeper keeps its text only."""

_NEVER = frozenset(
    "script style template noscript iframe object embed canvas svg math audio video select datalist".split()
)  # fmt: skip
_AROUND = frozenset({"nav", "footer", "aside", "dialog", "menu", "button"})
_ROLES_AROUND = frozenset({"navigation", "banner", "contentinfo", "complementary", "search", "dialog"})
_BLOCKS = frozenset(
    "address article aside body center dd details dialog div dl dt fieldset figcaption figure footer form header hgroup "
    "legend main nav p section summary tbody tfoot thead caption".split()
)  # fmt: skip
_OPEN_ENDED = frozenset({"p", "li", "dt", "dd", "tr", "td", "th", "option"})
"""They need no end tag: the next one of their kind ends them."""
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_HEADING = re.compile(r"h[1-6]")
_MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "del": "~~", "s": "~~", "code": "`", "kbd": "`", "samp": "`"}
_CODE = frozenset({"code", "kbd", "samp"})
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_LANGUAGE = re.compile(r"(?:language|lang|highlight)-([\w+#-]{1,20})")
_SPACE = re.compile(r"\s+")
_ANCHOR_SIGNS = frozenset({"", "#", "¶", "§", "🔗"})


@dataclass(frozen=True, slots=True)
class Readable:
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
    reader = _Reader(_Writer(is_markdown), url, body_only)
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
    reader.out.end_block()
    return Readable(_SPACE.sub(" ", reader.title).strip(), reader.out.text())


# ---- from tags to blocks -------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, out: "_Writer", url: str, body_only: bool) -> None:
        self.out = out
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
            self._image(tag)
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
            self.out.forget()
        if tag.name == self._main:
            self._main_depth += 1

    def _image(self, tag: Start) -> None:
        words = _SPACE.sub(" ", tag.attributes.get("alt", "")).strip()
        target = self._link(tag.attributes.get("src", ""))
        if words:
            self.out.add_image(words, target)

    def _link(self, target: str) -> str:
        """The absolute form of a link that can be followed, `#` for one within the page, else nothing."""
        target = target.strip()
        if target.startswith("#"):
            return "#"
        found = self._absolute(target) if target else ""
        return found if found.startswith(("http://", "https://", "mailto:")) else ""

    def _absolute(self, target: str) -> str:
        try:
            found = urljoin(self._url, target)
            urlsplit(found)
        except ValueError:
            return self._url
        return "".join(found.split())


# ---- from blocks to lines ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Span:
    """An open link or emphasis of the block that is being written."""

    name: str
    target: str
    start: int


@dataclass(slots=True)
class _List:
    number: int | None
    """Of the next item; None for a list without numbers."""


@dataclass(slots=True)
class _Row:
    cells: int = 0
    is_whole: bool = True
    """No block of its own has broken its line."""


@dataclass(slots=True)
class _Writer:
    is_markdown: bool
    blocks: list[str] = field(default_factory=list[str])
    _line: list[str] = field(default_factory=list[str])
    _spans: list[_Span] = field(default_factory=list[_Span])
    _lists: list[_List] = field(default_factory=list[_List])
    _quotes: int = 0
    _mark: str = ""
    """What stands before the next block: `## `, `- `."""
    _is_item: bool = False
    _pre: str | None = None
    """The language of preformatted text, None outside of it."""
    _row: _Row | None = None
    _rows: int = 0
    """Of the table, so far."""

    def text(self) -> str:
        return "".join(self.blocks).strip("\n")

    def forget(self) -> None:
        self.__init__(self.is_markdown)  # type: ignore[misc]

    def add(self, text: str) -> None:
        if self._pre is None:
            text = _SPACE.sub(" ", text)
            if not self._line or self._line[-1].endswith((" ", "\n")):
                text = text.lstrip(" ")
        if text:
            self._line.append(text)

    def add_image(self, words: str, target: str) -> None:
        is_shown = self.is_markdown and target not in ("", "#")
        self.add(f"![{words}]({target})" if is_shown else f"[{words}]")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name in _MARKS:
            self.open(name, "")
            self._note_language(attributes)
        elif name == "br":
            self._line.append("\n")
        elif name in ("td", "th"):
            self._start_cell()
        elif name in _BLOCKS:
            self._part()
        elif name == "table":
            self.end_block()
            self._row, self._rows = None, 0
        elif name == "tr":
            self.end_block()
            self._row = _Row()
        elif name == "pre":
            self.end_block()
            self._pre = ""
            self._note_language(attributes)
        elif name in ("ul", "ol"):
            self.end_block()
            if len(self._lists) < MAX_OPEN:
                self._lists.append(_List(_number(attributes.get("start", "1")) if name == "ol" else None))
        elif name == "li":
            self._start_item()
        elif name == "blockquote":
            self.end_block()
            self._quotes = min(self._quotes + 1, MAX_OPEN)
        elif name == "hr":
            self.end_block()
            self._write("---" if self.is_markdown else "")
        elif _HEADING.fullmatch(name):
            self.end_block()
            self._mark = "#" * int(name[1]) + " " if self.is_markdown else ""

    def end(self, name: str) -> None:
        if name == "a" or name in _MARKS:
            self._close(name)
        elif name in _BLOCKS:
            self._part()
        elif name in ("tr", "table"):
            self._end_row()
        elif name == "pre":
            self._end_pre()
        elif name in ("ul", "ol"):
            self.end_block()
            if self._lists:
                self._lists.pop()
        elif name == "blockquote":
            self.end_block()
            self._quotes = max(self._quotes - 1, 0)
        elif name == "li" or _HEADING.fullmatch(name):
            self.end_block()

    def open(self, name: str, target: str) -> None:
        is_in_code = any(span.name in _CODE for span in self._spans)
        if self._pre is None and not is_in_code and len(self._spans) < MAX_OPEN:
            self._spans.append(_Span(name, target, len(self._line)))

    def end_block(self) -> None:
        """Write the block that was begun; links and emphasis end with it."""
        if self._pre is not None:
            self._end_pre()
        if self._row is not None:
            self._row.is_whole = False
        while self._spans:
            self._close(self._spans[-1].name)
        content = "".join(self._line).strip()
        self._line.clear()
        if content:
            self._write(content)

    # ---- links and emphasis

    def _close(self, name: str) -> None:
        if not any(span.name == name for span in self._spans):
            return
        while self._spans:
            span = self._spans.pop()
            inner = "".join(self._line[span.start :])
            del self._line[span.start :]
            self._line.extend(self._marked(span, inner))
            if span.name == name:
                return

    def _marked(self, span: _Span, inner: str) -> list[str]:
        words = inner.strip()
        if span.target == "#" and words in _ANCHOR_SIGNS:
            return []
        if not words or not self.is_markdown:
            return [inner] if inner else []
        before, after = inner[: len(inner) - len(inner.lstrip())], inner[len(inner.rstrip()) :]
        if span.name != "a":
            mark = _MARKS[span.name]
            mark = "``" if mark == "`" and "`" in words else mark
            marked = f"{mark}{words}{mark}"
        elif span.target in ("", "#"):
            marked = words
        else:
            marked = f"[{_SPACE.sub(' ', words)}]({span.target})"
        return [piece for piece in (before, marked, after) if piece]

    # ---- blocks

    def _part(self) -> None:
        """A block begins or ends; within a cell of a table it is only a space."""
        if self._pre is not None:
            return
        if self._row is not None and self._row.cells:
            self.add(" ")
        else:
            self.end_block()

    def _start_item(self) -> None:
        self.end_block()
        mark = "- "
        if self._lists and self._lists[-1].number is not None:
            mark = f"{self._lists[-1].number}. "
            self._lists[-1].number += 1
        self._mark, self._is_item = mark, True

    def _start_cell(self) -> None:
        if self._row is None:
            self._part()
            return
        self._row.cells += 1
        if self._row.cells > 1:
            while self._spans:
                self._close(self._spans[-1].name)
            self._line.append(" | ")

    def _end_row(self) -> None:
        row, self._row = self._row, None
        line = _SPACE.sub(" ", "".join(self._line)).strip()
        if row is None or not row.is_whole or row.cells < 2 or not line.strip(" |"):
            self.end_block()
            return
        while self._spans:
            self._close(self._spans[-1].name)
        line = _SPACE.sub(" ", "".join(self._line)).strip()
        self._line.clear()
        self._rows += 1
        self._write(f"| {line} |" if self.is_markdown else line, is_tight=self._rows > 1)
        if self._rows == 1 and self.is_markdown:
            self._write("|" + " --- |" * row.cells, is_tight=True)

    def _end_pre(self) -> None:
        language, self._pre = self._pre, None
        content = "".join(self._line).strip("\n").rstrip()
        self._line.clear()
        if not content or language is None:
            return
        if self.is_markdown:
            longest = max(map(len, re.findall("`{3,}", content)), default=2)
            fence = "`" * (longest + 1)
            content = f"{fence}{language}\n{content}\n{fence}"
        self._write(content)

    def _note_language(self, attributes: dict[str, str]) -> None:
        if self._pre == "" and (found := _LANGUAGE.search(attributes.get("class", ""))):
            self._pre = found[1]

    def _write(self, content: str, *, is_tight: bool = False) -> None:
        first = "> " * self._quotes + "  " * max(len(self._lists) - 1, 0)
        rest = first + ("  " if self._lists else "")
        lead = first if self._mark or not self._lists else rest
        lines = [line.strip(" ") if not content.startswith("`") else line for line in content.split("\n")]
        shown = [lead + self._mark + lines[0], *(rest + line for line in lines[1:])]
        is_tight = is_tight or (self._is_item and len(self._lists) > 0 and bool(self.blocks))
        self.blocks.append(("\n" if is_tight else "\n\n") + "\n".join(line.rstrip() for line in shown))
        self._mark, self._is_item = "", False


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text.strip()) else 1
