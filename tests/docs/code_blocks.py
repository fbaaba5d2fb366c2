"""Blocks of code in the documentation, and the commands in them.

In: pages in Markdown. Out: their fenced blocks, with the reason why a block is only parsed, if it has one: a comment
`<!-- parsed: REASON -->` in the line before it, or `<!-- parsed, all of this page: REASON -->`. Readers see neither.
Runs nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HISTORY = ("docs/log/", "CHANGELOG.md")
"""Pages about what was: their commands need not exist any more."""
FENCE = re.compile(
    r"(?ms)(?:^ *<!-- parsed: (?P<reason>[^\n]+) -->\n)?"
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)$"
)
PAGE = re.compile(r"(?m)^<!-- parsed, all of this page: ([^\n]+) -->$")
SETTING = re.compile(r"[A-Z][A-Z0-9_]*=")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code; `reason`: why it is only parsed, None if it runs."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Line:
    """A command line: programs with their words, each fed by the one before; environment; the file that takes all."""

    programs: tuple[tuple[str, ...], ...]
    environment: tuple[tuple[str, str], ...] = ()
    output: str | None = None


def pages() -> list[Path]:
    """All pages of the documentation that are about the program as it is."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"]
    return [path for path in sorted(found) if not path.relative_to(ROOT).as_posix().startswith(HISTORY)]


@cache
def blocks(*languages: str) -> tuple[Block, ...]:
    """The blocks of all pages in these languages."""
    return tuple(block for path in pages() for block in blocks_of(path) if block.language in languages)


def blocks_of(path: Path) -> Iterator[Block]:
    """The blocks of a page."""
    text = path.read_text(encoding="utf-8")
    whole = PAGE.search(text)
    for match in FENCE.finditer(text):
        indent = match["indent"]
        code = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("fence")) + 1
        yield Block(
            path.relative_to(ROOT).as_posix(), line, match["language"], code, match["reason"] or (whole and whole[1])
        )


def lines_of(block: Block) -> list[Line]:
    """The command lines of a block: all of its lines, or of a `console` block those behind a prompt."""
    text = block.text.replace("\\\n", " ")
    shown = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    lines = shown if block.language == "console" else text.splitlines()
    return [line for each in lines if (line := read_line(each)) is not None]


def read_line(text: str) -> Line | None:
    """A command line as a shell reads it; None for an empty one or a comment."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    words = list(lexer)
    output = None
    if ">" in words:
        output = words[words.index(">") + 1]
        del words[words.index(">") : words.index(">") + 2]
    programs: list[list[str]] = [[]]
    environment: list[tuple[str, str]] = []
    for word in words:
        if word == "|":
            programs.append([])
        elif not programs[-1] and SETTING.match(word):
            name, _, value = word.partition("=")
            environment.append((name, value))
        else:
            programs[-1].append(word)
    if not programs[0]:
        return None
    return Line(tuple(tuple(program) for program in programs), tuple(environment), output)
