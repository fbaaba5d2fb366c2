"""The sessions screen: saved chats, newest first, with full-text search.

In: the store, the open chat. Out: the chat to open and the message to show, if one was chosen. All disk access runs in
workers (`SessionWork`), which post messages and know no widgets. Deleting can be undone, so it needs no confirmation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, Input, OptionList, Static

from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.exporting import export_chat, export_path
from edgeinfer.app.sessions.importing import import_chat
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.tui.widgets.session_list import (
    UNTITLED,
    ChatRow,
    SessionList,
    one_line,
    rows_of_hits,
    rows_of_sessions,
)
from edgeinfer.app.tui.widgets.text_fields import EntryLine, SearchField
from edgeinfer.errors import EdgeInferError

MOST_ROWS, MOST_HITS = 500, 100
"""Maximum rows of a list; laying out more would block the screen."""

SETTLED_S = 0.15
"""Pause in typing after which a search starts, in seconds."""
Change = Literal["renamed", "deleted", "undeleted", "exported", "imported"]


class ChatsListed(Message):
    """The list of chats, or the results of a search."""

    def __init__(self, query: str, rows: tuple[ChatRow, ...]) -> None:
        super().__init__()
        self.query = query
        self.rows = rows


class ChatsChanged(Message):
    """A chat was changed. `about`: its title, or the path it was exported to."""

    def __init__(self, change: Change, session: int, about: str) -> None:
        super().__init__()
        self.change = change
        self.session = session
        self.about = about


class ChatTrouble(Message):
    """An error message."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class SessionWork:
    """Disk access of the screen: each method runs in a worker thread; errors become messages."""

    def __init__(self, store: SessionStore, post: Callable[[Message], object]) -> None:
        self._store = store
        self._post = post

    def rows(self, query: str) -> None:
        """List all chats, or search them."""
        if query.strip():
            self._tell(lambda: ChatsListed(query, rows_of_hits(self._store.search(query, MOST_HITS))))
        else:
            self._tell(lambda: ChatsListed(query, rows_of_sessions(self._store.sessions(MOST_ROWS))))

    def rename(self, number: int, title: str) -> None:
        """Rename a chat."""

        def done() -> Message:
            self._store.rename(number, title)
            return self._changed("renamed", number)

        self._tell(done)

    def delete(self, number: int) -> None:
        """Delete a chat; `undelete` restores it."""

        def done() -> Message:
            self._store.delete(number)
            return self._changed("deleted", number)

        self._tell(done)

    def undelete(self, number: int) -> None:
        """Restore a deleted chat."""

        def done() -> Message:
            self._store.undelete(number)
            return self._changed("undeleted", number)

        self._tell(done)

    def export(self, number: int, path: Path) -> None:
        """Export a chat to a file."""
        self._tell(lambda: ChatsChanged("exported", number, str(export_chat(self._store, number, path))))

    def bring_in(self, path: Path) -> None:
        """Import a chat from a file."""
        self._tell(lambda: self._changed("imported", import_chat(self._store, path)))

    def _changed(self, change: Change, number: int) -> ChatsChanged:
        return ChatsChanged(change, number, self._store.session(number).title)

    def _tell(self, work: Callable[[], Message]) -> None:
        try:
            self._post(work())
        except EdgeInferError as error:
            self._post(ChatTrouble(str(error)))


@dataclass(frozen=True, slots=True)
class ChosenChat:
    """The chat to open, and the message to scroll to; None: its end."""

    session: int
    message: int | None


