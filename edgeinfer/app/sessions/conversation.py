"""What passes between a saved chat and the model: the messages that it gets, and what is saved of its answer.

In: saved messages, a system prompt; `Stats`. Out: messages as chat templates expect them, user and assistant
alternating, with calls of tools and their results within an answer; `Figures`, a state, a text. Summaries go into the
system prompt; attachments precede the text they were sent with. Counts no tokens, and knows neither the database nor
the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from edgeinfer.app.sessions.kept_images import KeptImage
from edgeinfer.app.sessions.records import LOST, Attachment, Figures, KeptMedium, KeptMessage, State, ToolRound

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.models.text import Message

SUMMARY = "Summary of the conversation so far:"


def messages_of(branch: Sequence[KeptMessage], system: str | None) -> list[Message]:
    """The conversation. Empty answers are left out, and so are their questions if another question follows."""
    from edgeinfer.models.text import Message

    found = [Message("system", text)] if (text := system_text(branch, system)) else []
    n_calls = 0
    for message in told_of(branch):
        for each in message.rounds:
            found += round_messages(each, n_calls)
            n_calls += len(each.calls)
        if message.role != "summary" and (message.text.strip() or not message.has_calls):
            found.append(Message(message.role, content_of(message.text, message.attachments)))
    return found


def round_messages(made: ToolRound, n_before: int) -> list[Message]:
    """What an answer said, with its calls, and their results; `n_before`: calls that the conversation had before."""
    from edgeinfer.models.text import Message

    if not made.calls:
        return []
    ids = [f"call_{n_before + place}" for place in range(len(made.calls))]
    told = [
        {"id": each, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for each, call in zip(ids, made.calls, strict=True)
    ]
    results = [
        Message("tool", call.result, {"tool_call_id": each, "name": call.name})
        for each, call in zip(ids, made.calls, strict=True)
    ]
    return [Message("assistant", made.text, {"tool_calls": told}), *results]


def told_of(branch: Sequence[KeptMessage]) -> tuple[KeptMessage, ...]:
    """The messages of a branch that the model gets, including summaries."""
    said = [message for message in branch if message.role == "user" or message.text.strip() or message.has_calls]
    unanswered = {before.number for before, after in pairwise(said) if before.role == after.role == "user"}
    return tuple(message for message in said if message.number not in unanswered)


def told_text(message: KeptMessage) -> str:
    """A message in one text: its attachments, or its calls of tools in words, before what it says; names of media."""
    calls = [f"[called {call.name} {call.arguments}: {call.result}]" for each in message.rounds for call in each.calls]
    media = [
        f"[{'image' if one.image else 'sound'}: {one.name}]" for one in message.attachments if one.medium is not None
    ]
    return "\n\n".join(filter(None, [*calls, *media, with_attachments(message.text, message.attachments)]))


def messages_told(turns: Sequence[Mapping[str, str]]) -> list[Message]:
    """Convert the messages of `told_of`, as role and content, for the template: summaries join the system message."""
    from edgeinfer.models.text import Message

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
    """A text preceded by its attached texts, each in a fence that its contents cannot close."""
    documents = [_document(attachment) for attachment in attachments if attachment.medium is None]
    return "\n\n".join([*documents, *([text] if text else [])])


def content_of(text: str, attachments: Sequence[Attachment]) -> str | list[dict[str, Any]]:
    """What a message says to the model: a text, or its images and sounds in parts before the text."""
    said = with_attachments(text, attachments)
    media = [_medium_part(one.medium) for one in attachments if one.medium is not None]
    return [*media, *([{"type": "text", "text": said}] if said else [])] if media else said


def _medium_part(medium: KeptMedium) -> dict[str, Any]:
    if isinstance(medium, KeptImage):
        return {"type": "image", "image": medium.part}
    return {"type": "audio", "audio": medium.part}


def _document(attachment: Attachment) -> str:
    return f"File: {attachment.name}\n{fenced(attachment.text)}"


def fenced(text: str) -> str:
    """A text in a code fence that its contents cannot close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    body = text if text.endswith("\n") else text + "\n"
    return f"{fence}\n{body}{fence}"


def figures_of(stats: Stats) -> Figures:
    """The statistics that are saved with an answer."""
    return Figures(
        n_prompt=stats.n_prompt,
        n_cached=stats.n_cached,
        n_generated=stats.n_generated,
        finish_reason=stats.finish_reason,
        truncated=stats.truncated,
        ttft_s=stats.ttft_s,
        prefill_tok_s=stats.prefill_tok_s,
        decode_tok_s=stats.decode_tok_s,
        accepted_per_step=stats.accepted_per_step,
        joules_per_token=stats.joules_per_token,
        seed=stats.seed,
    )


def state_of(stats: Stats) -> State:
    """How an answer ended."""
    if stats.finish_reason == "cancelled":
        return "stopped"
    return "cut" if stats.finish_reason == "length" and stats.truncated else "whole"


def text_of(text: str, stats: Stats) -> str:
    """The text to save: without a trailing partial character if `max_tokens` or the context cut it off."""
    return text.removesuffix(LOST) if stats.finish_reason == "length" else text
