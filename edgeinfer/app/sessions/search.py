"""Searching kept chats: from what a person types to a query of SQLite's full-text index.

In: words. Out: a match expression that is never a syntax error, and the statement that finds messages with it. Matches
in titles count most, then those in questions.
"""

from __future__ import annotations

import re

from edgeinfer.app.sessions.records import MARK_BEGIN, MARK_END

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
    """The match expression of a query: all of its words, the last one as a beginning; None without any word."""
    words = _WORD.findall(query)
    if not words:
        return None
    quoted = [f'"{word}"' for word in words]
    return " ".join(quoted) + ("*" if query[-1:].strip() else "")
