"""What a kept chat consists of: plain values, as the database has them and as screens show them.

In and out: frozen records. Knows neither the database nor the terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant", "summary"]
"""Who said it. A summary stands for everything before it: it begins a branch of its own."""

State = Literal["writing", "whole", "stopped", "cut", "failed"]
"""A running request, one that ended by itself, was stopped, reached the context's end, or broke off."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that was sent with a message: its name as shown, and what was in it."""

    name: str
    text: str

    @property
    def n_bytes(self) -> int:
        """Its size in UTF-8."""
        return len(self.text.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of an answer, as `engine.scheduler.stats.Stats` has them; None where nothing was measured."""

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
    """A message in the tree of a session; `parent` is the number of the one before it, None for a first one."""

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
    """A session without its messages. `leaf`: the last message of the branch that was shown, None while empty.

    `deleted_s`: when it was deleted, None while it is not. `title` is "" until it has one.
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
    """A message that a search found. `snippet`: the words around, matches between MARK_BEGIN and MARK_END."""

    session: int
    title: str
    message: int
    role: Role
    snippet: str
    changed_s: float


MARK_BEGIN = "\x02"
MARK_END = "\x03"
