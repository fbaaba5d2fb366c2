"""The transcript: the messages of a branch, one below the other; only visible ones are drawn.

In: entries, text for the growing one. Out: lines on the screen. While text arrives the view follows the end, unless the
user has scrolled up: then it stays there and announces more text below. Drawing is paced by its cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.style import Style
from textual.events import Click
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer

from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.growing_lines import pause_s
from edgeinfer.app.tui.widgets.entries import AnswerEntry, ChatEntry
from edgeinfer.app.tui.widgets.transcript_lines import EDGE, Edge, EdgedLines, EdgeStyle, Heights, extracted, palette_of

AHEAD_SCREENS, KEPT_SCREENS = 1, 6
"""Distance from the view, in screens, up to which lines are drawn ahead, and up to which they are kept."""
MOST_ROUNDS = 4
"""Maximum draw passes until everything visible is drawn, if entries differ from their estimated heights."""


class Transcript(ScrollView):
    """Entries in order. Keys and the mouse scroll; entries are selected with keys, text with the mouse."""

    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        min-height: 3;
        background: $background;
        color: $foreground;
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-gutter: stable;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.can_focus = False
        self._entries: list[ChatEntry] = []
        self._heights = Heights()
        self._selected: int | None = None
        self._follows = True
        self._drawer: Drawer | None = None
        self._pending: Timer | None = None
        self._first: Callable[[], None] | None = None
        self._is_preparing = False
        self._pause_s = 0.0
        self._drawn_s, self._used_s = 0.0, time.thread_time()
        self._lines = EdgedLines(Style(bold=True))
        self._base: Style | None = None  # looked up once for all lines

    # called by the screen

    @property
    def entries(self) -> tuple[ChatEntry, ...]:
        """All entries, in order."""
        return tuple(self._entries)

    @property
    def is_following(self) -> bool:
        """Whether the view follows the end while text arrives."""
        return self._follows

    @property
    def is_drawn(self) -> bool:
        """Whether everything visible is drawn and up to date."""
        return self._pending is None and self._sees_drawn()

    @property
    def selected(self) -> int | None:
        """The number of the selected message."""
        return self._selected

    @property
    def last_answer(self) -> AnswerEntry | None:
        """The last answer, or None."""
        return next((entry for entry in reversed(self._entries) if isinstance(entry, AnswerEntry)), None)

    def answer(self, number: int | None) -> AnswerEntry | None:
        """The answer with a number, or None."""
        return next((e for e in reversed(self._entries) if e.number == number and isinstance(e, AnswerEntry)), None)

    async def show(self, entries: Sequence[ChatEntry]) -> None:
        """Replace all entries, and show their end."""
        for entry in self._entries:
            entry.changed = None
        self._entries, self._selected, self._follows = list(entries), None, True
        for entry in self._entries:
            entry.changed = self._note_change
        self._measure_all()
        self.draw()

    async def add(self, entry: ChatEntry) -> None:
        """Append an entry."""
        entry.changed = self._note_change
        self._entries.append(entry)
        self._heights.guess(entry.estimate(self._width))
        self.draw()

    def follow(self) -> None:
        """Scroll to the end, and follow it."""
        self._follows = True
        self._selected = None
        self.draw()

    def scroll_to_message(self, number: int) -> None:
        """Select a message, and scroll it to the top."""
        place = self._place_of(number)
        if place is None:
            return
        self._selected, self._follows = number, False
        self.draw()
        self._go(self._heights.top(place))
        self.draw()

    def select_previous(self) -> None:
        """Select the previous message, or the last one if none is selected."""
        self._select(-1)

    def select_next(self) -> None:
        """Select the next message; after the last one, clear the selection."""
        self._select(1)

    def unselect(self) -> None:
        """Clear the selection."""
        self._selected = None
        self.refresh()

    def toggle_thinking(self) -> None:
        """Unfold the selected message, or all messages; if nothing is folded, fold instead."""
        entries = [entry for entry in self._entries if self._selected in (None, entry.number)]
        is_folded = not any(entry.is_folded for entry in entries)
        for entry in entries:
            entry.fold(is_folded=is_folded)
        self.draw()

    # drawing

    @property
    def _width(self) -> int:
        return max(1, self.scrollable_content_region.width - len(EDGE))

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._restyle())
        self._restyle()

    def on_resize(self) -> None:
        """Redraw everything if the width has changed."""
        if self._drawer is None or self._drawer.width != self._width:
            self._restyle()

    def notify_style_update(self) -> None:
        """The widget's style has changed: drop cached lines."""
        super().notify_style_update()
        self._base = None
        self._lines.clear()

    def _restyle(self) -> None:
        if not self.size.width:
            return
        palette = palette_of(self.app)
        self._drawer = Drawer(self._width, palette)
        self._lines = EdgedLines(Style.parse(palette.accent))
        self._measure_all()
        self.draw()

    def draw_soon(self, first: Callable[[], None]) -> None:
        """Schedule a draw, paced by its cost; `first` is called before it, and may change entries."""
        self._first = first
        self._note_change()

    def _note_change(self, entry: ChatEntry | None = None) -> None:
        """Some lines have changed: schedule a draw, paced by its cost."""
        if self._pending is not None or self._is_preparing:
            return
        wait_s = self._drawn_s + self._pause_s - time.monotonic()
        if wait_s <= 0:
            self._pending = self.set_timer(0.001, self.draw)
        else:
            self._pending = self.set_timer(wait_s, self.draw)

    def draw(self) -> None:
        """Draw what is visible and keep the scroll position; does nothing while another screen is on top."""
        if self._pending is not None:
            self._pending.stop()
            self._pending = None
        self._prepare()
        if self._drawer is None or not self.is_attached or not self.screen.is_current:
            return
        used_s, self._used_s = time.thread_time() - self._used_s, time.thread_time()
        if self._follows:
            self._draw_end()
        else:
            self._draw_around()
        self._forget_far()
        self.refresh()
        self._pause_s = pause_s(used_s)
        self._drawn_s = time.monotonic()

    def _prepare(self) -> None:
        """Call the `first` of `draw_soon`. Changes it makes belong to the current draw and schedule no further one."""
        first, self._first = self._first, None
        if first is not None:
            self._is_preparing = True
            try:
                first()
            finally:
                self._is_preparing = False

    def _draw_end(self) -> None:
        """Draw the last screens, and scroll to the end."""
        self._draw_while(range(len(self._entries) - 1, -1, -1), (1 + AHEAD_SCREENS) * max(1, self.size.height))
        self._extend()
        self._go(max(0, self.virtual_size.height - self.size.height))

    def _draw_around(self) -> None:
        """Draw what is visible and near, keeping a visible line in its place."""
        for _ in range(MOST_ROUNDS if self._entries else 0):
            top, height = self.scroll_offset.y, max(1, self.size.height)
            first, last = self._heights.at(top)[0], self._heights.at(top + height - 1)[0]
            kept = next((place for place in range(first, last + 1) if self._heights.is_measured(place)), first)
            offset, near = top - self._heights.top(kept), AHEAD_SCREENS * height
            self._draw_while(range(first, len(self._entries)), height + near + max(0, top - self._heights.top(first)))
            self._draw_while(range(first - 1, -1, -1), near)
            self._extend()
            top = self._heights.top(kept) + min(offset, self._heights.of(kept) - 1)
            self._go(max(0, min(top, self.virtual_size.height - height)))
            if self._sees_drawn():
                break
        self._extend()

    def _draw_while(self, places: range, n_lines: int) -> None:
        """Draw entries until there are `n_lines` lines."""
        for place in places:
            if n_lines <= 0:
                break
            n_lines -= self._draw_entry(place)

    def _sees_drawn(self) -> bool:
        """Whether everything visible is drawn."""
        if not self._entries:
            return True
        top = self.scroll_offset.y
        seen = range(self._heights.at(top)[0], self._heights.at(top + max(1, self.size.height) - 1)[0] + 1)
        return all(self._entries[place].is_drawn_by(self._drawer) for place in seen)

    def _forget_far(self) -> None:
        """Drop lines far from the view: a large number of cached lines would cost time."""
        top, height = self.scroll_offset.y, max(1, self.size.height)
        begin, end = top - KEPT_SCREENS * height, top + (1 + KEPT_SCREENS) * height
        for place, entry in enumerate(self._entries):
            if (self._heights.end(place) < begin or self._heights.top(place) > end) and entry.is_drawn_by(self._drawer):
                entry.forget()

    def _draw_entry(self, place: int) -> int:
        """Draw an entry. Returns its number of lines."""
        assert self._drawer is not None
        n_lines = len(self._entries[place].lines(self._drawer))
        self._heights.measure(place, n_lines)
        return n_lines

    def _measure_all(self) -> None:
        width = self._width
        self._heights.guess_all(entry.estimate(width) for entry in self._entries)
        self._extend()

    def _extend(self) -> None:
        """Apply the new heights to the scrollable area."""
        self._heights.settle()
        size = Size(self.scrollable_content_region.width, self._heights.total)
        before, room = self.virtual_size, self.size.height
        if size.width == before.width and (size.height > room) == (before.height > room):
            self.set_reactive(ScrollView.virtual_size, size)  # avoids a layout of the whole screen for each line
            self.vertical_scrollbar.window_virtual_size = size.height
        elif size != before:
            self.virtual_size = size

    def _place_of(self, number: int | None) -> int | None:
        return next((place for place, entry in enumerate(self._entries) if entry.number == number), None)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Lines of the screen, as the same objects each time, so that results cached with them stay valid."""
        look, background, filters = self._look(), self.background_colors[1], self.get_line_filters()
        strips = []
        for y in crop.line_range:
            strip = self._line(y, look)
            for each in filters:
                strip = strip.apply_filter(each, background)
            strips.append(strip if crop.column_span == (0, look.width) else strip.crop(*crop.column_span))
        return strips

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        return self._line(y, self._look())

    def _look(self) -> EdgeStyle:
        self._base = self._base or self.rich_style
        more = self.size.height - 1 if self._has_more(self.size.height - 1) else -1
        selected = self.screen.get_component_rich_style("screen--selection")
        width, top = self.content_region.width, self.scroll_offset.y
        return EdgeStyle(width, top, more, self._base, self.text_selection, selected)

    def _line(self, y: int, look: EdgeStyle) -> Strip:
        line = look.top + y
        if self._drawer is None or line >= self._heights.total:
            return Strip.blank(look.width, look.style)
        if y == look.more:
            return self._lines.more(look)
        place, offset = self._heights.at(line)
        entry = self._entries[place]
        lines = entry.lines(self._drawer)
        inner = lines[offset] if offset < len(lines) else Strip.blank(0)
        edge: Edge = "selected" if entry.number == self._selected else "plain" if entry.is_question else "none"
        if offset >= len(lines) - 1:  # the blank line between entries
            edge = "none"
        return self._lines.line(inner, edge, line, look)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text selected with the mouse, as displayed, without the edge."""
        n_lines = self._heights.total
        return (extracted(selection, n_lines, self._shown_text), "\n") if n_lines else None

    def selection_updated(self, selection: Selection | None) -> None:
        """The selection has changed."""
        self.refresh()

    def _shown_text(self, line: int) -> str:
        assert self._drawer is not None
        place, offset = self._heights.at(line)
        lines = self._entries[place].lines(self._drawer)
        return " " * len(EDGE) + (lines[offset].text if offset < len(lines) else "")

    def _has_more(self, y: int) -> bool:
        """Whether there is more text below a line of the screen, while the view does not follow the end."""
        return not self._follows and self._heights.total > self.scroll_offset.y + y + 1

    # scrolling

    def on_click(self, event: Click) -> None:
        """A click on the line that announces more text goes to the end; one on a folded line unfolds it."""
        y = event.get_content_offset_capture(self).y
        if y == self.size.height - 1 and self._has_more(y):
            self.follow()
        elif self.text_selection is None and self.scroll_offset.y + y < self._heights.total:
            place, offset = self._heights.at(self.scroll_offset.y + y)
            if self._entries[place].click(offset):
                self.draw()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The scroll position decides whether the view follows the end; newly visible entries are drawn."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) == round(new_value):
            return
        was_following = self._follows
        self._follows = self.scroll_offset.y >= self.max_scroll_y
        if was_following != self._follows:
            self.refresh()
        if not self._follows and self._entries and self._pending is None and not self._sees_drawn():
            self._pending = self.set_timer(0.001, self.draw)

    def _go(self, line: int) -> None:
        """Scroll a line to the top, immediately."""
        self.scroll_to(y=line, animate=False, immediate=True, force=True)

    def _select(self, step: int) -> None:
        if not self._entries:
            return
        place = self._place_of(self._selected)
        target = len(self._entries) - 1 if place is None else place + step
        if place is None and step > 0:
            return
        if target >= len(self._entries):
            self.follow()
            return
        target = max(0, target)
        self._selected = self._entries[target].number
        self.draw()
        top, bottom = self._heights.top(target), self._heights.end(target)
        if top < self.scroll_offset.y or bottom > self.scroll_offset.y + self.size.height:
            self._follows = False
            self.scroll_to(
                y=min(top, max(0, bottom - self.size.height // 2)), animate=False, immediate=True, force=True
            )
            self.draw()
