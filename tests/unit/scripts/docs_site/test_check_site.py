"""The check of the built site: what is loaded from elsewhere, links that lead nowhere, pages without a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.docs_site.check_site import POLICY, check

HEAD = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'


def findings(folder: Path, body: str, *, head: str = HEAD, css: str = "") -> list[str]:
    (folder / "page.html").write_text(f"<html>{head}<body>{body}</body></html>")
    (folder / "other.html").write_text(f'<html>{HEAD}<h2 id="there">There</h2></html>')
    (folder / "site.css").write_text(css)
    return check(folder)


@pytest.mark.parametrize(
    "body",
    [
        '<a href="other.html#there">a</a> <a href="#here">b</a> <p id="here"></p>',
        '<a href="https://example.org/a?b#c">a</a> <a href="mailto:a@example.org">b</a>',
        '<img src="data:image/png;base64,AA=="> <script src="a.js"></script> <link rel="stylesheet" href="site.css">',
        '<link rel="canonical" href="https://example.org/page.html">',
    ],
    ids=["links within", "links to others", "own files", "canonical"],
)
def test_nothing_is_wrong(tmp_path: Path, body: str) -> None:
    assert (
        findings(tmp_path, body, css="a { background: url(data:image/png;base64,AA==) } b { src: url(a.woff) }") == []
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('<script src="https://unpkg.com/x.js"></script>', "page.html: loads https://unpkg.com/x.js"),
        ('<img src="//example.org/a.png">', "page.html: loads //example.org/a.png"),
        ('<link rel="preconnect" href="https://fonts.example">', "page.html: loads https://fonts.example"),
        ('<p style="background: url(https://example.org/a.png)">', "page.html: loads https://example.org/a.png"),
        ('<a href="no.html">a</a>', "page.html: leads to no.html, which does not exist"),
        ('<a href="other.html#no">a</a>', "page.html: leads to other.html#no, but there is no such place"),
        ('<a href="htps://example.org">a</a>', "page.html: a link that is no address: htps://example.org"),
    ],
    ids=["script", "picture", "preconnect", "style", "page", "place", "address"],
)
def test_something_is_wrong(tmp_path: Path, body: str, expected: str) -> None:
    assert findings(tmp_path, body) == [expected]


def test_styles_from_elsewhere(tmp_path: Path) -> None:
    found = findings(tmp_path, "", css="@import 'https://fonts.example/a.css'; a { src: url(//example.org/a.woff) }")
    assert found == ["site.css: loads https://fonts.example/a.css", "site.css: loads //example.org/a.woff"]


def test_a_page_without_a_policy(tmp_path: Path) -> None:
    assert findings(tmp_path, "", head="") == [
        "page.html: no policy that keeps the browser from loading things from elsewhere"
    ]


def test_an_empty_folder(tmp_path: Path) -> None:
    assert check(tmp_path) == [f"{tmp_path}: no pages"]
