"""What `/several` and `/map` are given after their names: numbers, picks, instructions, items.

In: the text after the command. Out: records. Raises BadSetting, which says what would work. Knows neither screens nor
the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.chat.attachments import attach, mentions
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.errors import BadSetting

LEAST, MOST = 2, 64
SEVERAL_FORM = "/several 4 QUESTION, or /several 4 for the last question once more"
MAP_FORM = "/map INSTRUCTION with an item on each line below it (Ctrl+J begins a line), or /map INSTRUCTION @FILE"
CHECK = "check"
LABEL_CHARACTERS = 60
_SEVERAL = re.compile(r"(?P<n>[0-9]{1,4})(?:\s+pick=(?P<pick>\S+))?(?:\s+(?P<question>.*))?", re.DOTALL)
_SIGNS = re.compile(r"([\\`*_\[\]<>#|~])")


@dataclass(frozen=True, slots=True)
class SeveralAsked:
    """Several answers: how many, how one is kept, and the question; "" means the last one of the branch."""

    n: int
    pick: str
    question: str


@dataclass(frozen=True, slots=True)
class MapAsked:
    """An instruction for each of many items, and the file that they come from, if they do."""

    instruction: str
    items: tuple[str, ...]
    files: tuple[Attachment, ...] = ()

    @property
    def question(self) -> str:
        """What is saved as the user's message."""
        return self.instruction if self.files else "\n".join([self.instruction, "", *self.items])


def several_asked(argument: str) -> SeveralAsked:
    """Parse "4 pick=shortest What is …". Raises BadSetting."""
    from edgeinfer.scheduling.several.picks import PICKS

    match = _SEVERAL.fullmatch(argument.strip())
    if match is None or not LEAST <= int(match["n"]) <= MOST:
        raise BadSetting(f"how many answers? {LEAST} to {MOST}: {SEVERAL_FORM}")
    pick = match["pick"] or "vote"
    known = [name for name in PICKS.keys() if name != CHECK]  # noqa: SIM118  # a registry is no mapping
    if pick not in known:
        raise BadSetting(f"pick cannot be {pick}; there are: {', '.join(known)}")
    return SeveralAsked(int(match["n"]), pick, (match["question"] or "").strip())


def map_asked(argument: str, base: Path | None = None) -> MapAsked:
    """Parse an instruction and its items, reading a file that the first line mentions. Raises BadSetting.

    Lines without text are no items.
    """
    first, _, rest = argument.strip().partition("\n")
    files = tuple(one for path in mentions(first, base, missing=True) for one in _texts(path, base))
    lines = [line for file in files for line in file.text.splitlines()] + rest.splitlines()
    items = tuple(line.strip() for line in lines if line.strip())
    instruction = re.sub(r'\s*@(?:"[^"\n]*"|\S+)', "", first).strip() if files else first.strip()
    if not instruction or not items:
        raise BadSetting(f"what is to be done with which items? {MAP_FORM}")
    return MapAsked(instruction, items, files)


def _texts(path: Path, base: Path | None) -> tuple[Attachment, ...]:
    attached = attach(path, base)
    if any(one.medium is not None for one in attached.attachments):
        raise BadSetting(f"{path.name} is no text; the items are lines of a text file")
    return attached.attachments


def parts_text(items: tuple[str, ...], text_of: Callable[[int], str]) -> str:
    """The texts of items in their order, each under its item."""
    parts = [f"**{number + 1}. {_label(item)}**\n\n{text_of(number).strip()}" for number, item in enumerate(items)]
    return "\n\n".join(part.rstrip() for part in parts)


def _label(item: str) -> str:
    shown = item if len(item) <= LABEL_CHARACTERS else f"{item[: LABEL_CHARACTERS - 1].rstrip()}…"
    return _SIGNS.sub(r"\\\1", shown)
