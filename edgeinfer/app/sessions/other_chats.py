"""Chats of other programs as ours: exports of ChatGPT, Claude and Open WebUI, files of LM Studio, aichat and oterm.

In: parsed JSON or YAML, an SQLite file. Out: sessions with their messages, branches included where the program has
them; what is no text of a person or a model, such as calls of tools, is left out. Errors are ValueErrors that say
what is wrong. Knows no store.
"""

from __future__ import annotations

import html
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from edgeinfer.app.sessions.records import KeptMessage, KeptSession, Role

Chat = tuple[KeptSession, tuple[KeptMessage, ...]]
SQLITE_MARK = b"SQLite format 3\0"
OTERM_TABLES = frozenset({"chat", "message"})
MILLISECONDS_FROM = 1e11
"""Times from here on are milliseconds since the epoch; as seconds they would be in the year 5138."""
REASONING, REASONING_END = '<details type="reasoning"', "</details>"
ROLES: Mapping[object, Role] = {"user": "user", "human": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """A message of another program; `role` None: it is passed over, and its children belong to its parent."""

    parent: str | None
    role: Role | None
    text: str
    created_s: float = 0.0
    model: str | None = None


def chats_of_other(found: object) -> tuple[Chat, ...] | None:
    """The chats in what was parsed of a file, None if its program is not known. Raises ValueError."""
    listed = found if isinstance(found, list) else [found]
    chats = [chat for one in listed if isinstance(one, dict) and (chat := _chat_of(one)) is not None]
    if not chats:
        return None
    if len(chats) != len(listed):
        raise ValueError(f"{len(listed) - len(chats)} of its {len(listed)} chats are of an unknown form")
    kept = tuple(chat for chat in chats if chat[1])
    if not kept:
        raise ValueError("there are no messages in it")
    return kept


def _chat_of(one: Mapping[str, object]) -> Chat | None:
    """One chat, None if its program is not known."""
    inner = one.get("chat")
    if isinstance(one.get("mapping"), dict):
        return _of_chatgpt(one)
    if isinstance(one.get("chat_messages"), list):
        return _of_claude(one)
    if isinstance(inner, dict) and isinstance(inner.get("history"), dict):
        return _of_open_webui(one, inner)
    messages = one.get("messages")
    if isinstance(messages, list) and any(isinstance(each, dict) and "versions" in each for each in messages):
        return _of_lm_studio(one)
    return None


def _of_chatgpt(one: Mapping[str, object]) -> Chat:
    nodes = {}
    for key, each in _objects(one.get("mapping")):
        message = _object(each.get("message"))
        content = _object(message.get("content"))
        is_text = content.get("content_type") in ("text", "multimodal_text")
        is_hidden = _object(message.get("metadata")).get("is_visually_hidden_from_conversation") is True
        role = ROLES.get(_object(message.get("author")).get("role")) if is_text and not is_hidden else None
        text, model = _texts(content.get("parts")), _text(_object(message.get("metadata")).get("model_slug"))
        nodes[key] = OtherMessage(
            _text(each.get("parent")), role if text else None, text, _seconds(message.get("create_time")), model
        )
    model = _text(one.get("default_model_slug"))
    return _of_nodes(nodes, _text(one.get("current_node")), _title(one), _seconds(one.get("create_time")), model)


def _of_open_webui(one: Mapping[str, object], inner: Mapping[str, object]) -> Chat:
    history = _object(inner.get("history"))
    nodes = {}
    for key, each in _objects(history.get("messages")):
        text = _content(each.get("content"))
        role = ROLES.get(each.get("role")) if text else None
        if role == "assistant":
            text = _with_thoughts(text)
        model = _text(each.get("model"))
        nodes[key] = OtherMessage(_text(each.get("parentId")), role, text, _seconds(each.get("timestamp")), model)
    created_s = _seconds(one.get("created_at")) or _seconds(inner.get("timestamp"))
    system = _text(_object(inner.get("params")).get("system")) or _text(inner.get("system"))
    title = _title(one) or _title(inner)
    models = inner.get("models")
    model = _text(models[0]) if isinstance(models, list) and models else None
    return _of_nodes(nodes, _text(history.get("currentId")), title, created_s, model, system)


def _with_thoughts(text: str) -> str:
    """Open WebUI's answer with thoughts, which it writes as quotes in HTML, as models write them."""
    thoughts, rest, end = list[str](), list[str](), 0
    while (begin := text.find(REASONING, end)) >= 0 and (close := text.find(REASONING_END, begin)) >= 0:
        rest.append(text[end:begin])
        thought = text[text.find(">", begin) + 1 : close]
        thought = thought.partition("</summary>")[2] or thought
        thoughts += (html.unescape(line).removeprefix(">").strip() for line in thought.strip().splitlines())
        end = close + len(REASONING_END)
    if not end:
        return text
    answer = "".join((*rest, text[end:])).strip()
    return "\n".join(("<think>", *thoughts, "</think>", "", answer))


def _of_claude(one: Mapping[str, object]) -> Chat:
    nodes, last = {}, None
    for place, each in enumerate(_list(one.get("chat_messages"))):
        found = _object(each)
        text = _content(found.get("content")) or _text(found.get("text")) or ""
        role = ROLES.get(found.get("sender")) if text else None
        nodes[str(place)] = OtherMessage(last, role, text, _seconds(found.get("created_at")))
        last = str(place)
    return _of_nodes(nodes, last, _title(one), _seconds(one.get("created_at")), _text(one.get("model")))


def _of_lm_studio(one: Mapping[str, object]) -> Chat:
    """Versions of a message are its siblings; what follows belongs to the selected one."""
    nodes: dict[str, OtherMessage] = {}
    last: str | None = None
    for place, each in enumerate(_list(one.get("messages"))):
        versions = _list(_object(each).get("versions"))
        selected = _object(each).get("currentlySelected")
        chosen = selected if isinstance(selected, int) and 0 <= selected < len(versions) else 0
        for number, version in enumerate(map(_object, versions)):
            steps = [_object(step) for step in _list(version.get("steps"))]
            blocks = [_content(step.get("content")) for step in steps if step.get("type") == "contentBlock"]
            text = "\n\n".join(filter(None, blocks)) or _content(version.get("content"))
            nodes[f"{place}.{number}"] = OtherMessage(last, ROLES.get(version.get("role")) if text else None, text)
        last = f"{place}.{chosen}" if versions else last
    model = _text(_object(one.get("lastUsedModel")).get("identifier"))
    system = _text(one.get("systemPrompt")) or None
    return _of_nodes(nodes, last, _title(one), _seconds(one.get("createdAt")), model, system)


def chats_of_oterm(path: Path) -> tuple[Chat, ...]:
    """The chats in oterm's store.db, which is not changed. Raises ValueError."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables >= OTERM_TABLES:
                raise ValueError("it is an SQLite database, but not oterm's: tables chat and message are missing")
            columns = {row[1] for row in connection.execute("PRAGMA table_info(message)")}
            listed = connection.execute("SELECT id, name, model, system FROM chat ORDER BY id").fetchall()
            if not {"chat_id", "author", "text"} <= columns:
                raise ValueError("its table message has other columns than oterm's")
            query = "SELECT author, text FROM message WHERE chat_id = ? ORDER BY rowid"
            chats = [_of_rows(row, connection.execute(query, (row[0],)).fetchall()) for row in listed]
    except sqlite3.Error as error:
        raise ValueError(f"it is not a readable SQLite database ({error})") from None
    kept = tuple(chat for chat in chats if chat[1])
    if not kept:
        raise ValueError("there are no messages in it")
    return kept


def _of_rows(chat: Sequence[object], rows: Sequence[Sequence[object]]) -> Chat:
    nodes, last = {}, None
    for place, (author, text) in enumerate(rows):
        said = _text(text) or ""
        nodes[str(place)] = OtherMessage(last, ROLES.get(author) if said else None, said)
        last = str(place)
    return _of_nodes(nodes, last, _text(chat[1]) or "", 0.0, _text(chat[2]), _text(chat[3]))


def aichat_session(text: str) -> object:
    """The YAML of an aichat session. Raises ValueError."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ValueError("YAML, as aichat writes it, needs the package pyyaml: pip install pyyaml") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not valid YAML ({str(error).splitlines()[0]})") from None


