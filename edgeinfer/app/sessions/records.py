"""Records of a saved chat: plain values shared by the database and the UI, their tree, and their rows in the database.

In: values, rows. Out: records; of the messages of one session, branches, children and siblings (every answer follows a
question, and both may have siblings); text for columns. An unreadable column counts as empty, so that a damaged value
never costs a chat. Opens no file.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

from edgeinfer.app.sessions.columns import (
    bytes_in,
    number_in,
    number_or_none,
    text_in,
    text_or_none,
    whole_in,
    whole_or_none,
)
from edgeinfer.app.sessions.kept_images import KeptImage, Preview
from edgeinfer.app.sessions.kept_sounds import KeptSound
from edgeinfer.app.sessions.written_beside import WrittenBeside, beside_of

Role = Literal["user", "assistant", "summary"]
"""Author of a message. A summary replaces all messages before it and is the root of its own branch."""

State = Literal["writing", "whole", "stopped", "cut", "failed"]
"""Still being written, ended by itself, stopped by the user, cut off at the end of the context, or failed."""
LOST = "\ufffd"
"""Ends an answer that was stopped in the middle of a multi-byte character."""


KeptMedium = KeptImage | KeptSound


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file, an image or a sound sent with a message: its displayed name and its contents.

    Images and sounds have no text.
    """

    name: str
    text: str
    image: KeptImage | None = None
    sound: KeptSound | None = None

    @classmethod
    def of_medium(cls, name: str, medium: KeptMedium) -> Attachment:
        """An image or a sound."""
        return cls(name, "", medium) if isinstance(medium, KeptImage) else cls(name, "", None, medium)

    @property
    def medium(self) -> KeptMedium | None:
        """Its image or its sound; None of a text."""
        return self.image or self.sound

    @property
    def n_bytes(self) -> int:
        """Size in bytes, of a text as UTF-8."""
        medium = self.medium
        return len(self.text.encode("utf-8", "replace")) if medium is None else len(medium.data)

    @property
    def contents(self) -> str | KeptMedium:
        """Its text, its image or its sound."""
        return self.medium or self.text


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A tool that an answer called: its arguments as the text of a JSON object, and the result that the model read."""

    name: str
    arguments: str
    result: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ToolRound:
    """What an answer said before it called tools, what the model thought, and the calls; the answer went on after."""

    text: str
    calls: tuple[MadeCall, ...] = ()
    thoughts: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of an answer, as in `engine.scheduler.stats.Stats`; None for what was not measured."""

    n_prompt: int
    n_cached: int
    n_generated: int
    finish_reason: str
    truncated: bool = False
    ttft_s: float | None = None
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    accepted_per_step: float | None = None
    joules_per_token: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """A message in the tree of a session. `parent` is the number of the message before it, None for a root.

    `rounds`: the calls of tools that an answer made before its text; `beside`: how it was written beside others.
    """

    number: int
    session: int
    parent: int | None
    role: Role
    text: str
    state: State
    created_s: float
    model: str | None = None
    figures: Figures | None = None
    attachments: tuple[Attachment, ...] = ()
    rounds: tuple[ToolRound, ...] = ()
    beside: WrittenBeside | None = None

    @property
    def has_calls(self) -> bool:
        """Whether it called tools."""
        return any(each.calls for each in self.rounds)


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session without its messages. `leaf`: the last message of the displayed branch, None while it is empty.

    `deleted_s`: when it was deleted, or None. `title` is "" until one is set.
    """

    number: int
    title: str
    system: str | None
    model: str | None
    leaf: int | None
    created_s: float
    changed_s: float
    n_messages: int = 0
    deleted_s: float | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result. `snippet`: the surrounding words, with matches between MARK_BEGIN and MARK_END."""

    session: int
    title: str
    message: int
    role: Role
    snippet: str
    changed_s: float


MARK_BEGIN = "\x02"
MARK_END = "\x03"


class MessageTree:
    """Indexes messages by parent. A message whose parent is missing counts as a root."""

    def __init__(self, messages: Iterable[KeptMessage]) -> None:
        self.messages: tuple[KeptMessage, ...] = tuple(sorted(messages, key=lambda message: message.number))
        self._by_number = {message.number: message for message in self.messages}
        self._children: dict[int | None, list[KeptMessage]] = {}
        for message in self.messages:
            self._children.setdefault(self._parent(message), []).append(message)

    @property
    def roots(self) -> tuple[KeptMessage, ...]:
        """The root messages, in order of creation."""
        return self.children(None)

    def message(self, number: int) -> KeptMessage:
        """Return a message by number. Raises KeyError if there is none."""
        return self._by_number[number]

    def has(self, number: int | None) -> bool:
        """Whether there is a message of this number."""
        return number in self._by_number

    def children(self, number: int | None) -> tuple[KeptMessage, ...]:
        """The children of a message, or the roots for None, in order of creation."""
        return tuple(self._children.get(number, ()))

    def path(self, leaf: int) -> tuple[KeptMessage, ...]:
        """The branch from the root to this message."""
        found = [self._by_number[leaf]]
        while (parent := self._parent(found[-1])) is not None and len(found) <= len(self.messages):
            found.append(self._by_number[parent])
        return tuple(reversed(found))

    def siblings(self, number: int) -> tuple[int, tuple[KeptMessage, ...]]:
        """The index of a message among its siblings, from 0, and all siblings including itself."""
        message = self._by_number[number]
        found = self.children(self._parent(message))
        return found.index(message), found

    def newest_leaf(self, number: int) -> int:
        """The newest leaf among the branches that contain a message."""
        newest, left = number, [number]
        while left:
            children = self._children.get(left.pop(), ())
            if not children:
                continue
            left.extend(child.number for child in children)
            newest = max(newest, *(child.number for child in children))
        return newest

    def newest(self) -> int | None:
        """The number of the newest message, or None."""
        return self.messages[-1].number if self.messages else None

    def _parent(self, message: KeptMessage) -> int | None:
        parent = message.parent
        return parent if parent in self._by_number and parent != message.number else None


