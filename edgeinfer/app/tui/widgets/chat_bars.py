"""The bars of the chat screen: title and model above, context and meters below, and a banner if nothing is saved.

In: texts, counts of tokens, figures. Out: one line each, redrawn only when it changes; narrow screens omit the least
important. Knows no chat and no model.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from edgeinfer.app.tui.figures import UNKNOWN, bar, longest_that_fits, n_bytes, rate
from edgeinfer.app.tui.text.neutral import neutral

BETWEEN, GAP = " · ", " │ "
BAR_WIDTH, SHORT_BAR_WIDTH = 20, 8
PREFILL_BAR_WIDTH, KV_WIDTH = 10, 7


class TitleBar(Static):
    """One line, redrawn only when it changes."""

    DEFAULT_CSS = """
    TitleBar {
        height: 1;
        padding: 0 1;
        background: $panel;
        color: $text;
        text-wrap: nowrap;
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._title = ""
        self._model = ""
        self._prompt = ""
        self._shown = ""

    def show(self, title: str, model: str, prompt: str = "") -> None:
        """Show the title on the left, and on the right the name of the system prompt (`prompt`) and the model's."""
        self._title, self._model, self._prompt = neutral(title).replace("\n", " "), neutral(model), neutral(prompt)
        self._draw()

    def on_resize(self) -> None:
        """Redraw for the new width."""
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        model = self._model if cell_len(self._model) <= width * 2 // 3 else set_cell_size(self._model, width * 2 // 3)
        if self._prompt:  # before the title, as users do not expect a system prompt they cannot see
            room = width - cell_len(model) - len(BETWEEN)
            prompt = self._prompt if cell_len(self._prompt) <= room else set_cell_size(self._prompt, max(0, room))
            model = f"{prompt}{BETWEEN}{model}"
        room = max(0, width - cell_len(model) - 1)
        line = set_cell_size(self._title, room) + " " + model if width else ""
        if line != self._shown:
            self._shown = line
            self.update(Content(line))


class UnsavedBanner(Static):
    """A warning of up to three lines."""

    DEFAULT_CSS = """
    UnsavedBanner {
        height: auto;
        max-height: 3;
        padding: 0 1;
        background: $warning-muted;
        color: $text-warning;
    }
    """

    def __init__(self, reason: str) -> None:
        super().__init__(neutral(f"Not saved, gone when you leave: {reason}"), markup=False)


class FiguresLine(Static):
    """One line of figures, redrawn only when it changes; `line` makes it."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", markup=False, id=id, classes=classes)
        self._shown = ""

    @property
    def text(self) -> str:
        """The text of the line."""
        return self._shown

    @abstractmethod
    def line(self, width: int) -> str:
        """The line for `width` cells."""

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self, _event: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        if (width := self.content_size.width) and (line := self.line(width)) != self._shown:
            self._shown = line
            self.update(Content(line), layout=False)


@dataclass(frozen=True, slots=True)
class ContextBarState:
    """Tokens in use, of the draft, and of the whole context; messages left out if the draft is sent.

    is_too_long: the draft does not fit, whatever is left out.
    """

    n_used: int
    n_draft: int
    n_context: int
    n_cut_messages: int = 0
    is_too_long: bool = False


class ContextBar(FiguresLine):
    """One line; empty while no model is loaded."""

    DEFAULT_CSS = """
    ContextBar { height: 1; width: 1fr; color: $text-muted; text-wrap: nowrap; }
    ContextBar.-cuts { color: $text-warning; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._use: ContextBarState | None = None

    def show(
        self, n_used: int, n_draft: int, n_context: int, n_cut_messages: int = 0, *, is_too_long: bool = False
    ) -> None:
        """Show these counts. With a context of 0 tokens it is unknown, and the line stays empty."""
        use = ContextBarState(n_used, n_draft, n_context, n_cut_messages, is_too_long)
        self._use = use if n_context > 0 else None
        self.set_class(n_context > 0 and (n_cut_messages > 0 or is_too_long), "-cuts")
        self._draw()

    def line(self, width: int) -> str:
        return "" if self._use is None else context_line(self._use, width)


def context_line(use: ContextBarState, width: int) -> str:
    """The line for `width` cells. A notice of messages left out takes precedence over the bar if only one fits."""
    shares = use.n_used / use.n_context, use.n_draft / use.n_context
    long, short = (f"{bar(shares[0], cells, shares[1])} " for cells in (BAR_WIDTH, SHORT_BAR_WIDTH))
    total = use.n_used + use.n_draft
    added = f" + {use.n_draft:,}" if use.n_draft else ""
    counts = f"{use.n_used:,}{added} of {use.n_context:,}"
    draft = f", the draft adds {use.n_draft:,}" if use.n_draft else ""
    if use.is_too_long:
        alone = f"the draft is too long: {use.n_draft:,} tokens"
        return longest_that_fits(width, f"{long}{alone}, the context holds {use.n_context:,}", alone, "too long")
    if not use.n_cut_messages:
        left = f", {max(0, use.n_context - total):,} left"
        spelt = f"{use.n_used:,} of {use.n_context:,} tokens used{draft}"
        return longest_that_fits(
            width, f"{long}{spelt}{left}", f"{long}{spelt}", f"{short}{counts} tokens", f"{short}{counts}", counts
        )
    cut = _cut(use.n_cut_messages)
    return longest_that_fits(
        width,
        f"{long}{counts} tokens; {cut}: /compact summarises them",
        f"{short}{counts}; {cut}: /compact summarises them",
        f"{cut}: /compact summarises them",
        f"{cut}: /compact",
        f"{use.n_cut_messages} oldest left out: /compact",
    )


def _cut(n_messages: int) -> str:
    """What would be left out, in words."""
    if n_messages == 1:
        return "the oldest message would be left out"
    return f"the {n_messages} oldest messages would be left out"


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


class Meters(FiguresLine):
    """One line of figures."""

    DEFAULT_CSS = """
    Meters { height: 1; width: 1fr; color: $text-muted; text-wrap: nowrap; padding: 0; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._figures = MeterFigures()

    def show(self, figures: MeterFigures) -> None:
        """Show these figures; redraws only if the line changes."""
        self._figures = figures
        self._draw()

    def line(self, width: int) -> str:
        return meter_line(self._figures, width)


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
    spelt = f"reading the prompt {shown} {count} of {total:,} tokens"
    return longest_that_fits(width, spelt, f"reading {shown} {count} of {total:,}", f"reading {count}")
