"""What models write, as the terminal app draws it: nothing steers the terminal, and no text takes long."""

from __future__ import annotations

import random

from mutation import mutated as mutated_bytes

from edgeinfer.app.tui.text.drawing import Drawer, Palette
from edgeinfer.app.tui.text.markdown import GrowingBlocks, blocks_of
from edgeinfer.app.tui.text.neutral import NeutralStream, neutral
from edgeinfer.app.tui.widgets.entries import AnswerEntry

USUAL_BYTES = 600
LONGEST_BYTES = 8_000
"""Rows of a table are drawn at half a millisecond each."""
PARTS = (
    *(
        "# a\n",
        "* a\n",
        "1. a\n",
        "> ",
        "- ",
        "```py\nx = 1\n```\n",
        "~~~\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "**",
        "_",
    ),
    *(
        "`",
        "[a](b)",
        "![a](b)",
        "[",
        "](",
        "<a@b.c>",
        "<b>",
        "<!--",
        "&amp;",
        "\\",
        "$$",
        "\t",
        "  \n",
        "\r",
        "\x1b[31m",
    ),
    *(
        "\x1b]0;t\x07",
        "\u202e",
        "\u200b",
        "\ud83e\udd8a",
        "\x9b1m",
        "~~",
        "***",
        "---\n",
        "===\n",
        "    code\n",
        "[^1]: ",
    ),
)


def seeds() -> list[bytes]:
    """All of them in a row, and one after another many times."""
    parts = [part.encode("utf-8", "replace") for part in PARTS]
    return [b"".join(parts), *(part * 40 for part in parts)]


def mutated(seeds: list[bytes], rng: random.Random, limit: int) -> bytes:
    """A changed text with further marks in it."""
    data = bytearray(mutated_bytes(seeds, rng, limit))
    for _ in range(rng.choice((0, 1, 2, 4))):
        at = rng.randint(0, len(data))
        data[at:at] = rng.choice(PARTS).encode("utf-8", "replace") * rng.choice((1, 1, 2, 50, limit // 4))
    return bytes(data[:limit])


def run(data: bytes) -> None:
    """Draw it whole; and its blocks do not depend on its pieces."""
    text = data.decode("utf-8", "replace")
    stream, pieces = NeutralStream(), [text[at : at + 7] for at in range(0, len(text), 7)]
    clean = neutral(text)
    assert "".join([*map(stream.push, pieces), stream.finish()]) == clean, "neutral text depends on its pieces"
    growing = GrowingBlocks()
    for at in range(0, len(clean), 50):
        growing.push(clean[at : at + 50])
        growing.settle()
    growing.finish()
    sources = [block.source for block in growing.settled]
    assert sources == [block.source for block in blocks_of(clean)], "blocks depend on their pieces"
    for line in AnswerEntry(1, clean).lines(Drawer(40, Palette())):
        assert neutral(line.text) == line.text, f"drawn: {line.text!r:.80}"
