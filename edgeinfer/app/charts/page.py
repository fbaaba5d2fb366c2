"""A chart: a title, what was measured on which machine, panels below each other, and how it came about.

In: texts and panels; a file's path. Out: SVG text; a file. Refuses other kinds of files. Knows neither benchmarks nor
plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.charts.panels import ChartPanel
from edgeinfer.app.charts.svg import CHARACTER, MONOSPACED, Drawing, wrapped
from edgeinfer.errors import BadSetting

WIDTH, SIDE, BETWEEN = 860, 24, 16
LINE = 18
SUFFIX = ".svg"


@dataclass(frozen=True, slots=True)
class ChartPage:
    """A whole chart. `told`: lines under the title; `notes`: lines at the end; `command`: what made it, last."""

    title: str
    told: tuple[str, ...]
    panels: tuple[ChartPanel, ...]
    notes: tuple[str, ...] = ()
    command: str = ""

    def svg(self) -> str:
        """The text of the file."""
        to, width = Drawing(WIDTH, self.title), WIDTH - 2 * SIDE
        to.text(SIDE, 34, self.title, "title")
        place = 40.0
        for text in (line for told in self.told for line in wrapped(told, width, share=CHARACTER)):
            place += LINE
            to.text(SIDE, place, text, "small")
        place += BETWEEN
        for panel in self.panels:
            panel.draw(to, SIDE, place, width)
            place += panel.height + BETWEEN
        command = (f"$ {self.command}",) if self.command else ()
        for style, texts, share in (("small", self.notes, CHARACTER), ("code", command, MONOSPACED)):
            for text in texts:
                for line in wrapped(text, width, share=share):
                    to.text(SIDE, place, line, style)
                    place += LINE
        return to.render(place + 4)


def check_chart(path: Path) -> None:
    """Raise BadSetting for a file that a chart cannot be written into; called before anything is measured."""
    if path.suffix.lower() != SUFFIX:
        has = f"with {path.suffix}" if path.suffix else "without a suffix"
        raise BadSetting(f"--chart writes SVG, which every browser shows: give a name with {SUFFIX}, not one {has}")
    if path.is_dir():
        raise BadSetting(f"--chart {path}: that is a folder; give a name with {SUFFIX}")
    if not path.parent.is_dir():
        raise BadSetting(f"--chart {path}: there is no folder {str(path.parent)!r}")


def write_chart(page: ChartPage, path: Path) -> None:
    """Write a chart. Raises BadSetting where the file cannot be written."""
    try:
        path.write_text(page.svg(), encoding="utf-8")
    except OSError as reason:
        raise BadSetting(f"--chart {path} cannot be written: {reason.strerror or reason}") from None
