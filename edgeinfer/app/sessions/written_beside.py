"""How an answer was written beside others, as it is saved with it: its place among them, the choice, the reason.

In: values, the text of a column. Out: records, text for columns and for people. An unreadable column counts as empty.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

MOST = 1_000_000
"""Numbers above this are not of ours."""


@dataclass(frozen=True, slots=True)
class WrittenBeside:
    """An answer that was one of several, or has parts that were written side by side. Numbers begin at 1.

    count   the answers, or the parts
    number  its place among the answers; 0: it consists of the parts
    kept    the number of the answer that was kept; 0: none was
    reason  why that one, in words
    early   whether it was ended because it could not be chosen any more
    """

    count: int
    number: int = 0
    kept: int = 0
    reason: str = ""
    early: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether this is the answer that was kept."""
        return self.number > 0 and self.number == self.kept

    @property
    def line(self) -> str:
        """One line for people."""
        if not self.number:
            return f"{self.count} parts, which did not see one another"
        place = f"answer {self.number} of {self.count}"
        if self.is_kept:
            return f"{place} kept: {self.reason}"
        chosen = f"answer {self.kept} was kept: {self.reason}" if self.kept else "none was chosen"
        return f"{place}{', not needed' if self.early else ''}; {chosen}"


def beside_text(beside: WrittenBeside | None) -> str | None:
    """The record as column text."""
    return None if beside is None else json.dumps(dataclasses.asdict(beside))


def beside_of(text: str | None) -> WrittenBeside | None:
    """Parse a column, ignoring fields of later versions; None if it is empty or damaged."""
    if not text:
        return None
    try:
        found = json.loads(text)
        known = {field.name for field in dataclasses.fields(WrittenBeside)}
        beside = WrittenBeside(**{name: value for name, value in found.items() if name in known})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    numbers = (beside.count, beside.number, beside.kept)
    is_sound = all(type(number) is int and 0 <= number <= MOST for number in numbers)
    is_sound = is_sound and type(beside.reason) is str and type(beside.early) is bool
    return beside if is_sound and max(beside.number, beside.kept) <= beside.count else None
