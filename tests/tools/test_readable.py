"""Pages as text: what is kept, what is dropped, and that no page takes longer than its length asks for."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.tools.html_tokens import End, Start, Text, Token, tokens
from fanfold.tools.readable import readable
from fanfold.tools.web_page import content_type, decoded, refresh_target

URL = "https://x.org/docs/page.html"


def markdown(source: str, *, body_only: bool = True) -> str:
    return readable(source, URL, is_markdown=True, body_only=body_only).text


def plain(source: str) -> str:
    return readable(source, URL, is_markdown=False, body_only=True).text


# ---- tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("a<b c=1>d</b >", [Text("a"), Start("b", {"c": "1"}), Text("d"), End("b")]),
        ("<A HREF='x>y' b = \"&amp;\" c/>", [Start("a", {"href": "x>y", "b": "&", "c": ""})]),
        ("<a =x y==z>", [Start("a", {"=x": "", "y": "=z"})]),
        ("<a b=1 b=2>", [Start("a", {"b": "1"})]),
        ("1 < 2 &lt; 3<", [Text("1 "), Text("<"), Text(" 2 < 3"), Text("<")]),
        ("<!-- <b> --><!DOCTYPE html><?xml?><![CDATA[x]]>y", [Text("y")]),
        ("<!-->a<!--->b", [Text("a"), Text("b")]),
        ("<script>if (a<b) '</p>'</SCRIPT >x", [Start("script", {}), End("script"), Text("x")]),
        ("<title>a <b> &amp;</title>", [Start("title", {}), Text("a <b> &"), End("title")]),
        ("a<b c='", [Text("a")]),
        ("a<b c", [Text("a")]),
        ("a<!-- b", [Text("a")]),
        ("a<script>b", [Text("a"), Start("script", {})]),
        ("</>a</ b>c", [Text("a"), Text("c")]),
        ("&#" + "9" * 5_000 + ";", [Text("&#" + "9" * 5_000 + ";")]),
    ],
)
def test_tags_and_texts_are_told_apart_as_browsers_do(source: str, found: list[Token]) -> None:
    assert list(tokens(source)) == found


@given(st.text(alphabet="<>/!-='\" abscriptle&;#\n", max_size=60))
def test_no_text_of_any_form_stops_the_reading(source: str) -> None:
    list(tokens(source))
    markdown(source)


HOSTILE = {
    "open tags": "<",
    "open values": '<a b="',
    "open comments": "<!--",
    "attributes": "<a " + "x " * 200_000,
    "unmatched": "<b>x" * 100_000 + "</i>" * 100_000,
    "nested": "<ul><li><blockquote><div>x",
    "links": "<a href=x>y",
    "cells": "<table><tr><td>x",
    "references": "&#",
    "hidden": "<p hidden>",
    "spaces": "<a x" + " " * 500_000,
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_a_page_takes_time_by_its_length_alone(piece: str) -> None:
    source = piece * (500_000 // len(piece) + 1)
    began = time.process_time()
    text = markdown(source)
    assert time.process_time() - began < 10  # whatever is quadratic takes hours
    assert len(text) < 10 * len(source)


# ---- text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<h1>One</h1><h3>Two <em>x</em></h3>", "# One\n\n### Two *x*"),
        ("<p>a\n  b<p>c<br>d", "a b\n\nc\nd"),
        ("<p>a <b> bold </b>and<i>it</i> <b></b>", "a **bold** and*it*"),
        ("<b>a<i>b</b>c", "**a*b***c"),
        ("<code>a</code> <code>b`c</code> <code><b>d</b></code>", "`a` `` b`c `` `d`"),
        ("<a href='../a b\n?x=1&amp;y'>two\nwords</a>", "[two words](https://x.org/a%20b?x=1&y)"),
        ("<a href='#x'>here</a> <a href='javascript:x()'>js</a> <a>none</a>", "here js none"),
        ("<h2>T<a href='#t'>¶</a></h2>", "## T"),
        ("<a href='/x'></a>z", "z"),
        ("<base href='https://y.org/d/'><a href=e>f</a>", "[f](https://y.org/d/e)"),
        ("<a href='http://['>f</a>", f"[f]({URL})"),
        ("<img src=a.png alt='A  pic'><img src=b.png>", "![A pic](https://x.org/docs/a.png)"),
        ("<img alt=pic src='data:image/png;base64,xx'>", "[pic]"),
        ("<ul><li>a<li>b<ul><li>c</ul><li>d</ul>e", "- a\n- b\n  - c\n- d\n\ne"),
        ("x<ol start=3><li>a<li><p>b<p>c</ol>", "x\n\n3. a\n4. b\n\n  c"),
        ("<ul><li><a href=/x>y</a></li></ul>", "- [y](https://x.org/x)"),
        ("<pre>\n  a\n\n    b &lt;\n</pre>c", "```\n  a\n\n    b <\n```\n\nc"),
        ("<pre><code class='language-python'>x = 1</code></pre>", "```python\nx = 1\n```"),
        ("<pre>```</pre>", "````\n```\n````"),
        ("<blockquote>a<blockquote>b</blockquote></blockquote>c", "> a\n\n> > b\n\nc"),
        ("<table><tr><th>A<th>B<tr><td>1<td><p>two</table>", "| A | B |\n| --- | --- |\n| 1 | two |"),
        ("<table><tr><td>one cell<p>of layout</table>", "one cell of layout"),
        ("<table><tr><td><h2>a</h2>b<td>c</table>", "## a\n\nb\n\nc"),
        ("a<hr>b", "a\n\n---\n\nb"),
        ("<dl><dt>t<dd>d</dl>", "t\n\nd"),
        ("<p>a<script>x</script><style>y</style><template>z</template><noscript>n</noscript>b", "ab"),
        ("<svg><title>t</title><text>s</text></svg>a", "a"),
        ("a<div hidden>b<div>c</div>d</div>e", "ae"),
        ("a<p hidden>b<p>c", "a\n\nc"),
        ("<span style='color:red; Display : none'>a</span>b", "b"),
        ("1 &lt; 2 < 3 &amp; 4", "1 < 2 < 3 & 4"),
    ],
)
def test_markdown_keeps_what_the_tags_mean(source: str, text: str) -> None:
    assert markdown(source) == text


def test_plain_text_has_no_marks() -> None:
    source = (
        "<h1>T</h1><p><b>a</b> <a href=/x>b</a> <code>c</code><ul><li>d</ul><pre>  e</pre>"
        "<table><tr><td>1<td>2</table><hr><img alt=p src=q>"
    )
    assert plain(source) == "T\n\na b c\n\n- d\n\n  e\n\n1 | 2\n\n[p]"


PAGE = """<html><head><title>The
 &quot;title&quot;</title></head><body><header>logo<nav>menu</nav></header>
