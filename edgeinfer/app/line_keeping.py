"""Which kept chat a line chat goes on with, and is written to.

In: what the command line asks for. Out: a `Chat` whose file is closed afterwards, or None where none is kept. What a
script asks over a pipe is not kept, unless it continues a chat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgeinfer.app.answer_output import print_notices
from edgeinfer.app.beginning import NO_EARLIER, Beginning, last_chat
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.store import SessionStore, default_path
from edgeinfer.errors import SessionsFailed, SessionsUnwritable


@contextmanager
def kept_chat(beginning: Beginning, system: str | None, *, is_kept: bool) -> Iterator[Chat | None]:
    """The chat to go on with, a new one, or None. Raises SessionsFailed where one is to be continued and cannot be."""
    store = _store(beginning) if is_kept or beginning.continues else None
    if store is None:
        yield None
        return
    with store:
        found = last_chat(store, beginning.system) if beginning.continues else None
        if beginning.continues:
            print_notices((NO_EARLIER if found is None else f"going on with: {found.title}",))
        yield found or Chat(store, system=system)


def _store(beginning: Beginning) -> SessionStore | None:
    """The kept chats; None, which is told, where they cannot be used and nothing is to be continued."""
    try:
        return SessionStore(default_path())
    except SessionsFailed as reason:
        if beginning.continues and not isinstance(reason, SessionsUnwritable):
            raise
        print_notices((f"this chat is not kept: {reason}",))
        return None
