"""The colours of a transcript, from the theme of the app.

In: an app. Out: a palette of Rich's styles. Knows no texts.
"""

from __future__ import annotations

from textual.app import App
from textual.color import Color, ColorParseError

from edgeinfer.app.tui.text.drawing import Palette


def palette_of(app: App[object]) -> Palette:
    """Styles that fit the app's theme."""
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
    """A colour of Textual's by the name that Rich has for it, "" for none."""
    try:
        colour = Color.parse(text)
    except (ColorParseError, ValueError):
        return ""
    return colour.rich_color.name
