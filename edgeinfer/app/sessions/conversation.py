"""Converts the branch of a chat into the messages that the model gets.

In: saved messages, a system prompt. Out: messages as chat templates expect them, user and assistant alternating.
Summaries go into the system prompt; attachments precede the text they were sent with. Counts no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from edgeinfer.app.sessions.records import Attachment, KeptMessage
from edgeinfer.models.text import Message

SUMMARY = "Summary of the conversation so far:"


def messages_of(branch: Sequence[KeptMessage], system: str | None) -> list[Message]:
    """The conversation. Empty answers are left out, and so are their questions if another question follows."""
    found = [Message("system", text)] if (text := system_text(branch, system)) else []
    said = [message for message in told_of(branch) if message.role != "summary"]
    return [*found, *(Message(message.role, with_attachments(message.text, message.attachments)) for message in said)]


def told_of(branch: Sequence[KeptMessage]) -> tuple[KeptMessage, ...]:
    """The messages of a branch that the model gets, including summaries."""
    said = [message for message in branch if message.role == "user" or message.text.strip()]
    unanswered = {before.number for before, after in pairwise(said) if before.role == after.role == "user"}
    return tuple(message for message in said if message.number not in unanswered)


def messages_told(turns: Sequence[Mapping[str, str]]) -> list[Message]:
    """Convert the messages of `told_of`, as role and content, for the template: summaries join the system message."""
    summaries = [turn["content"] for turn in turns if turn["role"] == "summary"]
    systems = [turn["content"] for turn in turns if turn["role"] == "system"]
    begun = "\n\n".join([*systems, *(f"{SUMMARY}\n{text}" for text in summaries)])
    others = [Message(turn["role"], turn["content"]) for turn in turns if turn["role"] not in ("summary", "system")]
    return [Message("system", begun), *others] if begun else others


def system_text(branch: Sequence[KeptMessage], system: str | None) -> str:
    """The system prompt, followed by the branch's summary of earlier messages if there is one."""
    summaries = [f"{SUMMARY}\n{message.text}" for message in branch if message.role == "summary"]
    return "\n\n".join([*([system] if system else []), *summaries])


def with_attachments(text: str, attachments: Sequence[Attachment]) -> str:
    """A text preceded by its attachments, each in a fence that its contents cannot close."""
    return "\n\n".join([*(_document(attachment) for attachment in attachments), *([text] if text else [])])


def _document(attachment: Attachment) -> str:
    return f"File: {attachment.name}\n{fenced(attachment.text)}"


def fenced(text: str) -> str:
    """A text in a code fence that its contents cannot close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    body = text if text.endswith("\n") else text + "\n"
    return f"{fence}\n{body}{fence}"
