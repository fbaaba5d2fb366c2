"""Records of a saved chat: plain values shared by the database and the UI.

In and out: frozen records. Knows neither the database nor the terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant", "summary"]
"""Author of a message. A summary replaces all messages before it and is the root of its own branch."""

State = Literal["writing", "whole", "stopped", "cut", "failed"]
"""Still being written, ended by itself, stopped by the user, cut off at the end of the context, or failed."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file sent with a message: its displayed name and its contents."""

    name: str
    text: str

    @property
    def n_bytes(self) -> int:
        """Size in bytes as UTF-8."""
        return len(self.text.encode("utf-8", "replace"))


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
    """A message in the tree of a session. `parent` is the number of the message before it, None for a root."""

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
