"""How texts are parsed everywhere in the app: CommonMark with tables and struck text; all else stays text.

In: text. Out: tokens. HTML, images and link definitions are shown as they were written: nothing of an answer is lost,
and no block depends on another. Knows nothing of how tokens are drawn.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


@cache
def parser() -> MarkdownIt:
    """What parses texts whole."""
    from markdown_it import MarkdownIt  # takes a while, and not before there is text

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["reference", "image"])


@cache
def block_parser() -> MarkdownIt:
    """The same for what blocks there are alone: it does not look into them."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table"]).disable(["reference", "inline"])
