"""OpenAI's response objects: envelope, tool calls, usage, timings, log probabilities.

In: streams of the engine and their stats. Out: plain records to be sent as JSON. Knows no HTTP.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import RequestProgress, Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
    from edgeinfer.models.text import Tokenizer
    from edgeinfer.models.text.tools import ToolCall

Record = dict[str, Any]
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
Kind = Literal["chat.completion", "text_completion"]


def json_line(record: Record) -> bytes:
    """A record as JSON in one line, also for clients that split texts at Unicode's line ends.

    Lone surrogates, for which UTF-8 has no form, are escaped.
    """
    text = _ENCODE(record)
    if not text.isascii():
        text = _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text.encode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that all chunks of a response share."""

    kind: Kind
    model: str
    fingerprint: str
    identity: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def record(self, choices: Sequence[Record], *, is_chunk: bool = False, **more: object) -> Record:
        """A response, or one chunk of a streamed response."""
        is_chat = self.kind == "chat.completion"
        return {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{self.identity}",
            "object": f"{self.kind}.chunk" if is_chunk and is_chat else self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
            **more,
        }


def finished_stats(streams: Sequence[TextStream]) -> list[Stats]:
    """The stats of streams that have ended."""
    stats = [stream.stats for stream in streams if stream.stats is not None]
    assert len(stats) == len(streams)
    return stats


def finish_reason(stats: Stats, n_calls: int = 0) -> str:
    """OpenAI's finish reason. A cancelled answer counts as stopped."""
    return "length" if stats.finish_reason == "length" else "tool_calls" if n_calls else "stop"


def tool_call_records(calls: Sequence[ToolCall], first: int = 0, *, is_chunk: bool = False) -> list[Record]:
    """Tool calls in the form of messages; in chunks each also has its index."""
    return [
        {
            **({"index": number} if is_chunk else {}),
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls, first)
    ]


def usage_record(stats: Sequence[Stats], n_written: int | None = None) -> Record:
    """The usage of a request: its prompt counted once, plus all its choices, or `n_written` tokens."""
    n_prompt = stats[0].n_prompt
    n_generated = sum(choice.n_generated for choice in stats) if n_written is None else n_written
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {
            "cached_tokens": stats[0].n_cached,
            **({"shifted_tokens": stats[0].n_shifted} if stats[0].n_shifted else {}),
            **({"module_tokens": stats[0].n_from_modules} if stats[0].n_from_modules else {}),
        },
    }


def prompt_text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of a prompt for people; the rows of images, which have numbers below 0 there, are [image]."""
    runs = itertools.groupby(ids, lambda token: token < 0)
    return "".join("[image]" if is_rows else tokenizer.decode(list(run)) for is_rows, run in runs)


def notices_record(stats: Sequence[Stats]) -> Record:
    """What there is to tell of answers: what was left out of a prompt, and why one is not exact. {} if nothing is."""
    notices = list(dict.fromkeys(notice for each in stats for notice in each.notices))
    return {"notices": notices} if notices else {}


def timings_record(stats: Stats) -> Record:
    """llama-server's timings of a whole answer; 0 where nothing was measured."""
    drafts = stats.draft
    return {
        **_timings(stats, stats.n_prompt - stats.n_cached, 1e3 * (stats.ttft_s or 0.0)),
        "draft_n": 0 if drafts is None else drafts.n_proposed,
        "draft_n_accepted": 0 if drafts is None else drafts.n_accepted,
    }


def timings_so_far(live: RequestProgress, progress: Record | None = None) -> Record:
    """llama-server's timings of an answer that is not whole; `progress`: with which they are told, if with any."""
    if progress is None:
        return _timings(live, live.n_prompt - live.n_cached, 1e3 * (live.ttft_s or 0.0))
    n_read = progress["processed"] - progress["cache"]
    return _timings(None, n_read, progress["time_ms"] if n_read else 0.0, progress["cache"])


def _timings(measured: Stats | RequestProgress | None, n_read: int, prompt_ms: float, n_cached: int = 0) -> Record:
    """Timings of `n_read` tokens of a prompt, and of what followed. The first token counts to the prompt."""
    rate = 0.0 if measured is None else measured.decode_tok_s or 0.0
    n_generated = 0 if measured is None else measured.n_generated
    return {
        "cache_n": n_cached if measured is None else measured.n_cached,
        "prompt_n": n_read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(1, n_read),
        "prompt_per_second": 1e3 * n_read / prompt_ms if prompt_ms else 0.0,
        "predicted_n": n_generated,
        "predicted_ms": 1e3 * (n_generated - 1) / rate if rate else 0.0,
        "predicted_per_token_ms": 1e3 / rate if rate else 0.0,
        "predicted_per_second": rate,
    }


def chat_logprobs(logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, after_sampling: bool = False) -> Record:
    """Log probabilities in the chat completions format."""
    return {"content": probabilities(logprobs, tokenizer, after_sampling=after_sampling), "refusal": None}


def probabilities(
    logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, after_sampling: bool = False
) -> list[Record]:
    """Log probabilities of tokens and of those that could have been there: OpenAI's fields with llama-server's `id`.

    `after_sampling`: they are of the draw, which llama-server tells as probabilities.
    """
    value, others = ("prob", "top_probs") if after_sampling else ("logprob", "top_logprobs")

    def one(token: int, logprob: float) -> Record:
        piece, told = tokenizer.piece(token), math.exp(logprob) if after_sampling else logprob
        return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), value: told}

    return [
        {**one(each.token, each.logprob), others: [one(token, logprob) for token, logprob in each.top]}
        for each in logprobs
    ]
