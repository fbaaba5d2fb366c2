"""Frames of a terminal as one moving SVG: what changes is drawn once, and shown for as long as it was there.

In: frames, each with its moment and its rows of styled runs. Out: the text of an SVG file, animated by CSS alone,
without scripts and with fonts of the system. Every distinct content of a row is a group with the moments at which it is
visible, so that a file grows with what changes and not with the number of frames. Where nothing moves (programs without
animations, readers who want none) one frame is shown, the still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, BASE_LINE = 8.4, 18.0, 14.0, 13.5
SIDE, TOP, BOTTOM = 12.0, 34.0, 28.0
FONTS = 'ui-monospace,"DejaVu Sans Mono","Liberation Mono",Menlo,Consolas,monospace'
FRAME, TITLE_COLOUR = "#1c1f24", "#9aa4af"
LIGHTS = ("#ff5f57", "#febc2e", "#28c840")


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring cells of one look; colours as "#rrggbb"."""

    text: str
    n_cells: int
    colour: str
    ground: str
    is_bold: bool = False
    is_italic: bool = False
    is_underlined: bool = False


Row = tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class TerminalFrame:
    """The rows of a terminal from `began_s` on."""

    began_s: float
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A content of one row, and when it is there."""

    place: int
    row: Row
    began_s: float
    ended_s: float


def spans_of(frames: Sequence[TerminalFrame], ends_s: float) -> list[Span]:
    """Every content of every row, with the time from its first frame to the first with another one."""
    found: list[Span] = []
    for place in range(len(frames[0].rows)):
        began_s, row = frames[0].began_s, frames[0].rows[place]
        for frame in frames[1:]:
            if frame.rows[place] != row:
                found.append(Span(place, row, began_s, frame.began_s))
                began_s, row = frame.began_s, frame.rows[place]
        found.append(Span(place, row, began_s, ends_s))
    return found


def moving_svg(
    frames: Sequence[TerminalFrame], ends_s: float, still_s: float, ground: str, title: str, caption: str
) -> str:
    """The picture: it runs from the first frame, at 0 s, to `ends_s`, again and again; `still_s`: of the still."""
    n_columns = max(sum(run.n_cells for run in row) for row in frames[0].rows)
    width = n_columns * CELL_WIDTH + 2 * SIDE
    height = TOP + len(frames[0].rows) * CELL_HEIGHT + BOTTOM
    drawn: dict[tuple[int, Row], list[Span]] = {}
    for span in spans_of(frames, ends_s):
        if any(run.text.strip() or run.ground != ground for run in span.row):
            drawn.setdefault((span.place, span.row), []).append(span)
    colours = sorted({run.colour for _, row in drawn for run in row})
    names = {colour: f"c{number}" for number, colour in enumerate(colours)}
    groups, rules = [], [f".{name}{{fill:{colour}}}" for colour, name in names.items()]
    for number, ((place, row), spans) in enumerate(drawn.items()):
        is_always = len(spans) == 1 and spans[0].began_s <= 0 and spans[0].ended_s >= ends_s
        is_still = any(span.began_s <= still_s < span.ended_s for span in spans)
        name = "" if is_always else f' class="r{"" if is_still else " h"}" style="animation-name:k{number}"'
        rules += [] if is_always else [_keyframes(number, spans, ends_s)]
        groups.append(f"<g{name}>{''.join(_shapes(place, row, ground, names))}</g>")
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    lights = (f'<circle cx="{20 + 20 * n}" cy="17" r="6" fill="{colour}"/>' for n, colour in enumerate(LIGHTS))
    sheet = (
        f"text{{font-family:{FONTS};font-size:{FONT_SIZE:g}px;white-space:pre}}.t{{fill:{TITLE_COLOUR}}}"
        ".b{font-weight:bold}.i{font-style:italic}.u{text-decoration:underline}.h{visibility:hidden}"
        f".r{{animation-duration:{ends_s:.2f}s;animation-timing-function:step-end;animation-iteration-count:infinite}}"
        "@media (prefers-reduced-motion:reduce){.r{animation:none}}"
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{sheet}{''.join(rules)}</style>",
            f'<rect width="100%" height="100%" rx="9" fill="{FRAME}"/>{"".join(lights)}',
            f'<text class="t" x="{width / 2:g}" y="22" text-anchor="middle">{escape(title)}</text>',
            f'<rect x="{SIDE:g}" y="{TOP:g}" width="{n_columns * CELL_WIDTH:g}" '
            f'height="{len(frames[0].rows) * CELL_HEIGHT:g}" fill="{ground}"/>',
            *groups,
            f'<text class="t" x="{SIDE:g}" y="{height - 9:g}">{escape(caption)}</text>',
            "</svg>\n",
        )
    )


def _keyframes(number: int, spans: Sequence[Span], ends_s: float) -> str:
    """When a group is visible, in shares of the whole time."""
    steps = [] if spans[0].began_s <= 0 else ["0%{visibility:hidden}"]
    for span in spans:
        steps.append(f"{_share(span.began_s / ends_s)}{{visibility:visible}}")
        if span.ended_s < ends_s:
            steps.append(f"{_share(span.ended_s / ends_s)}{{visibility:hidden}}")
    return f"@keyframes k{number}{{{''.join(steps)}}}"


def _share(share: float) -> str:
    return f"{100 * max(0.0, share):.3f}".rstrip("0").rstrip(".") + "%"


def _shapes(place: int, row: Row, ground: str, names: dict[str, str]) -> list[str]:
    """The grounds of a row, then its texts; each text is as wide as its cells, whatever font there is."""
    grounds, texts = [], []
    column, top = 0, TOP + place * CELL_HEIGHT
    for run in row:
        x, width = SIDE + column * CELL_WIDTH, run.n_cells * CELL_WIDTH
        if run.ground != ground:
            size = f'x="{_n(x)}" y="{_n(top)}" width="{_n(width)}" height="{CELL_HEIGHT:g}"'
            grounds.append(f'<rect {size} fill="{run.ground}"/>')
        text = run.text.rstrip()
        if text:
            cells = run.n_cells - (len(run.text) - len(text))
            begins = len(text) - len(text.lstrip())
            flags = zip("biu", (run.is_bold, run.is_italic, run.is_underlined), strict=True)
            style = " ".join((names[run.colour], *(name for name, is_set in flags if is_set)))
            at = f'x="{_n(x + begins * CELL_WIDTH)}" y="{_n(top + BASE_LINE)}"'
            fit = f'textLength="{_n((cells - begins) * CELL_WIDTH)}" lengthAdjust="spacingAndGlyphs"'
            texts.append(f'<text class="{style}" {at} {fit}>{escape(text.lstrip(), quote=False)}</text>')
        column += run.n_cells
    return [*grounds, *texts]


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