class SessionsScreen(Screen[ChosenChat | None]):
    """A searchable list of saved chats."""

    AUTO_FOCUS = "SearchField"
    DEFAULT_CSS = """
    SessionsScreen { layout: vertical; background: $background; }
    SessionsScreen #sessions-notice { height: auto; max-height: 3; padding: 0 1; color: $text-warning; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back", id="sessions.back"),
        Binding("enter", "open", "open", id="sessions.open"),
        Binding("delete", "delete", "delete", id="sessions.delete", key_display="del"),
        Binding("u,ctrl+z", "undo", "undo", id="sessions.undo"),
        Binding("r,f2", "rename", "rename", id="sessions.rename"),
        Binding("e,f5", "export", "export", id="sessions.export"),
        Binding("i,f6", "import", "import", id="sessions.import"),
        Binding("slash", "search", "search", id="sessions.search"),
        Binding("up", "move('up')", "up", id="sessions.up", show=False),
        Binding("down", "move('down')", "down", id="sessions.down", show=False),
        Binding("pageup", "move('page_up')", "page up", id="sessions.page-up", show=False),
        Binding("pagedown", "move('page_down')", "page down", id="sessions.page-down", show=False),
    ]

    def __init__(
        self, store: SessionStore, current: int | None, query: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._work = SessionWork(store, self.post_message)
        self._open_session = current
        self._clock = clock
        self._first_query = query
        self._shown_query: str | None = None
        self._typing: Timer | None = None
        self._opens_first = False
        self._deleted: list[int] = []
        self._wanted = current
        """The chat to select once it is listed."""
        self._subject = 0
        """The chat that the entry line refers to."""

    def compose(self) -> ComposeResult:
        """Search field, list, and lines that appear when needed."""
        yield SearchField(self._first_query, placeholder="search saved chats", id="sessions-search", compact=True)
        yield SessionList(self._open_session, self._clock, id="sessions-list")
        yield Static(id="sessions-notice", markup=False)
        yield EntryLine(id="sessions-entry")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """List the chats."""
        self._list()

    @property
    def _field(self) -> SearchField:
        return self.query_one(SearchField)

    @property
    def _rows(self) -> SessionList:
        return self.query_one(SessionList)

    def _begin(self, group: str, work: Callable[[], None]) -> None:
        """Run work in a thread; a new search cancels earlier ones."""
        self.run_worker(work, thread=True, exclusive=group == "list", group=f"sessions-{group}")

    # List

    def _list(self) -> None:
        if self._typing is not None:
            self._typing.stop()
            self._typing = None
        query = self._field.value
        self._begin("list", lambda: self._work.rows(query))

    @on(Input.Changed, "#sessions-search")
    def _typed(self) -> None:
        self._opens_first = False
        if self._typing is not None:
            self._typing.stop()
        self._typing = self.set_timer(SETTLED_S, self._list)

    @on(ChatsListed)
    def _show_listed(self, event: ChatsListed) -> None:
        if event.query != self._field.value:
            return
        is_new, self._shown_query = event.query != self._shown_query, event.query
        self._rows.show(event.rows, to_top=is_new)
        if self._wanted is not None and not event.query:
            self._rows.select_session(self._wanted)
        self._wanted = None
        if is_new:
            self._notice("" if event.rows else self._nothing(event.query))
        if not event.query:
            n_rows = len(event.rows)
            is_all = n_rows < MOST_ROWS
            self._field.placeholder = (
                f"search {counted(n_rows, 'chat')}" if is_all else f"search all; the newest {n_rows} are listed"
            )
        if self._opens_first:
            self._opens_first = False
            self.action_open()

    def _nothing(self, query: str) -> str:
        if query.strip():
            return f"nothing has all of these words: {query}"
        return "no saved chats yet; i (F6 here) imports one"

    # Navigation

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key is usable now; the footer shows only usable keys."""
        if not self.is_mounted:
            return True
        if action in ("delete", "undo", "rename", "export", "import", "search") and self.query_one(EntryLine).is_open:
            return False
        if action == "undo":
            return bool(self._deleted)
        return not (action == "search" and self._field.has_focus)

    def action_move(self, where: str) -> None:
        """Move the list's cursor while the search field has the focus."""
        rows = self._rows
        moves: dict[str, Callable[[], None]] = {
            "up": rows.action_cursor_up,
            "down": rows.action_cursor_down,
            "page_up": rows.action_page_up,
            "page_down": rows.action_page_down,
        }
        if not self.query_one(EntryLine).is_open:
            moves[where]()

    def action_search(self) -> None:
        """Focus the search field."""
        self._field.focus()

    def action_leave(self) -> None:
        """Close the screen."""
        self.dismiss(None)

    @on(Input.Submitted, "#sessions-search")
    def _search_submitted(self, event: Input.Submitted) -> None:
        """Open the row under the cursor; if the list is outdated, list first and then open."""
        event.stop()
        if event.value != self._shown_query:
            self._opens_first = True
            self._list()
        else:
            self.action_open()

    @on(OptionList.OptionSelected)
    def _row_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        """Open the chat under the cursor, at the message that was found."""
        if (row := self._rows.chosen) is not None:
            self.dismiss(ChosenChat(row.session, row.message))

    # Rename, delete, export, import

    def action_delete(self) -> None:
        """Delete the chat under the cursor."""
        if (row := self._rows.chosen) is not None:
            self._begin("change", lambda: self._work.delete(row.session))

    def action_undo(self) -> None:
        """Restore the chat deleted last."""
        number = self._deleted[-1]
        self._begin("change", lambda: self._work.undelete(number))

    def action_rename(self) -> None:
        """Ask for a new title."""
        if (row := self._rows.chosen) is not None:
            self._ask(row.session, "rename", "title", row.title)

    def action_export(self) -> None:
        """Ask for the file to export to."""
        if (row := self._rows.chosen) is not None:
            self._ask(row.session, "export", ".md or .json", str(export_path(one_line(row.title), Path())))

    def action_import(self) -> None:
        """Ask for the file to import."""
        self._ask(0, "import", "import from", "")

    def _ask(self, session: int, what: str, label: str, text: str) -> None:
        self._subject = session
        self._notice("")
        self.query_one(EntryLine).ask(what, label, text)

    @on(EntryLine.Left)
    def _entry_left(self) -> None:
        self._rows.focus()

    @on(EntryLine.Entered)
    def _entered(self, event: EntryLine.Entered) -> None:
        self._rows.focus()
        number, text = self._subject, event.text
        if event.what == "rename":
            self._begin("change", lambda: self._work.rename(number, text))
        elif text and event.what == "export":
            self._begin("file", lambda: self._work.export(number, Path(text)))
        elif text:
            self._begin("file", lambda: self._work.bring_in(Path(text)))

    @on(ChatsChanged)
    def _changed(self, event: ChatsChanged) -> None:
        """Show what was done, and list the chats again."""
        title = one_line(event.about).strip() or UNTITLED
        if event.change == "deleted":
            self._deleted.append(event.session)
            self._notice(f"deleted; ctrl+z brings it back: {title}")
        elif event.change == "undeleted":
            self._deleted = [number for number in self._deleted if number != event.session]
            self._notice(f"“{title}” is back")
        elif event.change == "imported":
            self._notice(f"imported “{title}”; Enter opens it")
            self._field.value = self._shown_query = ""
        elif event.change == "exported":
            self._notice(f"exported to {event.about}")
        if event.change != "deleted":
            self._wanted = event.session
        self.refresh_bindings()
        self._list()

    @on(ChatTrouble)
    def _trouble(self, event: ChatTrouble) -> None:
        self._opens_first = False
        self._notice(event.text)

    def _notice(self, text: str) -> None:
        line = self.query_one("#sessions-notice", Static)
        line.display = bool(text)
        line.update(one_line(text))
