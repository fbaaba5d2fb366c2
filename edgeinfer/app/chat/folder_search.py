"""Chooses the parts of a folder that suit a question, for a folder that is larger than the context.

In: the texts of a folder, a question, a number of tokens, a function that counts tokens. Out: parts of files as
attachments named by their lines, in the order of the files, with a list of all files before them. Ranks by words (BM25,
Robertson and Zaragoza 2009), as chat models make no embeddings; words of names count as well. Reads no files.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.records import Attachment

MOST_CHARACTERS, LEAST_CHARACTERS = 1200, 200
"""Length at which a part ends at the next blank line; it is never longer than twice that by more than a line."""
PARTS_WANTED = 8
"""There is room for about so many parts, unless they would be longer than MOST_CHARACTERS."""
TOKEN_CHARACTERS = 3
K1, B = 1.2, 0.75
"""BM25's usual constants: how soon repeated words stop to count, and how much the length of a part does."""
NAME_WEIGHT = 3
"""Words of a file's name count as if they stood so often in each of its parts."""
LISTED = 60
"""File names in the list before the parts."""
TOKENS_AROUND = 16
"""Tokens of the name and the fence around an attachment, at most."""
_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
COMMON = frozenset(
    _WORD.findall(
        "a an and are as at be by can do does for from how i in is it its me my of on or so that the this to was what "
        "when where which who why will with you your der die das und ist ein eine wie war wo"
    )
)


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of a file, from 1, both included."""

    file: int
    first_line: int
    last_line: int
    text: str


@dataclass(frozen=True, slots=True)
class ChosenParts:
    """What is sent of a folder, and a sentence about it."""

    attachments: tuple[Attachment, ...]
    notice: str


class FolderSearch:
    """An index of the texts of a folder, of which parts are to be sent in `n_tokens` tokens."""

    def __init__(self, folder: str, files: Sequence[Attachment], n_tokens: int) -> None:
        self._folder, self._n_tokens = folder, n_tokens
        size = max(LEAST_CHARACTERS, min(MOST_CHARACTERS, n_tokens * TOKEN_CHARACTERS // PARTS_WANTED))
        self._files = [file for file in files if file.medium is None]
        self._parts = [part for number, file in enumerate(self._files) for part in parts_of(number, file.text, size)]
        names = [Counter(words_of(file.name)) for file in self._files]
        self._counts = [Counter(words_of(part.text)) for part in self._parts]
        for part, counts in zip(self._parts, self._counts, strict=True):
            for word, n in names[part.file].items():
                counts[word] += n * NAME_WEIGHT
        self._lengths = [max(1, sum(counts.values())) for counts in self._counts]
        self._mean_length = sum(self._lengths) / max(1, len(self._lengths))
        self._n_with = Counter(word for counts in self._counts for word in counts)

    def ranked(self, question: str) -> list[int]:
        """Numbers of the parts that have words of a question, the best first."""
        wanted = set(words_of(question)) - COMMON
        scores = [self._score(number, wanted) for number in range(len(self._parts))]
        found = [number for number, score in enumerate(scores) if score > 0]
        return sorted(found, key=lambda number: (-scores[number], number))

    def chosen(
        self, question: str, count: Callable[[str], int | None], known: Collection[str] = ()
    ) -> ChosenParts | None:
        """The parts that suit a question best; None if not even the list of files fits.

        A question without words of the folder gets the beginnings of its files. `known`: names of attachments that the
        chat has already.
        """
        listing = self._listing()
        left = self._n_tokens - _counted(listing.text, count)
        if left < 0:
            return None
        ranked = self.ranked(question)
        beginnings = [number for number, part in enumerate(self._parts) if part.first_line == 1]
        taken: list[Part] = []
        for number in ranked or beginnings:
            part = self._parts[number]
            if self._name(part) in known:
                continue
            n_part = _counted(part.text, count)
            if n_part <= left:
                taken.append(part)
                left -= n_part
        merged = list(_merged(taken))
        attached = [Attachment(self._name(part), part.text) for part in merged]
        first = [] if listing.name in known else [listing]
        return ChosenParts((*first, *attached), self._notice(merged, suits=bool(ranked)))

    def _notice(self, merged: Sequence[Part], *, suits: bool) -> str:
        n_files = len({part.file for part in merged})
        how = "chosen by the words of the question" if suits else "the beginnings of its files"
        parts = f"{counted(len(merged), 'part')} of {counted(n_files, 'file')}"
        return f"{self._folder} ({counted(len(self._files), 'file')}) is larger than the context: {parts} sent, {how}"

    def _listing(self) -> Attachment:
        names = [file.name for file in self._files]
        more = [f"… and {len(names) - LISTED} more"] if len(names) > LISTED else []
        return Attachment(f"files of {self._folder}", "\n".join([*names[:LISTED], *more]) + "\n")

    def _name(self, part: Part) -> str:
        return f"{self._files[part.file].name}, lines {part.first_line}-{part.last_line}"

    def _score(self, number: int, wanted: Collection[str]) -> float:
        counts, total = self._counts[number], 0.0
        norm = K1 * (1 - B + B * self._lengths[number] / self._mean_length)
        for word in wanted:
            if n := counts.get(word, 0):
                rare = math.log(1 + (len(self._parts) - self._n_with[word] + 0.5) / (self._n_with[word] + 0.5))
                total += rare * n * (K1 + 1) / (n + norm)
        return total


def _counted(text: str, count: Callable[[str], int | None]) -> int:
    """Tokens of a text as an attachment; estimated if they cannot be counted."""
    n_tokens = count(text)
    return (len(text) // 2 if n_tokens is None else n_tokens) + TOKENS_AROUND


def _merged(parts: Sequence[Part]) -> Iterator[Part]:
    """Parts in the order of the files, neighbours as one."""
    last: Part | None = None
    for part in sorted(parts, key=lambda part: (part.file, part.first_line)):
        if last is not None and (last.file, last.last_line + 1) == (part.file, part.first_line):
            last = Part(part.file, last.first_line, part.last_line, last.text + part.text)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def parts_of(file: int, text: str, size: int) -> Iterator[Part]:
    """Cut a text into parts of about `size` characters, after blank lines where there are any."""
    lines, begun, n_characters = text.splitlines(keepends=True), 0, 0
    for place, line in enumerate(lines):
        n_characters += len(line)
        is_long = n_characters >= size
        if is_long and (not line.strip() or n_characters >= 2 * size):
            yield Part(file, begun + 1, place + 1, "".join(lines[begun : place + 1]))
            begun, n_characters = place + 1, 0
    if begun < len(lines):
        yield Part(file, begun + 1, len(lines), "".join(lines[begun:]))


def words_of(text: str) -> Iterator[str]:
    """The words of a text in lower case, those of names like readText and read_text too; plural s is dropped."""
    for word in _WORD.findall(text):
        for hump in _HUMP.split(word):
            lower = hump.lower()
            yield lower[:-1] if len(lower) > 3 and lower.endswith("s") and not lower.endswith("ss") else lower
