"""Links of the documentation as it lies in the repository lead to files, and to headings, that exist."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.code_blocks import ROOT

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
CODE = re.compile(r"(?ms)^ *(```+).*?^ *\1|(`+)[^`].*?\2")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"])


def without_code(path: Path) -> str:
    return CODE.sub("", path.read_text(encoding="utf-8"))


def headings(path: Path) -> set[str]:
    """The anchors of a page: of each heading its words in lower case, joined by hyphens."""
    text = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
    titles = [re.sub(r"[`*]", "", title) for title in re.findall(r"(?m)^#+ (.+)$", text)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(without_code(page)):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme in ("http", "https", "mailto"), link
            assert parts.netloc or parts.scheme == "mailto", link
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), link
        if parts.fragment and target.suffix == ".md":
            assert parts.fragment in headings(target), link
