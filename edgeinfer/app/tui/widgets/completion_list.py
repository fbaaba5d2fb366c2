"""The list of completions above the composer.

In: the text before the cursor, a folder, the commands. Out: the chosen completion, and where it starts. Files are
looked up in a thread. The list is an overlay that moves nothing when it opens, and never has the focus. Does not know
the text area.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual import on, work
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from edgeinfer.app.chat.completion import Completion, complete_command, complete_path, fragment_at
from edgeinfer.app.tui.text.neutral import neutral

ROWS_CAP = 6
LABEL_WIDTH_CAP = 24


class CompletionList(OptionList):
    """Up to six rows, shown while there is something to complete."""

    can_focus = False
    DEFAULT_CSS = """
    CompletionList {
        overlay: screen;
        constrain: inside inside;
        display: none;
        height: auto;
        max-height: 6;
        border: none;
        padding: 0 1;
        background: $panel;
        scrollbar-size-vertical: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &.-open { display: block; }
        & > .option-list--option-highlighted {
            color: $block-cursor-foreground;
            background: $block-cursor-background;
            text-style: $block-cursor-text-style;
        }
        &:ansi > .option-list--option-highlighted { text-style: bold; }
    }
    """

    class Found(Message):
        """Files found by the thread; `number` identifies the search."""

        def __init__(self, number: int, path: str, completions: list[Completion]) -> None:
            super().__init__()
            self.number = number
            self.path = path
            self.completions = completions

    class Picked(Message):
        """A row was clicked."""

    def __init__(self, base: Path, commands: Sequence[tuple[str, str]]) -> None:
        super().__init__(markup=False)
        self._base = base
        self._commands = tuple(commands)
        self._completions: tuple[Completion, ...] = ()
        self._search_number = 0
        self._place: tuple[int, int] | None = None  # row and column where the fragment begins
        self._closed_place: tuple[int, int] | None = None
        self._path = ""
        self._sought: str | None = None
        """The path being looked up."""

    @property
    def is_open(self) -> bool:
        """Whether completions are shown."""
        return bool(self._completions)

    @property
    def begin(self) -> int:
        """The column where the completed text begins."""
        return 0 if self._place is None else self._place[1]

    @property
    def chosen(self) -> Completion | None:
        """The highlighted completion."""
        return None if self.highlighted is None or not self._completions else self._completions[self.highlighted]

    def follow(self, row: int, before: str) -> None:
        """Show the completions for the text before the cursor, in the cursor's row."""
        commands = complete_command(before, self._commands) if row == 0 else []
        fragment = None if commands else fragment_at(before)
        place = (row, 0) if commands else None if fragment is None else (row, fragment.begin)
        path = "" if fragment is None else fragment.path
        if place == self._place and place is not None and fragment is not None and path == self._path:
            return
        self._place, self._path = place, path
        self._search_number += 1
        self._sought = None
        if place is None or place != self._closed_place:
            self._closed_place = None
        if self._closed_place is not None or fragment is None:
            self._show(() if self._closed_place is not None else commands)
        else:
            self._sought = fragment.path
            self._search(fragment.path, self._search_number)

    def catch_up(self) -> None:
        """Finish the pending lookup now, so that a key does not accept a completion of a shorter text."""
        if (path := self._sought) is not None:
            self._search_number += 1
            self._take_paths(path, complete_path(path, self._base))

    def close(self) -> None:
        """Hide the list until another completion begins."""
        self._closed_place = self._place
        self._search_number += 1
        self._sought = None
        self._show(())

    def step(self, rows: int) -> None:
        """Highlight the next or previous row, wrapping around."""
        if self._completions:
            first = 0 if rows > 0 else len(self._completions) - 1
            here = self.highlighted
            self.highlighted = first if here is None else (here + rows) % len(self._completions)

    @work(thread=True, exclusive=True, group="complete")
    def _search(self, path: str, number: int) -> None:
        self.post_message(self.Found(number, path, complete_path(path, self._base)))

    @on(Found)
    def _take_found(self, found: Found) -> None:
        found.stop()
        if found.number == self._search_number:
            self._take_paths(found.path, found.completions)

    def _take_paths(self, path: str, completions: Sequence[Completion]) -> None:
        self._sought = None
        # after entering a folder nothing is highlighted, so that Enter sends the folder itself
        self._show(completions, choose_first=not path.endswith("/"))

    @on(OptionList.OptionSelected)
    def _tell_click(self, selected: OptionList.OptionSelected) -> None:
        selected.stop()
        self.post_message(self.Picked())

    def _show(self, completions: Sequence[Completion], *, choose_first: bool = True) -> None:
        completions = tuple(completions)
        if completions != self._completions:
            self._completions = completions
            width = max((len(each.label) for each in completions if len(each.label) <= LABEL_WIDTH_CAP), default=0)
            self.set_options([Option(_row(each, width)) for each in completions])
            self.highlighted = 0 if completions and choose_first else None
        self.set_class(bool(completions), "-open")
        self.styles.offset = (0, -min(len(completions), ROWS_CAP))


def _row(completion: Completion, label_width: int) -> Content:
    label = Content(neutral(completion.label))
    if not completion.help:
        return label
    space = " " * (2 + max(0, label_width - label.cell_length))
    return label + Content.styled(space + neutral(completion.help), "dim")
