"""PageWriter: the lines of a page, written block by block as its tags come, in Markdown or plain."""

import re

import msgspec

WITHIN = "#"
"""The target of a link that leads into its own page."""
MAX_OPEN = 24
"""Links and emphasis within each other; what is nested deeper keeps its text only."""
MAX_LISTS = 10
MAX_QUOTES = 6

_BLOCKS = frozenset(
    {
        "address", "article", "aside", "body", "caption", "center", "dd", "details", "dialog", "div", "dl", "dt",
        "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "legend", "main", "nav", "p",
        "section", "summary", "tbody", "tfoot", "thead",
    }
)  # fmt: skip
_HEADING = re.compile(r"h[1-6]")
_MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "del": "~~", "s": "~~", "code": "`", "kbd": "`", "samp": "`"}
_CODE = frozenset({"code", "kbd", "samp"})
_LANGUAGE = re.compile(r"(?:language|lang|highlight)-([\w+#-]{1,20})")
_SPACE = re.compile(r"\s+")
_ANCHOR_SIGNS = frozenset({"", "#", "¶", "§", "🔗"})


class _Span(msgspec.Struct):
    """An open link or emphasis of the block that is being written."""

    name: str
    target: str
    start: int


class _List(msgspec.Struct):
    number: int | None
    """Of the next item; None for a list without numbers."""
    has_items: bool = False


class _Row(msgspec.Struct):
    cells: int = 0
    is_whole: bool = True
    """No block of its own has broken its line."""


