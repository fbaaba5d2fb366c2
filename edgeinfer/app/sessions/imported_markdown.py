"""Reads chats from Markdown written by `exporting`: the comments between the texts say what each part is.

In: text. Out: a session and its messages, numbered from 1. Texts round-trip exactly, whatever they contain; manual
edits between two comments are kept. Raises ValueError with what is wrong, and where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from edgeinfer.app.sessions.imported_json import (
    KEY,
    Chat,
    check_format,
    message_from,
    session_from,
    whole_number,
    words_at,
)
from edgeinfer.app.sessions.records import Attachment, KeptMessage

MARK, END = "chat", "end"
"""MARK starts each comment, unless the head names another marker; END is in the last comment."""
_HEAD = re.compile(r"\s*<!-- (\{.*\}) -->\n")
_FENCED = re.compile(r"(`{3,})\n(.*)\n?\1\s*", re.DOTALL)


def chat_of_markdown(text: str) -> Chat:
    """Parse a chat. Raises ValueError if it is not one."""
    if text.partition("\n")[0].endswith("\r"):  # an editor has converted all line endings
        text = text.replace("\r\n", "\n")
    head = _HEAD.match(text)
    about = _about(head[1], "its first line") if head is not None else {}
    if head is None or KEY not in about:
        raise ValueError("this is not an exported edgeinfer chat; /export writes .md or .json that can be read back")
    check_format(about)
    mark = words_at(about, "mark", "the chat")
    parts = re.split(rf"^<!-- {re.escape(mark or MARK)} (.*) -->\n", text[head.end() :], flags=re.MULTILINE)[1:]
    comments, bodies = parts[::2], parts[1::2]
    if not comments or comments[-1] != END:
        raise ValueError("its end is missing; it is cut short, or the last comment was removed")
    system: str | None = None
    messages: list[KeptMessage] = []
    for comment, body in zip(comments[:-1], bodies[:-1], strict=True):
        where = f"message {len(messages) + 1}"
        part, said = _about(comment, where), _said(body)
        if part.get("role") == "system":
            system = said
        elif "file" in part:
            if not messages:
                raise ValueError("a file stands before the first message")
            last = messages[-1]
            messages[-1] = replace(last, attachments=(*last.attachments, _attachment(part, said)))
        else:
            number = len(messages) + 1
            messages.append(message_from(part, number, number - 1 or None, said, where))
    return session_from({**about, "leaf": len(messages) or None}, system), tuple(messages)


def _about(text: str, where: str) -> Mapping[str, object]:
    """Parse the JSON of a comment."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"the comment of {where} is broken")
    return found


def _said(body: str) -> str:
    """The text under a heading, without the blank line after the heading and the one before the next comment."""
    _, _, text = body.partition("\n")
    return text.removeprefix("\n").removesuffix("\n").removesuffix("\n")


def _attachment(part: Mapping[str, object], said: str) -> Attachment:
    name, n = words_at(part, "file", "a file"), part.get("n")
    found = _FENCED.fullmatch(said)
    if name is None or found is None:
        raise ValueError(f"the file {(name or '')[:60]} has no fence")
    whole = said[len(found[1]) + 1 : said.rindex(found[1])]
    # the closing fence needs a newline before it, which the attached file may not have had
    ends_within = whole_number(n) == len(whole) - 1
    return Attachment(name, whole.removesuffix("\n") if ends_within else whole)
