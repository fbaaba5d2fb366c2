"""Disk access of the sessions screen, one method per operation, called in worker threads.

In: a store, a function that posts messages. Out: `ChatsListed`, `ChatsChanged`, `ChatTrouble`. Knows no widgets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from textual.message import Message

from edgeinfer.app.sessions.exporting import export_chat
from edgeinfer.app.sessions.importing import import_chat
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.tui.widgets.session_list import ChatRow, rows_of_hits, rows_of_sessions
from edgeinfer.errors import EdgeInferError

MOST_ROWS, MOST_HITS = 500, 100
"""Maximum rows of a list; laying out more would block the screen."""

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
    """All methods may block; errors become messages."""

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
