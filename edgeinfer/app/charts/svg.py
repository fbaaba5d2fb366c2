"""Writes SVG pictures: rectangles, lines, dots and text, in colours that suit light and dark pages.

In: shapes in pixels, each with a style's name. Out: the text of an SVG file that needs nothing else, no font and no
script. The background is opaque, so that a picture can be read wherever it is shown. Does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

from edgeinfer.app.plain_text import harmless

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]

LIGHT = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#78716c")
DARK = ("#60a5fa", "#fbbf24", "#34d399", "#f472b6", "#a78bfa", "#22d3ee", "#a3e635", "#a8a29e")
N_COLOURS = len(LIGHT)
CHARACTER = 0.56
"""Mean width of a character of the text, as a share of its size."""
MONOSPACED = 0.61

_SHEET = """\
text{{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;font-size:13px;fill:{ink}}}
.page{{fill:{page}}}.title{{font-size:18px;font-weight:600}}.head{{font-size:14px;font-weight:600}}
.soft{{fill:{soft}}}.small{{font-size:12px;fill:{soft}}}
.code{{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:12px;fill:{soft}}}
.inside{{font-size:12px;fill:{page}}}
.grid{{stroke:{grid};stroke-width:1}}.axis{{stroke:{soft};stroke-width:1}}
.dashed{{stroke:{soft};stroke-width:1.5;stroke-dasharray:5 4;fill:none}}.range{{stroke:{ink};stroke-width:1.5}}
"""
_INK = {"ink": "#1f2328", "soft": "#59636e", "grid": "#e2e5e9", "page": "#ffffff"}
_INK_DARK = {"ink": "#e6edf3", "soft": "#9aa4af", "grid": "#2d333b", "page": "#0d1117"}


def _sheet(ink: dict[str, str], colours: Sequence[str]) -> str:
    series = (
        f".f{n}{{fill:{colour}}}.l{n}{{stroke:{colour};stroke-width:2;fill:none}}.p{n}{{fill:{colour};opacity:.55}}"
        for n, colour in enumerate(colours)
    )
    return _SHEET.format(**ink) + "\n".join(series)


class Drawing:
    """A picture being drawn. Styles are `fN`, `lN`, `pN` (fill, line, pale fill of colour N) and those of the sheet."""

    def __init__(self, width: int, title: str) -> None:
        self.width = width
        self._title = _text(title)
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, style: str, tip: str = "") -> None:
        """A rectangle; `tip` is shown where a pointer rests on it."""
        size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(0.0, width))}" height="{_n(height)}"'
        inside = f"<title>{_text(tip)}</title>" if tip else ""
        self._shapes.append(
            f'<rect {size} class="{style}">{inside}</rect>' if tip else f'<rect {size} class="{style}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self._shapes.append(f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{style}"/>')

    def path(self, points: Sequence[Point], style: str) -> None:
        """Straight lines from point to point."""
        if len(points) > 1:
            steps = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
            self._shapes.append(f'<path d="M{steps}" class="{style}"/>')

    def dot(self, x: float, y: float, style: str, tip: str = "", radius: float = 4) -> None:
        """A filled circle."""
        inside = f"<title>{_text(tip)}</title>"
        self._shapes.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="{style}">{inside}</circle>')

    def text(self, x: float, y: float, text: str, style: str = "", anchor: Anchor = "start") -> None:
        """A line of text on the base line `y`."""
        place = f'x="{_n(x)}" y="{_n(y)}"' + ("" if anchor == "start" else f' text-anchor="{anchor}"')
        self._shapes.append(f"<text {place}{_class(style)}>{_text(text)}</text>")

    def standing(self, x: float, y: float, text: str, style: str = "small") -> None:
        """A line of text from bottom to top, centred on (x, y)."""
        turned = f'transform="translate({_n(x)} {_n(y)}) rotate(-90)" text-anchor="middle"'
        self._shapes.append(f"<text {turned}{_class(style)}>{_text(text)}</text>")

    def render(self, height: float) -> str:
        """The file's text, for a picture of this height."""
        size = f'width="{self.width}" height="{_n(height)}" viewBox="0 0 {self.width} {_n(height)}"'
        dark = f"@media (prefers-color-scheme:dark){{{_sheet(_INK_DARK, DARK)}}}"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{self._title}">',
            f"<title>{self._title}</title>",
            f"<style>{_sheet(_INK, LIGHT)}\n{dark}</style>",
            '<rect width="100%" height="100%" class="page" rx="8"/>',
        )
        return "\n".join((*head, *self._shapes, "</svg>\n"))


def text_width(text: str, size: float = 13, share: float = CHARACTER) -> float:
    """About how wide a line of text is drawn."""
    return len(text) * size * share


def wrapped(text: str, width: float, size: float = 12, share: float = MONOSPACED) -> list[str]:
    """A text in lines that fit a width; words longer than a line are cut."""
    from textwrap import wrap

    return wrap(text, max(8, int(width / (size * share))), break_on_hyphens=False)


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""


def _text(text: str) -> str:
    return escape(harmless(text).replace("\n", " ").replace("\t", " "), quote=True)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
