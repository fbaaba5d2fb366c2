"""Reads chats from JSON: our own format with all branches, or a list of {"role", "content"} as other programs write it.

In: text. Out: a session and its messages, numbered as in the file. Raises ValueError with what is wrong, and where.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import get_args

from edgeinfer.app.sessions.records import Attachment, KeptMessage, KeptSession, Role, State
from edgeinfer.app.sessions.rows import figures_of

KEY = "edgeinfer_chat"
FORMAT = 1
LATEST_S = 1e11
"""Upper bound of valid times, in seconds since the epoch; calendars can still display it."""
SYSTEM_ROLES = ("system", "developer")

ROLES: tuple[Role, ...] = get_args(Role)
STATES: tuple[State, ...] = ("whole", "stopped", "cut", "failed")

Chat = tuple[KeptSession, tuple[KeptMessage, ...]]


def chat_of_json(text: str) -> Chat:
    """Parse a chat. Raises ValueError if it is not one."""
    try:
        found: object = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({error})") from None
    if isinstance(found, dict) and KEY in found:
        return _own(found)
    if isinstance(found, dict) and isinstance(found.get("messages"), list):
        return _listed(found["messages"], words_at(found, "title", "the chat") or "")
    if isinstance(found, list):
        return _listed(found, "")
    raise ValueError(
        f'this is not an exported edgeinfer chat: it has neither "{KEY}" nor a list of messages with "role" and '
        '"content"'
    )


def check_format(found: Mapping[str, object]) -> None:
    """Raises ValueError if the format is not the one that this version reads."""
    if found.get(KEY) != FORMAT:
        raise ValueError(f"its format is {str(found.get(KEY))[:20]}, this version reads {FORMAT}; install a later one")


def session_from(found: Mapping[str, object], system: str | None) -> KeptSession:
    """Build a session from its fields in a file."""
    created_s = time_at(found, "created_s")
    title, model = words_at(found, "title", "the chat"), words_at(found, "model", "the chat")
    return KeptSession(0, title or "", system, model, whole_number(found.get("leaf")), created_s, created_s)


def message_from(found: Mapping[str, object], number: int, parent: int | None, text: str, where: str) -> KeptMessage:
    """Build a message from its fields in a file."""
    role = next((one for one in ROLES if one == found.get("role")), None)
    if role is None:
        raise ValueError(f"{where} has the role {str(found.get('role'))[:20]!r}; there are {', '.join(ROLES)}")
    ended: State = next((one for one in STATES if one == found.get("state", "whole")), "stopped")
    return KeptMessage(
        number=number,
        session=0,
        parent=parent,
        role=role,
        text=text,
        state=ended,
        created_s=time_at(found, "created_s"),
        model=words_at(found, "model", where),
        figures=figures_of(json.dumps(found.get("figures"))),
        attachments=_attachments(found.get("attachments"), where),
    )


def words_at(found: Mapping[str, object], key: str, where: str) -> str | None:
    """The string at a key, or None if it is missing. Raises ValueError if the value is not a string."""
    value = found.get(key)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f'"{key}" of {where} is no text')


def time_at(found: Mapping[str, object], key: str) -> float:
    """Seconds since the epoch, or 0.0 if the value is invalid."""
    value = found.get(key)
    return float(value) if isinstance(value, int | float) and 0 <= value < LATEST_S else 0.0


def whole_number(value: object) -> int | None:
    """The value if it is an integer, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _own(found: Mapping[str, object]) -> Chat:
    check_format(found)
    listed = found.get("messages")
    if not isinstance(listed, list):
        raise ValueError('it has no list "messages"')
    messages: list[KeptMessage] = []
    seen: set[int | None] = {None}
    for place, one in enumerate(listed, 1):
        where = f"message {place}"
        if not isinstance(one, dict):
            raise ValueError(f"{where} is no object")
        number, parent = whole_number(one.get("number")), whole_number(one.get("parent"))
        if number is None or number in seen:
            raise ValueError(f'{where} has no "number" of its own')
        if parent not in seen or (parent is None and one.get("parent") is not None):
            raise ValueError(f'"parent" of {where} is no message before it')
        seen.add(number)
        messages.append(message_from(one, number, parent, words_at(one, "text", where) or "", where))
    return session_from(found, words_at(found, "system", "the chat")), tuple(messages)


def _listed(listed: Sequence[object], title: str) -> Chat:
    """A plain list of messages, each the child of the one before it."""
    messages: list[KeptMessage] = []
    system: list[str] = []
    for place, one in enumerate(listed, 1):
        where = f"message {place}"
        if not isinstance(one, dict):
            raise ValueError(f"{where} is no object")
        text = _content(one.get("content"), where)
        if one.get("role") in SYSTEM_ROLES:
            system.append(text)
            continue
        known = {"role": one.get("role")}
        messages.append(message_from(known, place, messages[-1].number if messages else None, text, where))
    if not messages:
        raise ValueError("there are no messages in it")
    about = {"title": title, "leaf": messages[-1].number}
    return session_from(about, "\n\n".join(system) if system else None), tuple(messages)


def _content(content: object, where: str) -> str:
    """The text of a message whose content is a string or a list of parts."""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise ValueError(f"{where} has no text")
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _attachments(found: object, where: str) -> tuple[Attachment, ...]:
    if found is None:
        return ()
    if not isinstance(found, list):
        raise ValueError(f'"attachments" of {where} is no list')
    made = []
    for one in found:
        name, text = (one.get("name"), one.get("text")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"an attachment of {where} has no name or no text")
        made.append(Attachment(name, text))
    return tuple(made)
