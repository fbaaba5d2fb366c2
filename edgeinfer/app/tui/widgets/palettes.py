"""Derives the colours of a transcript from the app's theme.

In: an app. Out: a palette of Rich styles. Knows no texts.
"""

from __future__ import annotations

from textual.app import App
from textual.color import Color, ColorParseError

from edgeinfer.app.tui.text.drawing import Palette


def palette_of(app: App[object]) -> Palette:
    """The palette for the app's theme."""
    theme = app.current_theme
    variables = app.theme_variables
    is_ansi = "ansi" in theme.name
    if app.no_color:
        return Palette(has_colour=False)
    accent = _rich_colour(variables.get("text-primary", "")) or _rich_colour(variables.get("primary", ""))
    code_theme = ("ansi_dark" if theme.dark else "ansi_light") if is_ansi else ("monokai" if theme.dark else "friendly")
    return Palette(
        accent=f"{accent} bold".strip(),
        muted="dim",
        code=_rich_colour(variables.get("text-accent", "")) or _rich_colour(variables.get("accent", "")) or "bold",
        code_theme=code_theme,
    )


def _rich_colour(text: str) -> str:
    """Convert a Textual colour to Rich's name for it, or "" if it is none."""
    try:
        colour = Color.parse(text)
    except (ColorParseError, ValueError):
        return ""
    return colour.rich_color.name