KINDS = {name: get_args(kind) or (kind,) for name, kind in get_type_hints(Figures).items()}
LARGEST = 1e18


def session_of(row: sqlite3.Row) -> KeptSession:
    """Build a session from a row of `sessions` with `n_messages`."""
    return KeptSession(
        number=row["number"],
        title=text_in(row["title"]),
        system=text_or_none(row["system"]),
        model=text_or_none(row["model"]),
        leaf=whole_or_none(row["leaf"]),
        created_s=number_in(row["created_s"]),
        changed_s=number_in(row["changed_s"]),
        n_messages=row["n_messages"],
        deleted_s=number_or_none(row["deleted_s"]),
    )


KeptMedia = Mapping[str, KeptMedium]
"""Images and sounds by their digests."""
NO_MEDIA: KeptMedia = MappingProxyType({})


def message_of(row: sqlite3.Row, media: KeptMedia = NO_MEDIA) -> KeptMessage:
    """Build a message from a row of `messages`. `media`: images and sounds that it may have."""
    return KeptMessage(
        number=row["number"],
        session=whole_in(row["session"]),
        parent=whole_or_none(row["parent"]),
        role=row["role"] if row["role"] in get_args(Role) else "assistant",
        text=text_in(row["text"]),
        state=row["state"] if row["state"] in get_args(State) else "stopped",
        created_s=number_in(row["created_s"]),
        model=text_or_none(row["model"]),
        figures=figures_of(text_in(row["figures"])),
        attachments=attachments_of(text_in(row["attachments"]), media),
        rounds=rounds_of(text_in(row["rounds"])),
        beside=beside_of(text_in(row["beside"])),
    )


def figures_text(figures: Figures | None) -> str | None:
    """Figures as column text."""
    return None if figures is None else json.dumps(dataclasses.asdict(figures))


def figures_of(text: str | None) -> Figures | None:
    """Parse figures from a column, ignoring fields of later versions. Returns None if any value has the wrong type."""
    if not text:
        return None
    try:
        found = json.loads(text, parse_constant=float)
        known = {field.name for field in dataclasses.fields(Figures)}
        figures = Figures(**{name: value for name, value in found.items() if name in known}) if found else None
    except (ValueError, TypeError, AttributeError, RecursionError):
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
    """Attachments as column text: names with texts, and with the digests of images and sounds."""
    plain = [[one.name, one.text, *([one.medium.digest] if one.medium else [])] for one in attachments]
    return json.dumps(plain) if plain else None


def attachments_of(text: str | None, media: KeptMedia = NO_MEDIA) -> tuple[Attachment, ...]:
    """Parse attachments from a column; an image or a sound that is not among `media` is left out."""
    if not text:
        return ()
    try:
        found = [(str(name), str(body), [media.get(key) for key in keys]) for name, body, *keys in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        return ()
    return tuple(
        Attachment.of_medium(name, kept[0]) if kept and kept[0] is not None else Attachment(name, body)
        for name, body, kept in found
        if None not in kept
    )


def media_in(attachments: Iterable[Attachment]) -> dict[str, KeptMedium]:
    """The images and sounds among attachments, by their digests."""
    return {one.medium.digest: one.medium for one in attachments if one.medium is not None}


def sound_of(row: sqlite3.Row) -> KeptSound:
    """Build a sound from a row of `sounds`."""
    return KeptSound(text_in(row["digest"]), bytes_in(row["data"]), number_in(row["seconds"]))


def image_of(row: sqlite3.Row) -> KeptImage:
    """Build an image from a row of `images`."""
    preview = Preview(whole_in(row["preview_width"]), bytes_in(row["preview"]))
    size = whole_in(row["width"]), whole_in(row["height"])
    return KeptImage(text_in(row["digest"]), bytes_in(row["data"]), size, preview)


def rounds_text(rounds: Sequence[ToolRound]) -> str | None:
    """Calls of tools as column text."""
    return json.dumps(rounds_plain(rounds)) if rounds else None


def rounds_plain(rounds: Sequence[ToolRound]) -> list[dict[str, object]]:
    """Calls of tools as plain values, for columns and exported files."""
    return [dataclasses.asdict(each) for each in rounds]


def rounds_of(text: str | None) -> tuple[ToolRound, ...]:
    """Parse calls of tools from a column."""
    try:
        return tuple(map(_round_of, json.loads(text or "[]")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def _round_of(found: Mapping[str, Any]) -> ToolRound:
    calls = [
        MadeCall(str(one["name"]), str(one["arguments"]), str(one["result"]), bool(one["failed"]))
        for one in found["calls"]
    ]
    return ToolRound(str(found["text"]), tuple(calls), str(found["thoughts"]))


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


def hit_of(row: sqlite3.Row) -> Hit:
    """Build a search result from a row of `HITS`."""
    session, title, message, role, snippet, changed_s = row
    known: Role = role if role in get_args(Role) else "assistant"
    return Hit(session, text_in(title), message, known, text_in(snippet), number_in(changed_s))


def match_of(query: str) -> str | None:
    """The FTS match expression of a query: all words, the last one as a prefix. Returns None if there are no words."""
    words = _WORD.findall(query)
    if not words:
        return None
    quoted = [f'"{word}"' for word in words]
    return " ".join(quoted) + ("*" if query[-1:].strip() else "")
