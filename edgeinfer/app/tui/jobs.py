"""What the engine's thread is asked to do, one frozen order each; `stopped` is set when it is not wanted any more.

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
    """Open the model of these settings, in place of the one that is open."""

    settings: Settings
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class AnswerJob:
    """Answer a conversation, or write on where it ends with an answer. `number`: of the order, told with what comes.

    `before`: the text that is there already.
    """

    number: int
    chat: int
    messages: tuple[Message, ...]
    options: Options
    before: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class Summarise:
    """Sum up the oldest of these messages, so that about half the context is free afterwards."""

    number: int
    chat: int
    messages: tuple[Message, ...]
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class EnterChat:
    """Another chat is shown: put aside what was read of the one before, and bring back what was read of this one."""

    chat: int | None
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class CloseJob:
    """Close everything and end the thread."""

    stopped: threading.Event = field(default_factory=threading.Event)


Job = OpenModelJob | AnswerJob | Summarise | EnterChat | CloseJob
