"""From the branch of a chat to what the model is given.

In: kept messages, a system prompt. Out: messages as templates take them: users and assistants by turns. Summaries go
into the system prompt, attachments before the text that they were sent with. Counts no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from edgeinfer.app.sessions.records import Attachment, KeptMessage
from edgeinfer.models.text import Message

SUMMARY = "Summary of the conversation so far:"


def messages_of(branch: Sequence[KeptMessage], system: str | None) -> list[Message]:
    """The conversation. Answers without text are left out, with their questions where others follow those."""
    found = [Message("system", text)] if (text := system_text(branch, system)) else []
    said = [message for message in told_of(branch) if message.role != "summary"]
    return [*found, *(Message(message.role, with_attachments(message.text, message.attachments)) for message in said)]


def told_of(branch: Sequence[KeptMessage]) -> tuple[KeptMessage, ...]:
    """The messages of a branch that the model is told of, summaries among them."""
    said = [message for message in branch if message.role == "user" or message.text.strip()]
    unanswered = {before.number for before, after in pairwise(said) if before.role == after.role == "user"}
    return tuple(message for message in said if message.number not in unanswered)


def messages_told(turns: Sequence[Mapping[str, str]]) -> list[Message]:
    """Messages of `told_of` by role and content, as templates take them: summaries go into the system message."""
    summaries = [turn["content"] for turn in turns if turn["role"] == "summary"]
    systems = [turn["content"] for turn in turns if turn["role"] == "system"]
    begun = "\n\n".join([*systems, *(f"{SUMMARY}\n{text}" for text in summaries)])
    others = [Message(turn["role"], turn["content"]) for turn in turns if turn["role"] not in ("summary", "system")]
    return [Message("system", begun), *others] if begun else others


def system_text(branch: Sequence[KeptMessage], system: str | None) -> str:
    """The system prompt, with the summary of what was before the branch, if there is one."""
    summaries = [f"{SUMMARY}\n{message.text}" for message in branch if message.role == "summary"]
    return "\n\n".join([*([system] if system else []), *summaries])


def with_attachments(text: str, attachments: Sequence[Attachment]) -> str:
    """A text with its attachments before it, each in a fence that nothing in it can close."""
    return "\n\n".join([*(_document(attachment) for attachment in attachments), *([text] if text else [])])


def _document(attachment: Attachment) -> str:
    return f"File: {attachment.name}\n{fenced(attachment.text)}"


def fenced(text: str) -> str:
    """A text in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    body = text if text.endswith("\n") else text + "\n"
    return f"{fence}\n{body}{fence}"
