"""The context bar: one line with the tokens in use, the draft's tokens, and messages that would be left out.

In: counts of tokens, and of messages that would not fit. Out: a line, redrawn only when it changes. Counts nothing and
cuts nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from edgeinfer.app.tui.figures import bar, longest_that_fits

BAR_WIDTH, SHORT_BAR_WIDTH = 20, 8


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


class ContextBar(Static):
    """One line; empty while no model is loaded."""

    DEFAULT_CSS = """
    ContextBar { height: 1; width: 1fr; color: $text-muted; text-wrap: nowrap; }
    ContextBar.-cuts { color: $text-warning; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", markup=False, id=id, classes=classes)
        self._use: ContextBarState | None = None
        self._shown = ""

    @property
    def text(self) -> str:
        """The text of the line."""
        return self._shown

    def show(
        self, n_used: int, n_draft: int, n_context: int, n_cut_messages: int = 0, *, is_too_long: bool = False
    ) -> None:
        """Show these counts. With a context of 0 tokens it is unknown, and the line stays empty."""
        use = ContextBarState(n_used, n_draft, n_context, n_cut_messages, is_too_long)
        self._use = use if n_context > 0 else None
        self._draw()

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self, _event: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        line = "" if self._use is None else context_line(self._use, width)
        if width and line != self._shown:
            self._shown = line
            cuts = self._use is not None and (self._use.n_cut_messages > 0 or self._use.is_too_long)
            self.set_class(cuts, "-cuts")
            self.update(Content(line), layout=False)


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
