"""Values of columns as their types: SQLite holds any value in any column, and what a damaged file holds costs no chat.

In: values of rows. Out: texts, numbers and bytes; a value of another type becomes one that means nothing.
"""

from __future__ import annotations

import math


def decoded(data: bytes) -> str:
    """A text of the database, which may not be UTF-8 if the file is damaged."""
    return data.decode("utf-8", "replace")


def text_in(value: object) -> str:
    """A text; other values are written as one, and nothing as ""."""
    if isinstance(value, bytes):
        return decoded(value)
    return "" if value is None else str(value)


def text_or_none(value: object) -> str | None:
    """A text, or None if there is none."""
    return None if value is None else text_in(value)


def whole_or_none(value: object) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) else None


def whole_in(value: object) -> int:
    """A whole number; 0 in place of anything else."""
    return value if isinstance(value, int) else 0


def number_in(value: object) -> float:
    """A finite number; 0 in place of anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def number_or_none(value: object) -> float | None:
    """A finite number, or None if there is nothing."""
    return None if value is None else number_in(value)


def bytes_in(value: object) -> bytes:
    """Bytes; none in place of anything else."""
    return value if isinstance(value, bytes) else b""
