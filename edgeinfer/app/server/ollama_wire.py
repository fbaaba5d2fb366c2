"""How Ollama's API is written: lines of JSON, times, durations in nanoseconds, the fields of answers.

In: records, stats of finished answers. Out: lines, final fields. Knows no models and no requests.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from starlette.responses import Response

from edgeinfer.app.server.objects import Record, chat_logprobs, json_line, notices_record
from edgeinfer.app.server.streaming import Wire, streaming

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
    from edgeinfer.models.text import Tokenizer
    from edgeinfer.models.text.tools import ToolCall

NDJSON = "application/x-ndjson"
FOREVER_S = 290 * 365.25 * 86400
"""The longest time that Go can tell in nanoseconds, nearly: what Ollama says of models that stay."""


def line(record: Record) -> bytes:
    """A record as a line of JSON."""
    return json_line(record) + b"\n"


LINES = Wire(NDJSON, lambda error: line({"error": error.message}), None)


def lines(records: AsyncIterator[Record], done: Callable[[], Awaitable[None]]) -> Response:
    """A response of one line per record; `done` is awaited when it ends, for whatever reason."""
    return streaming(_written(records), done, LINES)


async def _written(records: AsyncIterator[Record]) -> AsyncIterator[bytes]:
    try:
        async for record in records:
            yield line(record)
    finally:
        await records.aclose()  # type: ignore[attr-defined]


def time_text(unix_s: float) -> str:
    """A time as Ollama writes it: RFC 3339, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class AnswerFrame:
    """The fields of an answer that do not depend on its text. `model`: the name that the request used."""

    model: str
    began_s: float = field(default_factory=time.perf_counter)
    loaded_s: float | None = None

    def loaded(self) -> None:
        """Note that the model is there now."""
        self.loaded_s = time.perf_counter()

    def record(self, content: Record, *, done: bool = False) -> Record:
        """A part of an answer."""
        return {"model": self.model, "created_at": time_text(time.time()), **content, "done": done}

    def empty(self, content: Record, reason: str) -> Record:
        """The answer to a request that only loads or unloads a model."""
        return {**self.record(content, done=True), "done_reason": reason}

    def last(self, content: Record, stats: Stats) -> Record:
        """The last part of an answer, or a complete one. What was left out of the prompt is told beside."""
        reason = "length" if stats.finish_reason == "length" else "stop"
        record = {**self.record(content, done=True), "done_reason": reason, **self.durations(), **_counts(stats)}
        return {**record, **notices_record([stats])}

    def durations(self) -> Record:
        """Nanoseconds since the request came, and until the model was there."""
        now_s = time.perf_counter()
        loaded_s = now_s if self.loaded_s is None else self.loaded_s
        return {"total_duration": _ns(now_s - self.began_s), "load_duration": _ns(loaded_s - self.began_s)}


def _counts(stats: Stats) -> Record:
    """Tokens and nanoseconds of the prompt and of the answer. Clients divide by durations, so none is 0."""
    rate = stats.decode_tok_s
    return {
        "prompt_eval_count": stats.n_prompt,
        "prompt_eval_duration": _ns(stats.ttft_s or 0.0),
        "eval_count": stats.n_generated,
        "eval_duration": _ns(stats.n_generated / rate if rate else 0.0),
    }


def _ns(seconds: float) -> int:
    return max(1, round(1e9 * seconds))


def tool_call_record(call: ToolCall, identity: str, index: int) -> Record:
    """A call in Ollama's form, whose arguments are an object."""
    function = {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": identity, "function": function}


def logprob_records(logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[Record]:
    """Log probabilities of tokens, each with those of likely alternatives."""
    records: list[Record] = chat_logprobs(logprobs, tokenizer)["content"]
    return records


def expiry_text(keep_s: float | None, used_s: float) -> str:
    """When a model is unloaded; `used_s`: its last use by the monotonic clock."""
    left_s = FOREVER_S if keep_s is None else max(0.0, keep_s - (time.monotonic() - used_s))
    return time_text(time.time() + left_s)


def kept_s(seconds: float) -> float | None:
    """How long a model is kept, for its pool: None for good."""
    return None if math.isinf(seconds) else min(seconds, FOREVER_S)
