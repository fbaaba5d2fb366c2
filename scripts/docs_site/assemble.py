"""Writes the source tree of the documentation site: `python -m scripts.docs_site.assemble FOLDER`.

In: `docs`, and pages that lie elsewhere in the repository. Out: a folder that mkdocs reads. Marks in pages are replaced
by what is generated (`<!-- commands -->`, `<!-- api -->`), links to files outside of `docs` lead to their pages, or
become the names of the files, and notes for the tests are left out. Knows nothing of themes and HTML.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
PAGES_ELSEWHERE = {
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "examples/README.md": "examples.md",
}
"""Pages outside of `docs`, as far as they exist, and their places in the site."""
COPIED = (".png", ".svg", ".gif", ".json", ".jsonl")
"""Files that pages show, or link as they are."""
NOTE = re.compile(r"(?m)^ *<!-- (?:parsed|runs)\b.*-->\n")
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
CODE = re.compile(r"(?ms)^ *(```+|~~~+).*?^ *\1|(`+)[^`].*?\2")


def assemble(out: Path) -> None:
    """Write the tree into `out`, in place of what is there."""
    shutil.rmtree(out, ignore_errors=True)
    for path in sorted((ROOT / DOCS).rglob("*")):
        relative = path.relative_to(ROOT / DOCS)
        if path.suffix in COPIED:
            (out / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, out / relative)
        elif path.suffix == ".md":
            write_page(out, relative.as_posix(), path)
    for source, place in PAGES_ELSEWHERE.items():
        if (ROOT / source).exists():
            write_page(out, place, ROOT / source)


def write_page(out: Path, place: str, source: Path) -> None:
    """Write one page to its place."""
    text = NOTE.sub("", source.read_text(encoding="utf-8"))
    text = with_links(text, source.relative_to(ROOT).as_posix(), place)
    (out / place).parent.mkdir(parents=True, exist_ok=True)
    (out / place).write_text(with_generated(text), encoding="utf-8")


def with_generated(text: str) -> str:
    """A page with what is generated in place of its marks."""
    if "<!-- commands -->" in text:
        from scripts.docs_site.command_reference import command_reference

        text = text.replace("<!-- commands -->", command_reference())
    if "<!-- api -->" in text:
        from scripts.docs_site.api_reference import api_reference

        text = text.replace("<!-- api -->", api_reference())
    return text


def with_links(text: str, source: str, place: str) -> str:
    """A page whose links lead to where their targets are in the site. Code is left as it is."""
    parts: list[str] = []
    end = 0
    for code in CODE.finditer(text):
        parts += (LINK.sub(lambda match: relinked(match, source, place), text[end : code.start()]), code[0])
        end = code.end()
    return "".join([*parts, LINK.sub(lambda match: relinked(match, source, place), text[end:])])


def relinked(match: re.Match[str], source: str, place: str) -> str:
    """One link of a page of the repository at `source`, as it has to be in the site at `place`."""
    label, target = match.groups()
    name, hash_sign, anchor = target.partition("#")
    if not name or re.match(r"[a-z][a-z+.-]*:", name):
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if path == DOCS or path.startswith(f"{DOCS}/"):
        goal = posixpath.relpath(path, DOCS)
    elif path == "README.md":
        goal = "index.md"
    elif path in PAGES_ELSEWHERE:
        goal = PAGES_ELSEWHERE[path]
    elif (ROOT / path).exists():
        return label.lstrip("!")[1:-1] if label.startswith("[`") else f"{label[1:-1]} (`{path}`)"
    else:
        return match[0]
    return f"{label}({posixpath.relpath(goal, posixpath.dirname(place) or '.')}{hash_sign}{anchor})"


def main() -> int:
    os.chdir(ROOT)
    assemble(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