def _of_nodes(
    nodes: Mapping[str, OtherMessage],
    leaf: str | None,
    title: str,
    created_s: float,
    model: str | None = None,
    system: str | None = None,
) -> Chat:
    """A chat of messages that know their parents; answers right after answers become one."""
    messages: dict[str, KeptMessage] = {}
    numbers = {key: place for place, key in enumerate(nodes, 1)}
    joined: set[int] = set()
    for key in _parents_first(nodes):
        node = nodes[key]
        if node.role is None:
            continue
        parent = _kept_above(nodes, node.parent, messages)
        text, above = node.text, None if parent is None else parent.number
        if parent is not None and parent.role == node.role:
            joined.add(parent.number)
            text, above = f"{parent.text}\n\n{text}", parent.parent
        said_by = node.model if node.role == "assistant" else None
        messages[key] = KeptMessage(numbers[key], 0, above, node.role, text, "whole", node.created_s, model=said_by)
    shown = _kept_above(nodes, leaf, messages) or (list(messages.values())[-1] if messages else None)
    joined -= {message.parent for message in messages.values() if message.parent is not None}
    kept = tuple(message for message in messages.values() if message.number not in joined)
    session = KeptSession(
        0, title, system or None, model, None if shown is None else shown.number, created_s, created_s
    )
    if shown is not None and shown.number in joined:  # the text that continues it has it, too
        following = next(each for each in reversed(kept) if each.text.startswith(shown.text))
        session = KeptSession(0, title, system or None, model, following.number, created_s, created_s)
    return session, kept


