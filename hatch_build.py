"""What the package index shows: README.md, whose links within the repository become addresses.

In: README.md and, from pyproject.toml, the version and the address of the source. Out: the long description of wheels
and sdists. Relative links lead nowhere on an index, whose pages show no pictures of relative addresses either. Links
lead to the files at the version's tag, so that they fit what is installed. It knows the addresses that GitHub gives
files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<before>(?P<picture>!?)\[(?P<text>[^\[\]]*)\]\()(?P<target>[^)\s]+)(?=[)\s])")
AROUND_PICTURE = re.compile(r"(?P<before>\[!\[[^\]]*\]\([^)]*\)\]\()(?P<target>[^)\s]+)")
ATTRIBUTE = re.compile(r'(?P<before>\b(?P<name>src|srcset|href)=")(?P<target>[^"]+)(?=")')
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|//", re.IGNORECASE)
"""Targets that are no files of the repository: addresses, and headings of the same page."""


class CustomMetadataHook(MetadataHookInterface):
    """Hatchling's hook for metadata that is made when the package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_addresses(readme, metadata["urls"]["Source"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_addresses(text: str, source: str, tag: str) -> str:
    """Markdown whose relative links and pictures are addresses in a repository at a tag; code blocks stay as is."""
    parts, end = list[str](), 0
    for fence in FENCE.finditer(text):
        parts += [_outside_of_code(text[end : fence.start()], source, tag), fence.group()]
        end = fence.end()
    return "".join([*parts, _outside_of_code(text[end:], source, tag)])


def _outside_of_code(text: str, source: str, tag: str) -> str:
    def address(target: str, is_picture: bool) -> str:
        if ELSEWHERE.match(target):
            return target
        return f"{source.rstrip('/')}/{'raw' if is_picture else 'blob'}/{tag}/{target.removeprefix('./').lstrip('/')}"

    def of_link(match: re.Match[str]) -> str:
        return match["before"] + address(match["target"], bool(match["picture"]))

    def of_attribute(match: re.Match[str]) -> str:
        return match["before"] + address(match["target"], match["name"] != "href")

    def around_picture(match: re.Match[str]) -> str:
        return match["before"] + address(match["target"], False)

    text = LINK.sub(of_link, text)  # pictures within links first, then what is around them
    return ATTRIBUTE.sub(of_attribute, AROUND_PICTURE.sub(around_picture, text))
