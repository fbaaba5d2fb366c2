"""How a chat begins: empty, with the last saved chat, with a question, or with both.

In: the command line's options, the saved chats. Out: the chat to begin with. Knows no terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.app.sessions.chat import Chat
    from edgeinfer.app.sessions.store import SessionStore

NO_EARLIER = "there is no earlier chat to continue; this is a new one"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the command line asks for. `system`: its system prompt, which also applies to an earlier chat."""

    continues: bool = False
    question: str = ""
    system: str | None = None


def last_chat(store: SessionStore, system: str | None = None) -> Chat | None:
    """The saved chat that was changed last, with another system prompt if one is given; None if there is none."""
    from edgeinfer.app.sessions.chat import Chat

    kept = store.sessions(limit=1)
    if not kept:
        return None
    chat = Chat(store, kept[0])
    if system is not None:
        chat.system = system
    return chat
