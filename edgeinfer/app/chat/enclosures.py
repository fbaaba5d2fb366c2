"""The enclosures of a draft message: files it mentions, files, images and sounds that were added, long pasted texts.

In: what was read, and the files that the draft mentions. Out: the attachments in order, and which mentioned files are
still to be read. An enclosure that the user removed is not attached again by its mention. Reads no files and counts no
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgeinfer.app.chat.attachments import Attached
from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.records import Attachment, KeptMedium
from edgeinfer.text_values import size_text

Countable = str | KeptMedium
"""What takes tokens of a prompt."""
PASTED = "pasted text"
Origin = Literal["mention", "added", "pasted"]


@dataclass(frozen=True, slots=True)
class MessageDraft:
    """A text and its attachments."""

    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class FittedDraft:
    """A draft as it is sent, why it cannot be sent, or None, and what to say about it."""

    draft: MessageDraft
    reason: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enclosure:
    """One enclosure: a file, the files of a folder, or a pasted text."""

    label: str
    attachments: tuple[Attachment, ...]
    origin: Origin
    n_bytes: int
    path: Path | None = None
    folder: str = ""
    """Name of the folder whose files these are, "" for anything else."""

    @property
    def size_text(self) -> str:
        """Its size for people: of an image in pixels, of a sound in seconds, of anything else in bytes."""
        only = self.attachments[0] if len(self.attachments) == 1 else None
        if only is not None and only.image is not None:
            return only.image.pixels_text
        return size_text(self.n_bytes) if only is None or only.sound is None else only.sound.length_text


@dataclass(slots=True)
class Enclosures:
    """The enclosures of a draft, in the order they were added."""

    items: list[Enclosure] = field(default_factory=list)
    refused: set[Path] = field(default_factory=set)  # mentioned, but removed by the user
    failed: dict[Path, str] = field(default_factory=dict)  # mentioned, with the reason why it could not be read

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """All attachments to send."""
        return tuple(attachment for item in self.items for attachment in item.attachments)

    def keep_mentioned(self, mentioned: Iterable[Path]) -> list[Path]:
        """Drop files that the draft no longer mentions; return the mentioned ones that are still to be read."""
        wanted = list(mentioned)
        self.items = [item for item in self.items if item.origin != "mention" or item.path in wanted]
        self.failed = {path: reason for path, reason in self.failed.items() if path in wanted}
        held = {item.path for item in self.items}
        return [path for path in wanted if path not in held and path not in self.refused]

    def add(self, path: Path, attached: Attached, origin: Origin) -> None:
        """Add what was read at a path, replacing an earlier reading of the same path."""
        self.items = [item for item in self.items if item.path != path]
        label = attached.attachments[0].name
        if attached.folder is not None:
            label = f"{attached.folder}/ ({counted(len(attached.attachments), 'file')})"
        folder = attached.folder or ""
        self.items.append(Enclosure(label, attached.attachments, origin, attached.n_bytes, path, folder))

    def add_pasted(self, text: str, name: str = PASTED) -> Enclosure:
        """Add a text that is no file, under a name with a number of its own."""
        number = 1 + sum(item.label.startswith(f"{name} ") for item in self.items)
        while any(item.label.startswith(f"{name} {number} ") for item in self.items):
            number += 1
        label = f"{name} {number} ({counted(text.removesuffix(chr(10)).count(chr(10)) + 1, 'line')})"
        attachment = Attachment(f"{name} {number}", text)
        item = Enclosure(label, (attachment,), "pasted", attachment.n_bytes)
        self.items.append(item)
        return item

    def add_kept(self, attachments: Iterable[Attachment]) -> None:
        """Add the attachments of an earlier message."""
        self.items += [Enclosure(each.name, (each,), "added", each.n_bytes) for each in attachments]

    def remove(self, item: Enclosure) -> None:
        """Remove an enclosure permanently: its file is not attached again because the draft mentions it."""
        self.items = [each for each in self.items if each is not item]
        if item.path is not None:
            self.refused.add(item.path)


@dataclass(slots=True)
class TokenCounts:
    """Token counts of texts, images and sounds, as far as they are known."""

    known: dict[Countable, int | None] = field(default_factory=dict)  # None: could not be counted

    def of(self, texts: Iterable[Countable]) -> int | None:
        """Total tokens of texts, images and sounds, None while one is unknown."""
        counts = [0 if not text else self.known.get(text) for text in texts]
        return None if None in counts else sum(count for count in counts if count is not None)

    def missing(self, texts: Iterable[Countable]) -> Countable | None:
        """The first of them that is still to be counted. Forgets those that are no longer requested."""
        wanted = [text for text in texts if text]
        self.known = {text: self.known[text] for text in wanted if text in self.known}
        return next((text for text in wanted if text not in self.known), None)


def chip_text(item: Enclosure, counts: Mapping[Countable, int | None] | None) -> str:
    """Label of an enclosure: name, size, and tokens (… while unknown; left out if `counts` is None)."""
    size = item.size_text
    if counts is None:
        return f"{item.label} {size}"
    known = [counts.get(attachment.contents) if attachment.contents else 0 for attachment in item.attachments]
    n_tokens = None if None in known else sum(count for count in known if count is not None)
    return f"{item.label} {size}, {tokens_text(n_tokens)}"


def tokens_text(n_tokens: int | None) -> str:
    """A number of tokens, … while unknown."""
    return f"{'…' if n_tokens is None else f'{n_tokens:,}'} tok"
