"""The meters under the chat: speeds, context, memory, drafting and energy in one line of fixed-width fields.

In: `MeterFigures`. Out: a line that is redrawn only when it changes; narrow screens omit the least important fields.
Measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from edgeinfer.app.tui.figures import UNKNOWN, bar, longest_that_fits, n_bytes, rate

GAP = " │ "
PREFILL_BAR_WIDTH, KV_WIDTH = 10, 7


@dataclass(frozen=True, slots=True)
class MeterFigures:
    """The values of the meters; None if unknown.

    prompt  tokens of the prompt already processed, and their total; None outside prefill
    """

    decode_tok_s: float | None = None
    prefill_tok_s: float | None = None
    n_used: int | None = None
    n_context: int | None = None
    ram_bytes: int | None = None
    kv_bytes: int | None = None
    accepted_per_step: float | None = None
    joules_per_token: float | None = None
    prompt: tuple[int, int] | None = None


class Meters(Static):
    """One line of figures."""

    DEFAULT_CSS = """
    Meters { height: 1; width: 1fr; color: $text-muted; text-wrap: nowrap; padding: 0; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", markup=False, id=id, classes=classes)
        self._figures = MeterFigures()
        self._shown = ""

    @property
    def text(self) -> str:
        """The text of the line."""
        return self._shown

    def show(self, figures: MeterFigures) -> None:
        """Show these figures; redraws only if the line changes."""
        self._figures = figures
        self._draw()

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self, _event: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        if (width := self.content_size.width) and (line := meter_line(self._figures, width)) != self._shown:
            self._shown = line
            self.update(Content(line), layout=False)


def meter_line(figures: MeterFigures, width: int) -> str:
    """The line for `width` cells: as many of the most important fields as fit, in fixed order."""
    parts = _parts(figures) if figures.prompt is None else _parts_while_reading(figures, figures.prompt, width)
    kept: set[str] = set()
    left = width + len(GAP)
    for _, text in sorted(parts):
        left -= len(text) + len(GAP)
        if left < 0:  # a less important field is not substituted, or fields would come and go with the digits of others
            break
        kept.add(text)
    return GAP.join(text for _, text in parts if text in kept) or parts[0][1][:width]


def _parts(figures: MeterFigures) -> list[tuple[int, str]]:
    """The fields in order of display, each with its rank: lower ranks are more important."""
    return [
        (0, f"decode {rate(figures.decode_tok_s)} tok/s"),
        (2, f"prefill {rate(figures.prefill_tok_s)} tok/s"),
        (1, _context(figures)),
        (3, f"RAM {n_bytes(figures.ram_bytes)}"),
        (5, f"KV {n_bytes(figures.kv_bytes, KV_WIDTH)}"),
        (4, f"{rate(figures.accepted_per_step)} tokens per step"),
        (6, f"{rate(figures.joules_per_token)} J/token"),
    ]


def _parts_while_reading(figures: MeterFigures, progress: tuple[int, int], width: int) -> list[tuple[int, str]]:
    return [
        (0, _prompt(progress, width)),
        (1, _context(figures)),
        (2, f"RAM {n_bytes(figures.ram_bytes)}"),
        (3, f"KV {n_bytes(figures.kv_bytes, KV_WIDTH)}"),
    ]


def _context(figures: MeterFigures) -> str:
    most = UNKNOWN if figures.n_context is None else f"{figures.n_context:,}"
    used = UNKNOWN if figures.n_used is None else f"{figures.n_used:,}"
    return f"ctx {used.rjust(len(most))}/{most}"


def _prompt(progress: tuple[int, int], width: int) -> str:
    done, total = progress
    count = f"{done:,}".rjust(len(f"{total:,}"))
    shown = bar(done / total if total else 0.0, PREFILL_BAR_WIDTH)
    spelt = f"reading the prompt {count} of {total:,} tokens"
    return longest_that_fits(width, f"{spelt} {shown}", f"reading {count} of {total:,} {shown}", f"reading {count}")
