"""Exports a saved chat to a file: the displayed branch as readable Markdown, or all branches as JSON.

In: a store, the number of a chat, a path. Out: a new file, written completely or not at all. What Markdown cannot
express goes into HTML comments, which viewers hide; `importing` reads both formats back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from edgeinfer.app.answer_output import harmless
from edgeinfer.app.saved_text import free_name, save_text
from edgeinfer.app.sessions.conversation import fenced
from edgeinfer.app.sessions.imported_json import FORMAT, KEY
from edgeinfer.app.sessions.imported_markdown import END, MARK
from edgeinfer.app.sessions.records import KeptMessage, KeptSession
from edgeinfer.app.sessions.rows import figures_text
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.sessions.tree import MessageTree
from edgeinfer.errors import EdgeInferError, SessionsFailed
from edgeinfer.text_values import user_path

HEADINGS = {"system": "System", "user": "User", "assistant": "Assistant", "summary": "Summary"}
STEM_CHARACTERS = 60
MARKDOWN = (".md", ".markdown", ".txt")
JSON = ".json"
"""Suffixes that a chat can be exported to; a path without a suffix means Markdown."""


def export_chat(store: SessionStore, number: int, path: Path) -> Path:
    """Export a chat to a new file, as Markdown or JSON by its suffix. For a folder, the file is named after the title.

    Returns the path written. Raises SessionsFailed, also if the suffix is of another format.
    """
    session, messages = store.session(number), store.messages(number)
    path = user_path(path)
    if path.is_dir():
        path = export_path(session.title, path)
    if path.suffix.lower() not in (*MARKDOWN, JSON, ""):
        raise SessionsFailed(
            f"a chat cannot be written as {path.suffix}; what works: {MARKDOWN[0]} (Markdown) and {JSON}"
        )
    is_json = path.suffix.lower() == JSON
    text = json_text(session, messages) if is_json else markdown_text(session, shown_branch(session, messages))
    try:
        return save_text(path, text)
    except EdgeInferError as error:
        raise SessionsFailed(str(error)) from None


def export_path(title: str, folder: Path) -> Path:
    """An unused path in a folder, named after a chat's title."""
    stem = re.sub(r'[\\/:*?"<>|\s]+', " ", harmless(title)).strip(" .")[:STEM_CHARACTERS].strip(" .")
    return free_name(folder, stem or "chat", ".md")


def shown_branch(session: KeptSession, messages: Sequence[KeptMessage]) -> tuple[KeptMessage, ...]:
    """The branch that was displayed last, or the newest one if that is unknown."""
    tree = MessageTree(messages)
    leaf = session.leaf if tree.has(session.leaf) else tree.newest()
    return () if leaf is None else tree.path(leaf)


def json_text(session: KeptSession, messages: Sequence[KeptMessage]) -> str:
    """The whole chat as JSON."""
    found = {
        KEY: FORMAT,
        "title": session.title,
        "system": session.system,
        "model": session.model,
        "leaf": session.leaf,
        "created_s": session.created_s,
        "messages": [_plain(message) for message in messages],
    }
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _plain(message: KeptMessage) -> dict[str, object]:
    figures = figures_text(message.figures)
    return {
        "number": message.number,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "state": _ended(message),
        "created_s": message.created_s,
        "model": message.model,
        "figures": None if figures is None else json.loads(figures),
        "attachments": [{"name": one.name, "text": one.text} for one in message.attachments],
    }


def markdown_text(session: KeptSession, branch: Sequence[KeptMessage]) -> str:
    """A branch as readable Markdown. Each part starts with a comment that says what it is."""
    said = [session.title, session.system or "", *(message.text for message in branch)]
    mark = _free_mark([*said, *(one.text for message in branch for one in message.attachments)])
    title = harmless(session.title).replace("\n", " ").strip()
    head = {KEY: FORMAT, "mark": mark, "title": session.title, "model": session.model, "created_s": session.created_s}
    parts = [f"<!-- {_safe(head)} -->\n# {title or 'Chat'}"]
    if session.system is not None:
        parts.append(_part(mark, {"role": "system"}, HEADINGS["system"], session.system))
    for message in branch:
        about: dict[str, object] = {"role": message.role, "created_s": message.created_s}
        if message.model is not None:
            about["model"] = message.model
        if _ended(message) != "whole":
            about["state"] = _ended(message)
        parts.append(_part(mark, about, HEADINGS[message.role], message.text))
        for one in message.attachments:
            name = harmless(one.name).replace("\n", " ")
            parts.append(_part(mark, {"file": one.name, "n": len(one.text)}, f"File: {name}", fenced(one.text), 3))
    return "\n\n".join([*parts, f"<!-- {mark} {END} -->\n"])


def _part(mark: str, about: dict[str, object], heading: str, text: str, level: int = 2) -> str:
    return f"<!-- {mark} {_safe(about)} -->\n{'#' * level} {heading}\n\n{text}"


def _ended(message: KeptMessage) -> str:
    """The state to export: an answer still being written counts as stopped."""
    return "stopped" if message.state == "writing" else message.state


def _safe(found: dict[str, object]) -> str:
    """JSON that cannot close the HTML comment around it."""
    return json.dumps(found, ensure_ascii=False).replace("--", "-\\u002d").replace(">", "\\u003e")


def _free_mark(texts: Sequence[str]) -> str:
    """A marker for our comments that does not occur in any of the texts' own comments."""
    mark, number = MARK, 1
    while any(f"<!-- {mark} " in text for text in texts):
        number += 1
        mark = f"{MARK}-{number}"
    return mark
