"""How texts that arrive in pieces could still become what is waited for: stop strings, what begins calls."""

from __future__ import annotations


def overlap(text: str, awaited: str) -> int:
    """How many characters at the end of a text begin the awaited one; fewer than all of it."""
    longest = min(len(awaited) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(awaited[:n])), 0)
