"""Jobs for the engine thread, one frozen record each. Setting `stopped` cancels a job.

In and out: plain values. Knows neither the engine nor the screen.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.models.text import Message


@dataclass(frozen=True, slots=True, eq=False)
class OpenModelJob:
    """Open the model of these settings, in place of the current one."""

    settings: Settings
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class AnswerJob:
    """Answer a conversation, or continue it if it ends with an answer. `number` identifies the job in its messages.

    `before`: the existing text of an answer that is continued.
    """

    number: int
    chat: int
    messages: tuple[Message, ...]
    options: Options
    before: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class Summarise:
    """Summarise the oldest of these messages, so that about half of the context becomes free."""

    number: int
    chat: int
    messages: tuple[Message, ...]
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class EnterChat:
    """Switch chats: save the KV cache of the current chat and restore that of the new one."""

    chat: int | None
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class CloseJob:
    """Close everything and end the thread."""

    stopped: threading.Event = field(default_factory=threading.Event)


Job = OpenModelJob | AnswerJob | Summarise | EnterChat | CloseJob