class PageWriter:
    def __init__(self, is_markdown: bool) -> None:
        self.is_markdown = is_markdown
        self._blocks: list[str] = []
        self._line: list[str] = []
        """Of the block that is being written."""
        self._spans: list[_Span] = []
        self._lists: list[_List] = []
        self._quotes = 0
        self._mark = ""
        """What stands before the next block: `## `, `- `."""
        self._is_tight = False
        """No empty line before the next block."""
        self._language: str | None = None
        """Of preformatted text, None outside of it."""
        self._row: _Row | None = None
        self._rows = 0
        """Of the table, so far."""

    def finished(self) -> str:
        self._end_block()
        return "".join(self._blocks).strip("\n")

    def add(self, text: str) -> None:
        if self._language is None:
            text = _SPACE.sub(" ", text)
            if not self._line or self._line[-1].endswith((" ", "\n")):
                text = text.lstrip(" ")
        if text:
            self._line.append(text)

    def add_image(self, words: str, target: str) -> None:
        words = _SPACE.sub(" ", words).strip()
        if words:
            self.add(f"![{words}]({target})" if self.is_markdown and target not in ("", WITHIN) else f"[{words}]")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        match name:
            case "br":
                self._line.append("\n")
            case "td" | "th":
                self._start_cell()
            case "tr":
                self._end_row()
                self._row = _Row()
            case "table":
                self._end_block()
                self._row, self._rows = None, 0
            case "pre":
                self._end_block()
                self._language = ""
            case "ul" | "ol":
                self._end_block()
                if len(self._lists) < MAX_LISTS:
                    self._lists.append(_List(_number(attributes.get("start", "1")) if name == "ol" else None))
            case "li":
                self._start_item()
            case "blockquote":
                self._end_block()
                self._quotes = min(self._quotes + 1, MAX_QUOTES)
            case "hr":
                self._end_block()
                self._write("---" if self.is_markdown else "")
            case _ if name in _MARKS:
                self.open(name, "")
            case _ if name in _BLOCKS:
                self._part()
            case _ if _HEADING.fullmatch(name):
                self._end_block()
                self._mark = "#" * int(name[1]) + " " if self.is_markdown else ""
            case _:
                pass
        if self._language == "" and (found := _LANGUAGE.search(attributes.get("class", ""))):
            self._language = found[1]

    def end(self, name: str) -> None:
        match name:
            case "tr" | "table":
                self._end_row()
            case "pre" | "li":
                self._end_block()
            case "ul" | "ol":
                self._end_block()
                if self._lists:
                    self._lists.pop()
            case "blockquote":
                self._end_block()
                self._quotes = max(self._quotes - 1, 0)
            case _ if name == "a" or name in _MARKS:
                self._close(name)
            case _ if name in _BLOCKS:
                self._part()
            case _ if _HEADING.fullmatch(name):
                self._end_block()
            case _:
                pass

    # ---- links and emphasis

    def open(self, name: str, target: str) -> None:
        """Begin a link to `target`, or emphasis."""
        is_literal = self._language is not None or any(span.name in _CODE for span in self._spans)
        if not is_literal and len(self._spans) < MAX_OPEN:
            self._spans.append(_Span(name, target, len(self._line)))

    def _close(self, name: str) -> None:
        """End the innermost one of this name, with those within it that have no end of their own."""
        while any(span.name == name for span in self._spans):
            span = self._spans.pop()
            inner = "".join(self._line[span.start :])
            del self._line[span.start :]
            self._line.extend(piece for piece in self._marked(span, inner) if piece)
            if span.name == name:
                return

    def _close_all(self) -> None:
        while self._spans:
            self._close(self._spans[-1].name)

    def _marked(self, span: _Span, inner: str) -> tuple[str, ...]:
        words = inner.strip()
        if span.target == WITHIN and words in _ANCHOR_SIGNS:
            return ()
        if not words or not self.is_markdown or (span.name == "a" and span.target in ("", WITHIN)):
            return (inner,)
        if span.name == "a":
            marked = f"[{_SPACE.sub(' ', words)}]({span.target})"
        elif span.name in _CODE and "`" in words:
            marked = f"`` {words} ``"
        else:
            marked = f"{_MARKS[span.name]}{words}{_MARKS[span.name]}"
        # Spaces stay outside, else it would not count as a mark.
        return inner[: len(inner) - len(inner.lstrip())], marked, inner[len(inner.rstrip()) :]

    # ---- blocks

    def _part(self) -> None:
        """A block begins or ends; within a cell of a table that is only a space."""
        if self._language is not None:
            return
        if self._row is not None and self._row.cells and self._row.is_whole:
            self.add(" ")
        else:
            self._end_block()

    def _end_block(self) -> None:
        """Write the block that was begun; links and emphasis end with it."""
        if self._row is not None:
            self._row.is_whole = False
        self._close_all()
        content, language, self._language = "".join(self._line), self._language, None
        self._line.clear()
        if language is not None:
            self._write_literal(content.strip("\n").rstrip(), language)
        else:
            self._write("\n".join(line.strip(" ") for line in content.strip().split("\n")))

    def _start_item(self) -> None:
        self._end_block()
        self._mark = "- "
        if self._lists:
            at = self._lists[-1]
            self._is_tight = at.has_items or len(self._lists) > 1
            at.has_items = True
            if at.number is not None:
                self._mark = f"{at.number}. "
                at.number += 1

    def _start_cell(self) -> None:
        if self._row is None or not self._row.is_whole:
            self._end_block()
            return
        self._row.cells += 1
        self._close_all()
        if self._row.cells > 1:
            self._line.append(" | ")

    def _end_row(self) -> None:
        row, self._row = self._row, None
        self._close_all()
        line = _SPACE.sub(" ", "".join(self._line)).strip()
        if row is None or not row.is_whole or row.cells < 2 or not line.strip(" |"):
            self._end_block()
            return
        self._line.clear()
        self._is_tight = self._rows > 0
        self._write(f"| {line} |" if self.is_markdown else line)
        self._rows += 1
        if self._rows == 1 and self.is_markdown:
            self._is_tight = True
            self._write("|" + " --- |" * row.cells)

    def _write_literal(self, content: str, language: str) -> None:
        if content and self.is_markdown:
            longest = max(map(len, re.findall("`{3,}", content)), default=2)
            fence = "`" * (longest + 1)
            content = f"{fence}{language}\n{content}\n{fence}"
        self._write(content)

    def _write(self, content: str) -> None:
        if not content:
            return
        outer = "> " * self._quotes + "  " * max(len(self._lists) - 1, 0)
        inner = outer + ("  " if self._lists else "")
        first, *others = content.split("\n")
        lines = [(outer if self._mark else inner) + self._mark + first, *(inner + line for line in others)]
        self._blocks.append(("\n" if self._is_tight else "\n\n") + "\n".join(line.rstrip() for line in lines))
        self._mark, self._is_tight = "", False


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text.strip()) else 1
