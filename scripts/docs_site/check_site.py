"""Checks the built site: its links, and that a page loads nothing from another computer.

Run: `python -m scripts.docs_site.check_site FOLDER`. In: a folder of HTML, CSS and pictures. Out: a line per finding,
and exit code 1 if there are any. Links within the site have to lead to a file, and to a place in it that exists; links
to other sites are not followed, only their form is checked.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

POLICY = "default-src 'self'"
"""How the Content-Security-Policy of each page begins: browsers load nothing from elsewhere, whatever scripts say."""
LOADING = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("video", "src"),
    ("video", "poster"),
    ("audio", "src"),
    ("input", "src"),
    ("link", "href"),
    ("form", "action"),
}
"""Attributes by which a page loads something without being asked."""
SILENT_LINKS = {"canonical", "next", "prev"}
"""Kinds of `link` that load nothing."""
STYLE_ADDRESS = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)")


@dataclass
class Page(HTMLParser):
    """What one page of HTML loads, where its links lead, and which places it has."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    policy: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places.update(values[name] for name in ("id", "name") if name in values)
        if tag == "meta" and values.get("http-equiv", "").lower() == "content-security-policy":
            self.policy = values.get("content", "")
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in SILENT_LINKS:
            return
        self.loads += [value for name, value in values.items() if (tag, name) in LOADING]
        self.loads += STYLE_ADDRESS.findall(values.get("style", ""))


def read_pages(folder: Path) -> dict[Path, Page]:
    """All pages of a site."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def check(folder: Path) -> list[str]:
    """Findings of a built site."""
    pages = read_pages(folder)
    findings = [] if pages else [f"{folder}: no pages"]
    for path, page in pages.items():
        where = path.relative_to(folder)
        if not page.policy.startswith(POLICY):
            findings.append(f"{where}: no policy that keeps the browser from loading things from elsewhere")
        findings += [f"{where}: loads {address}" for address in page.loads if is_elsewhere(address)]
        findings += [f"{where}: {reason}" for link in page.links if (reason := fault(link, path, folder, pages))]
    for path in sorted(folder.rglob("*.css")):
        found = STYLE_ADDRESS.findall(path.read_text(encoding="utf-8"))
        findings += [f"{path.relative_to(folder)}: loads {address}" for address in found]
    return findings


def is_elsewhere(address: str) -> bool:
    """Whether an address is on another computer."""
    return bool(urlsplit(address.strip()).netloc)


def fault(link: str, path: Path, folder: Path, pages: dict[Path, Page]) -> str | None:
    """What is wrong with a link of a page."""
    try:
        parts = urlsplit(link)
    except ValueError:
        return f"a link that is no address: {link}"
    if parts.scheme or parts.netloc:
        is_well = (parts.scheme in ("http", "https") and "." in parts.netloc) or parts.scheme == "mailto"
        return None if is_well or parts.hostname in ("127.0.0.1", "localhost") else f"a link that is no address: {link}"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    if parts.path.startswith("/"):
        target = (folder / unquote(parts.path).lstrip("/")).resolve()
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"leads to {link}, which does not exist"
    found = {each.resolve(): page for each, page in pages.items()}.get(target) if parts.fragment else None
    if found is not None and unquote(parts.fragment) not in found.places:
        return f"leads to {link}, but there is no such place"
    return None


def main() -> int:
    folder = Path(sys.argv[1])
    findings = check(folder)
    print("\n".join(findings) if findings else f"site: {len(read_pages(folder))} pages in order")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
