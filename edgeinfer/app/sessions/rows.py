"""Converts between database rows and records.

In: rows, records. Out: records, and text for columns. An unreadable column counts as empty, so that a damaged value
never costs a chat.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sqlite3
from collections.abc import Sequence
from typing import get_args, get_type_hints

from edgeinfer.app.sessions.records import MARK_BEGIN, MARK_END, Attachment, Figures, KeptMessage, KeptSession

KINDS = {name: get_args(kind) or (kind,) for name, kind in get_type_hints(Figures).items()}
LARGEST = 1e18


def session_of(row: sqlite3.Row) -> KeptSession:
    """Build a session from a row of `sessions` with `n_messages`."""
    return KeptSession(
        number=row["number"],
        title=row["title"],
        system=row["system"],
        model=row["model"],
        leaf=row["leaf"],
        created_s=row["created_s"],
        changed_s=row["changed_s"],
        n_messages=row["n_messages"],
        deleted_s=row["deleted_s"],
    )


def message_of(row: sqlite3.Row) -> KeptMessage:
    """Build a message from a row of `messages`."""
    return KeptMessage(
        number=row["number"],
        session=row["session"],
        parent=row["parent"],
        role=row["role"],
        text=row["text"],
        state=row["state"],
        created_s=row["created_s"],
        model=row["model"],
        figures=figures_of(row["figures"]),
        attachments=attachments_of(row["attachments"]),
    )


def figures_text(figures: Figures | None) -> str | None:
    """Figures as column text."""
    return None if figures is None else json.dumps(dataclasses.asdict(figures))


def figures_of(text: str | None) -> Figures | None:
    """Parse figures from a column, ignoring fields of later versions. Returns None if any value has the wrong type."""
    try:
        found = json.loads(text or "null", parse_constant=float)
        known = {field.name for field in dataclasses.fields(Figures)}
        figures = Figures(**{name: value for name, value in found.items() if name in known}) if found else None
    except (ValueError, TypeError, AttributeError):
        return None
    return figures if figures is None or _is_sound(figures) else None


def _is_sound(figures: Figures) -> bool:
    """Whether all values have their field's type and a displayable magnitude."""
    for name, kinds in KINDS.items():
        value = getattr(figures, name)
        is_whole = type(value) is int and float in kinds
        if type(value) not in kinds and not is_whole:
            return False
        if isinstance(value, int | float) and not abs(value) < LARGEST:
            return False
    return True


def attachments_text(attachments: Sequence[Attachment]) -> str | None:
    """Attachments as column text."""
    return json.dumps([[one.name, one.text] for one in attachments]) if attachments else None


def attachments_of(text: str | None) -> tuple[Attachment, ...]:
    """Parse attachments from a column."""
    try:
        return tuple(Attachment(str(name), str(body)) for name, body in json.loads(text or "[]"))
    except (ValueError, TypeError):
        return ()


TITLE_WEIGHT, QUESTION_WEIGHT, ANSWER_WEIGHT = 8.0, 4.0, 1.0
SNIPPET_WORDS = 16

_WORD = re.compile(r"\w+")

HITS = f"""
SELECT s.number, s.title, coalesce(m.number, -1), coalesce(m.role, 'user'),
       snippet(texts, -1, '{MARK_BEGIN}', '{MARK_END}', '…', {SNIPPET_WORDS}), s.changed_s
FROM texts JOIN sessions AS s ON s.number = texts.session LEFT JOIN messages AS m ON m.number = texts.message
WHERE texts MATCH :match AND s.deleted_s IS NULL
ORDER BY bm25(texts, {TITLE_WEIGHT}, {QUESTION_WEIGHT}, {ANSWER_WEIGHT}), s.changed_s DESC LIMIT :limit
"""


def match_of(query: str) -> str | None:
    """The FTS match expression of a query: all words, the last one as a prefix. Returns None if there are no words."""
    words = _WORD.findall(query)
    if not words:
        return None
    quoted = [f'"{word}"' for word in words]
    return " ".join(quoted) + ("*" if query[-1:].strip() else "")