<aside>ad</aside><main><div>matter</div></main><div role=contentinfo>legal</div><footer>foot</footer></body></html>"""


def test_body_only_is_the_main_part_of_the_page() -> None:
    assert markdown(PAGE) == "matter"
    assert markdown(PAGE, body_only=False) == "logo\n\nmenu\n\nad\n\nmatter\n\nlegal\n\nfoot"
    assert readable(PAGE, URL, is_markdown=True, body_only=True).title == 'The "title"'


def test_without_a_main_part_only_what_lies_around_is_left_out() -> None:
    assert markdown("<nav>menu</nav><div role=navigation>more</div><p>matter<footer>foot</footer>") == "matter"
    assert markdown("<div role=main>a<div>b</div>c</div>d") == "a\n\nb\n\nc"


def test_a_page_of_nothing_but_surroundings_is_shown_whole() -> None:
    assert markdown("<nav>menu</nav><footer>foot</footer>") == "menu\n\nfoot"
    assert markdown("<nav>never closed <p>text") == "never closed\n\ntext"


# ---- charsets and redirections ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "header", "text"),
    [
        ("ü".encode(), "text/html", "ü"),
        ("ü€".encode("cp1252"), "text/html", "ü€"),
        ("ü€".encode("cp1252"), "text/plain; charset=ISO-8859-1", "ü€"),
        ("ж".encode("koi8-r"), 'text/html; charset="KOI8-R"', "ж"),
        (b"<meta charset=euc-jp>" + "日".encode("euc-jp"), "text/html", "<meta charset=euc-jp>日"),
        (b"<meta http-equiv=x content='text/html; charset=big5'>" + "中".encode("big5"), "text/html", None),
        (b'<?xml version="1.0" encoding="iso-8859-2"?>' + "ł".encode("iso-8859-2"), "application/xml", None),
        (b"\xef\xbb\xbf" + "ü".encode(), "text/html; charset=iso-8859-1", "ü"),
        ("\ufeffü".encode("utf-16-le"), "text/html", "ü"),
        ("ü".encode(), "text/html; charset=zip", "ü"),
        ("ü".encode(), "text/html; charset=iso-8859-99", "ü"),
        ("aü".encode()[:-1], "text/plain", "a\ufffd"),
        (b"a\x1b[31mb\r\nc\rd", "text/plain", "a?[31mb\nc\nd"),
    ],
)
def test_the_charset_is_the_one_that_was_told(body: bytes, header: str, text: str | None) -> None:
    found = decoded(body, content_type(header))
    if text is None:
        assert found[-1] in "中ł"
    else:
        assert found == text


@pytest.mark.parametrize(
    ("header", "beginning", "fault"),
    [
        ("text/html; charset=utf-8", b"x", None),
        ("application/json", b"{}", None),
        ("application/vnd.api+json", b"{}", None),
        ("image/svg+xml", b"<svg>", None),
        ("", b"plain", None),
        ("application/octet-stream", b"plain", None),
        ("application/octet-stream", b"a\0b", "binary data"),
        ("text/plain", b"a\0b", "binary data"),
        ("text/plain; charset=utf-16le", b"a\0b\0", None),
        ("image/png", b"", "image/png"),
        ("application/pdf", b"%PDF", "application/pdf"),
        ("application/zip", b"PK", "application/zip"),
    ],
)
def test_what_is_no_text_is_known_by_its_type_or_its_beginning(
    header: str, beginning: bytes, fault: str | None
) -> None:
    assert content_type(header).binary_fault(beginning) == fault


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("<meta http-equiv=refresh content='0; url=/next'>", "/next"),
        ("<META HTTP-EQUIV=Refresh CONTENT=\"3;URL='https://y.org/'\">", "https://y.org/"),
        ("<noscript><meta http-equiv='refresh' content='0 /nojs'></noscript>", "/nojs"),
        ("<meta http-equiv=refresh content='0.5, /x'>", "/x"),
        ("<meta http-equiv=refresh content=30>", None),
        ("<meta http-equiv=refresh content='60; url=/later'>", None),
        ("<meta http-equiv=refresh content='url=/x'>", None),
        ("<!-- <meta http-equiv=refresh content='0; url=/x'> -->", None),
        ("<script>'<meta http-equiv=refresh content=\"0; url=/x\">'</script>", None),
        ("<meta name=refresh content='0; url=/x'>http-equiv", None),
    ],
)
def test_a_page_may_redirect_by_itself(source: str, target: str | None) -> None:
    assert refresh_target(source) == target