def _parents_first(nodes: Mapping[str, OtherMessage]) -> Iterator[str]:
    """Keys of nodes, each after its parent. Raises ValueError for a circle."""
    done: set[str] = set()
    for key in nodes:
        chain: list[str] = []
        at: str | None = key
        while at is not None and at in nodes and at not in done:
            if len(chain) > len(nodes):
                raise ValueError("its messages follow each other in a circle")
            chain.append(at)
            at = nodes[at].parent
        for each in reversed(chain):
            done.add(each)
            yield each


def _kept_above(
    nodes: Mapping[str, OtherMessage], key: str | None, kept: Mapping[str, KeptMessage]
) -> KeptMessage | None:
    """The message at a key, or the nearest one above it."""
    while key is not None and key in nodes:
        if key in kept:
            return kept[key]
        key = nodes[key].parent
    return None


def _objects(found: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    for key, each in found.items() if isinstance(found, dict) else ():
        if isinstance(each, dict):
            yield str(key), each


def _object(found: object) -> Mapping[str, object]:
    return found if isinstance(found, dict) else {}


def _list(found: object) -> Sequence[object]:
    return found if isinstance(found, list) else ()


def _text(found: object) -> str | None:
    return found if isinstance(found, str) else None


def _texts(found: object) -> str:
    """The strings of a list, as one text."""
    return "\n\n".join(part for part in _list(found) if isinstance(part, str) and part.strip())


def _content(found: object) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(found, str):
        return found
    parts = [part for part in map(_object, _list(found)) if part.get("type") == "text"]
    return _texts([part.get("text") for part in parts])


def _title(one: Mapping[str, object]) -> str:
    return _text(one.get("title")) or _text(one.get("name")) or ""


def _seconds(found: object) -> float:
    """A time as seconds since the epoch: a number, in seconds or milliseconds, or ISO 8601; 0.0 for anything else."""
    if isinstance(found, int | float) and not isinstance(found, bool) and found > 0:
        return found / 1000 if found >= MILLISECONDS_FROM else float(found)
    if isinstance(found, str):
        with suppress(ValueError, OverflowError):
            return max(0.0, datetime.fromisoformat(found).timestamp())
    return 0.0


def parsed_json(text: str) -> object:
    """The JSON of a text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({error})") from None
