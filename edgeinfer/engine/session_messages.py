"""The conversation of a session: what it was asked last, and the answer to that.

In: messages, and the stream of their answer. Out: the messages so far, and a text of them that a file can keep. Knows
no cache and no files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeinfer.engine.requests.conversation import split_partial
from edgeinfer.engine.requests.media_prompts import KINDS
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Message
from edgeinfer.models.text.message import plain


@dataclass(frozen=True, slots=True)
class SessionMessages:
    """What was asked, and the answer; None: nothing was asked since."""

    asked: Sequence[Message] = ()
    answer: TextStream | None = None

    @property
    def so_far(self) -> tuple[Message, ...]:
        """The conversation with the answer, as far as that was generated."""
        if self.answer is None or not self.answer.text:
            return tuple(self.asked)
        before, begun = split_partial(self.asked)
        return (*before, _message_of(self.answer, begun or ""))

    @property
    def saved(self) -> str | None:
        """The conversation as JSON; None if it has images or sounds, or parts that JSON cannot represent."""
        conversation = self.so_far
        if any(part.get("type") in KINDS for message in conversation for part in _parts(message)):
            return None
        try:
            told = [plain(message.as_mapping(), "a message") for message in conversation]
        except BadSetting:
            return None
        return json.dumps(told)

    @classmethod
    def restored(cls, text: str) -> SessionMessages:
        """What `saved` returned. Raises ValueError, BadSetting."""
        return cls([Message.of(each) for each in json.loads(text)])


def _parts(message: Message) -> Sequence[Mapping[str, object]]:
    """The parts of a message that is no text alone."""
    return () if message.content is None or isinstance(message.content, str) else message.content


def _message_of(answer: TextStream, begun: str) -> Message:
    """An answer as a message; `begun`: the beginning of it that stood in the prompt."""
    extra: dict[str, object] = {}
    if answer.reasoning:
        extra["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        extra["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for number, call in enumerate(answer.tool_calls)
        ]
    return Message("assistant", begun + answer.content, extra)
