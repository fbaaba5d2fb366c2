"""Answers as they are sent: what was made, in OpenAI's words, whole or in parts.

In: streams of the engine. Out: plain records that become JSON. Knows no HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
    from edgeinfer.engine.stream import TextStream
    from edgeinfer.models.text import Tokenizer
    from edgeinfer.models.text.tools import ToolCall

Record = dict[str, Any]
Kind = Literal["chat.completion", "text_completion"]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of a response have in common."""

    kind: Kind
    model: str
    fingerprint: str
    identity: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def record(self, choices: Sequence[Record], *, is_part: bool = False, **more: object) -> Record:
        """A response, or a part of one that is streamed."""
        is_chat = self.kind == "chat.completion"
        return {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{self.identity}",
            "object": f"{self.kind}.chunk" if is_part and is_chat else self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
            **more,
        }


class Said:
    """What an answer's text says, as it arrives: content, and calls once they are whole.

    White space that nothing but calls comes after is no content.
    """

    def __init__(self, stream: TextStream) -> None:
        self._reader = stream.reader
        self._blank = ""
        self._has_content = False

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls that are whole so far."""
        return () if self._reader is None else self._reader.calls

    def push(self, text: str) -> str:
        """The content that more text certainly has."""
        return text if self._reader is None else self._content(self._reader.push(text))

    def finish(self) -> str:
        """The content that was held back, at the end of the text."""
        return "" if self._reader is None else self._content(self._reader.finish(), is_last=True)

    def _content(self, more: str, *, is_last: bool = False) -> str:
        found = self._blank + more
        self._has_content = self._has_content or bool(found.strip()) or (is_last and not self.calls)
        self._blank = "" if self._has_content else found
        return found if self._has_content else ""


def measured(streams: Sequence[TextStream]) -> list[Stats]:
    """The numbers of answers that are over."""
    found = [stream.stats for stream in streams]
    assert None not in found
    return [stats for stats in found if stats is not None]


def finish_reason(stats: Stats, n_calls: int = 0) -> str:
    """Why an answer ended, in OpenAI's words: what was called off has no word of its own."""
    return "length" if stats.finish_reason == "length" else "tool_calls" if n_calls else "stop"


def calls_of(calls: Sequence[ToolCall], first: int = 0, *, is_part: bool = False) -> list[Record]:
    """Calls that a model wants made, as messages have them; parts of a stream have their number too."""
    return [
        {
            **({"index": number} if is_part else {}),
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls, first)
    ]


def usage_of(stats: Sequence[Stats]) -> Record:
    """What a request took: the prompt once, all answers to it."""
    n_prompt, n_made = stats[0].n_prompt, sum(each.n_generated for each in stats)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_made,
        "total_tokens": n_prompt + n_made,
        "prompt_tokens_details": {"cached_tokens": stats[0].n_cached},
    }


def timings_of(stats: Stats) -> Record:
    """How fast an answer was, in llama-server's words; null where nothing was measured."""
    n_read = stats.n_prompt - stats.n_cached
    rate = stats.decode_tok_s
    drafted = () if stats.draft is None else stats.draft.sources.values()
    return {
        "cache_n": stats.n_cached,
        "prompt_n": n_read,
        "prompt_ms": None if stats.ttft_s is None else 1e3 * stats.ttft_s,
        "prompt_per_second": stats.prefill_tok_s,
        "predicted_n": stats.n_generated,
        "predicted_ms": None if rate is None else 1e3 * stats.n_generated / rate,
        "predicted_per_second": rate,
        "draft_n": sum(each.proposed for each in drafted),
        "draft_n_accepted": sum(each.accepted for each in drafted),
    }


def chat_logprobs(told: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> Record:
    """Probabilities of tokens, as chats have them."""

    def one(token: int, logprob: float) -> Record:
        piece = tokenizer.piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    content = [
        {**one(each.token, each.logprob), "top_logprobs": [one(token, value) for token, value in each.top]}
        for each in told
    ]
    return {"content": content, "refusal": None}


def text_logprobs(told: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int) -> Record:
    """Probabilities of tokens, as completions have them; `offset`: characters of the text before."""
    pieces = tokenizer.pieces(each.token for each in told)
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    return {
        "tokens": pieces,
        "token_logprobs": [each.logprob for each in told],
        "top_logprobs": [
            dict(zip(tokenizer.pieces(token for token, _ in each.top), (value for _, value in each.top), strict=True))
            for each in told
        ],
        "text_offset": offsets,
    }
