"""The Markdown parsers of the app: CommonMark with tables and strikethrough; everything else stays text.

In: text. Out: tokens. HTML, images and link definitions are shown as written, so that nothing of an answer is lost and
no block depends on another. Knows nothing of how tokens are drawn.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


@cache
def parser() -> MarkdownIt:
    """The parser for complete blocks and their inline contents."""
    from markdown_it import MarkdownIt  # slow import, deferred until there is text

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["reference", "image"])


@cache
def block_parser() -> MarkdownIt:
    """A parser that finds blocks only and skips their inline contents."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table"]).disable(["reference", "inline"])
