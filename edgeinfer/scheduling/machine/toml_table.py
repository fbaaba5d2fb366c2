"""Checked reading of TOML tables: numbers with units, text, tables, and errors that say where and what would work.

In: a table as `tomllib` gives it, with decimals kept as they were written. Out: values in plain units (bytes, seconds,
a second), or BadSetting. A number goes through decimal places only, so that what was written is read back to the bit.
Knows no key by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from edgeinfer.errors import BadSetting

MOST_ENTRIES = 4096
"""Of one list: more are a mistake or an attack."""
MOST_LETTERS = 2000


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a number counts: `unit` for people, ten to the power of `exponent` plain units each, and its range."""

    unit: str
    exponent: int
    at_most: float
    zero: bool = False

    def read(self, value: object) -> float:
        """The value in plain units. Raises ValueError with the rule."""
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise ValueError(self.rule)
        try:
            size = float(value)
        except OverflowError:
            raise ValueError(self.rule) from None
        if not (0 <= size <= self.at_most) or (size == 0 and not self.zero):
            raise ValueError(self.rule)
        plain = float(Decimal(value).scaleb(self.exponent))
        if plain == 0 and size > 0:
            raise ValueError(self.rule)
        return plain

    def text(self, plain: float) -> str:
        """A value in plain units as the shortest decimal number of this quantity that reads back the same."""
        return f"{Decimal(repr(plain)).scaleb(-self.exponent).normalize():f}"

    @property
    def rule(self) -> str:
        lowest = "from 0" if self.zero else "above 0"
        return f"a number of {self.unit} {lowest} to {self.at_most:g} is wanted"


def decimal_or_infinite(text: str) -> Decimal:
    """A number of a TOML file as it is written; infinite if its exponent is beyond all bounds."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("inf")


class Table:
    """One table of a file. `where`: the file and the table, for messages. Raises BadSetting for keys not in `known`."""

    def __init__(self, where: str, value: object, known: Sequence[str]) -> None:
        if not isinstance(value, dict):
            raise BadSetting(f"{where} is {shown(value)}: a table with {', '.join(known)} is wanted")
        self.where = where
        self._values: Mapping[str, object] = value
        for key in value:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise BadSetting(f"{where}: nothing is called {key[:80]!r}; {hint}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def value(self, key: str, wanted: str) -> object:
        """The value of a key, which must be there; `wanted` says what belongs there."""
        if key not in self._values:
            raise BadSetting(f"{self.where}: {key} is missing: {wanted}")
        return self._values[key]

    def refusal(self, key: str, value: object, rule: object) -> BadSetting:
        """The error for a value that breaks a rule."""
        return BadSetting(f"{self.where}: {key} cannot be {shown(value)}: {rule}")

    def number(self, key: str, quantity: Quantity) -> float:
        """A number that must be there."""
        value = self.value(key, quantity.rule)
        try:
            return quantity.read(value)
        except ValueError as rule:
            raise self.refusal(key, value, rule) from None

    def number_or(self, key: str, quantity: Quantity, default: float) -> float:
        """A number, or `default` where the key is missing."""
        return self.number(key, quantity) if key in self else default

    def whole(self, key: str, at_most: int, at_least: int = 0) -> int:
        """A whole number that must be there."""
        rule = f"a whole number from {at_least} to {at_most} is wanted"
        value = self.value(key, rule)
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
            raise self.refusal(key, value, rule)
        return value

    def whole_or(self, key: str, at_most: int, default: int) -> int:
        """A whole number from 0, or `default` where the key is missing."""
        return self.whole(key, at_most) if key in self else default

    def text(self, key: str) -> str:
        """Text that must be there, not empty."""
        rule = f"text of 1 to {MOST_LETTERS} letters is wanted"
        value = self.value(key, rule)
        if not isinstance(value, str) or not 0 < len(value) <= MOST_LETTERS:
            raise self.refusal(key, value, rule)
        return value

    def text_or(self, key: str, default: str) -> str:
        """Text, or `default` where the key is missing."""
        return self.text(key) if key in self else default

    def switch(self, key: str) -> bool:
        """True or false; false where the key is missing."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.refusal(key, value, "true or false is wanted")
        return value

    def entries(self, key: str, wanted: str) -> Sequence[object]:
        """A list; empty where the key is missing."""
        value = self._values.get(key, [])
        if not isinstance(value, list) or len(value) > MOST_ENTRIES:
            raise self.refusal(key, value, f"a list of at most {MOST_ENTRIES} {wanted} is wanted")
        return value


def shown(value: object) -> str:
    """A value for a message, cut where it is long."""
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**80:
        return f"a whole number of {value.bit_length()} bits"
    text = str(value) if isinstance(value, Decimal | bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
