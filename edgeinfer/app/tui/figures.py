"""Formats numbers for the terminal app: short, with fixed widths, and "–" for unknown values.

In: numbers. Out: text without markup. Knows no widget.
"""

from __future__ import annotations

from edgeinfer.app.step_clock import EMPTY, FULL

UNKNOWN = "–"
DRAFTED = "▒"
"""Glyph of a bar's cells between FULL and EMPTY; three shapes, so that it can be read without colour."""
RATE_WIDTH, BYTES_WIDTH = 5, 8


def rate(value: float | None) -> str:
    """Tokens per second or a similar rate, with three significant digits."""
    if value is None:
        return UNKNOWN.rjust(RATE_WIDTH)
    text = f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
    return text.rjust(RATE_WIDTH)


def n_bytes(count: float | None, width: int = BYTES_WIDTH) -> str:
    """Bytes as "1.23 GB", "45 MB", "4.5 MB" or "450 kB"."""
    if count is None:
        text = UNKNOWN
    elif count >= 1e7 or count == 0:
        text = f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
    else:
        text = f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
    return text.rjust(width)


def seconds(value: float | None) -> str:
    """A short time: "3.42 ms", "1.20 s"."""
    if value is None:
        return UNKNOWN
    if value < 1e-3:
        return f"{1e6 * value:.0f} µs"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.2f} s"


def percent(share: float | None) -> str:
    """A share as " 42 %"."""
    return f"{UNKNOWN if share is None else f'{100 * share:.0f}':>3} %"


def bar(share: float, width: int, added: float = 0.0) -> str:
    """A bar of `width` cells: `share` of it full, then `added`. Any part above zero gets at least one cell."""
    full = _cells(share, width)
    more = min(_cells(added, width), width)
    full = min(full, width - more)
    return FULL * full + DRAFTED * more + EMPTY * (width - full - more)


def _cells(share: float, width: int) -> int:
    return 0 if share <= 0 else min(width, max(1, round(share * width)))


def longest_that_fits(width: int, *texts: str) -> str:
    """The first text that fits `width` cells, or the last one truncated."""
    return next((text for text in texts if len(text) <= width), texts[-1][:width])
