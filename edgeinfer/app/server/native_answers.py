"""Answers in llama-server's own form: their text with its limits, settings, timings, probabilities.

In: streams of the engine. Out: texts as they arrive, and records to be sent as JSON. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from edgeinfer.app.server.dialects import NEUTRAL, OFF, ORDER, sampler_names
from edgeinfer.app.server.native_schemas import NativeSampling
from edgeinfer.app.server.objects import Record, probabilities, prompt_text, timings_record
from edgeinfer.engine.requests.sampling import SamplingSettings

if TYPE_CHECKING:
    from edgeinfer.app.server.followed import FollowedStream
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
    from edgeinfer.models.text import Tokenizer

LACKING = (
    *("dynatemp_range", "xtc_probability", "typical_p", "top_n_sigma", "dry_multiplier", "mirostat", "adaptive_target"),
)
"""Samplers of llama-server that edgeinfer lacks, which are told as off."""
LIMIT_S = 0.02
"""Seconds between two looks at an answer whose time or indentation is limited."""


@dataclass
class LineLimits:
    """Where an answer of several lines ends: after a time, or before a line that is indented less.

    As in llama-server, both hold from the first new line on.
    """

    most_s: float = 0.0
    n_indent: int = 0
    clock: Callable[[], float] = time.monotonic
    is_over: bool = False
    _text: str = ""
    _line: int = 0
    _begun_s: float | None = None

    @property
    def are_any(self) -> bool:
        """Whether there is a limit."""
        return self.most_s > 0 or self.n_indent > 0

    def push(self, text: str) -> str:
        """Add text, and return what of it belongs to the answer."""
        if self.is_over:
            return ""
        self._begun_s = self.clock() if self._begun_s is None else self._begun_s
        before, self._text = len(self._text), self._text + text
        kept = self._within(before)
        if 0 < self.most_s < self.clock() - self._begun_s and "\n" in self._text:
            self.is_over = True
        return text if kept is None else self._text[before:kept]

    def _within(self, before: int) -> int | None:
        """The length at which a line that is indented less ends the answer, if one does."""
        while self.n_indent and (at := self._text.find("\n", self._line)) >= 0:
            line = self._text[at + 1 :].partition("\n")[0]
            if not line.strip(" \t") and "\n" not in self._text[at + 1 :]:
                return None  # not all of its indentation is there
            if line.strip() and len(line) - len(line.lstrip(" \t")) < self.n_indent:
                self.is_over = True
                return max(before, at)
            self._line = at + 1
        return None


@dataclass
class NativeAnswer:
    """One answer of a request: its stream, and what of it was told. `prompt`: its tokens, in which rows have names."""

    number: int
    followed: FollowedStream
    prompt: Sequence[int]
    body: NativeSampling
    options: Options
    content: str = ""
    id_slot: int = 0
    n_told: int = 0

    def __post_init__(self) -> None:
        self._limits = LineLimits(self.body.t_max_predict_ms / 1e3, self.body.n_indent)
        self._is_silent = self.body.limit == 0

    @property
    def stream(self) -> TextStream:
        """The stream of the engine."""
        return self.followed.stream

    def chunks(self, every_s: float) -> AsyncIterator[str]:
        """The text as it arrives, within its limits; and "" where only progress is to be told."""
        return self.followed.beside(self._texts(every_s))

    async def _texts(self, every_s: float) -> AsyncIterator[str]:
        async for text in self.stream.chunks(min(every_s, LIMIT_S) if self._limits.are_any else every_s):
            if kept := "" if self._is_silent else self._limits.push(text):
                self.content += kept
                yield kept
            if self._limits.is_over:
                self.stream.stop()

    def stop(self) -> None:
        """End the answer."""
        self.stream.stop()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens so far; with probabilities, those whose text is shown."""
        if self._is_silent:
            return ()
        tokens = self.stream.tokens
        return tokens[: len(self.stream.logprobs)] if self.body.n_probs else tokens

    @property
    def stop_type(self) -> str:
        """Why the answer ended, in llama-server's words."""
        stats = self.stream.stats
        assert stats is not None
        if self._limits.is_over or self._is_silent or stats.finish_reason == "length":
            return "limit"
        if self.stream.stop_string is not None:
            return "word"
        return "eos" if stats.finish_reason == "stop" else "none"

    def parts(self, text: str, tokenizer: Tokenizer) -> list[Record]:
        """Parts of a streamed answer: one; with probabilities one for each token, the last of which has the text."""
        n_new = len(self.tokens) - self.n_told if self.body.n_probs else 1
        return [*(self._part("", tokenizer, 1) for _ in range(n_new - 1)), self._part(text, tokenizer)]

    def _part(self, text: str, tokenizer: Tokenizer, most: int | None = None) -> Record:
        """A part of a streamed answer, with the first `most` of the tokens that have not been told yet."""
        new = self.tokens[self.n_told :][:most]
        record = {
            "index": self.number,
            "content": text,
            "tokens": list(new),
            "stop": False,
            "id_slot": self.id_slot,
            "tokens_predicted": self.n_told + len(new),
            "tokens_evaluated": len(self.prompt),
        }
        if self.body.n_probs:
            told = self.stream.logprobs[self.n_told : self.n_told + len(new)]
            record["completion_probabilities"] = self._probabilities(told, tokenizer)
        self.n_told += len(new)
        return record

    def whole(self, name: str, tokenizer: Tokenizer, author: Mapping[str, float]) -> Record:
        """The end of an answer; without streaming, all of it."""
        stats, streams = self.stream.stats, bool(self.body.stream)
        assert stats is not None
        tokens = self.tokens if self.body.return_tokens and not streams else ()
        record: Record = {
            "index": self.number,
            "content": "" if streams else self.content,
            "tokens": list(tokens),
            "id_slot": self.id_slot,
            "stop": True,
            "model": name,
            "tokens_predicted": len(self.tokens),
            "tokens_evaluated": stats.n_prompt,
            "generation_settings": settings(self.body, self.options, stats, author),
            "prompt": prompt_text(self.prompt, tokenizer),
            "has_new_line": "\n" in self.content,
            "truncated": stats.truncated,
            "stop_type": self.stop_type,
            "stopping_word": (self.stream.stop_string or "") if self.stop_type == "word" else "",
            "tokens_cached": stats.n_prompt + len(self.tokens),
            "timings": timings_record(stats),
        }
        if self.body.n_probs and not streams:
            record["completion_probabilities"] = self._probabilities(self.stream.logprobs, tokenizer)
        return only(record, self.body.response_fields)

    def _probabilities(self, logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[Record]:
        return probabilities(logprobs, tokenizer, after_sampling=self.body.post_sampling_probs)


def only(record: Record, paths: Sequence[str] | None) -> Record:
    """The fields of a record that are asked for, as paths with slashes; all without paths."""
    if not paths:
        return record
    chosen: Record = {}
    for path in paths:
        value: Any = record
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            chosen[path] = value
    return chosen


def settings(body: NativeSampling, options: Options, stats: Stats, author: Mapping[str, float]) -> Record:
    """How an answer was made, in llama-server's words; samplers that edgeinfer does not have are off."""
    usual = SamplingSettings()
    names = ("temperature", "top_k", "top_p", "min_p", *OFF["penalties"])
    chosen = {name: options.get(name, author.get(name, getattr(usual, name))) for name in names}
    limit, bias, stops = options.get("max_tokens", -1), options.get("logit_bias") or {}, options.get("stop") or ()
    return {
        "seed": options.get("seed", stats.seed),
        **chosen,
        **{name: NEUTRAL[name] for name in LACKING},
        "adaptive_decay": 0.0,
        "repeat_last_n": options.get("penalty_window", usual.penalty_window),
        "stop": [stops] if isinstance(stops, str) else list(stops),
        "n_predict": body.limit if body.limit == 0 else limit,
        "max_tokens": body.limit if body.limit == 0 else limit,
        "ignore_eos": bool(body.ignore_eos),
        "stream": bool(body.stream),
        "logit_bias": [{"token": token, "bias": value if isfinite(value) else None} for token, value in bias.items()],
        "n_probs": body.n_probs,
        "post_sampling_probs": body.post_sampling_probs,
        "grammar": options.get("grammar", ""),
        "samplers": list(ORDER if body.samplers is None else sampler_names(body.samplers)),
        "timings_per_token": body.timings_per_token,
        "lora": [each.model_dump() for each in body.lora or ()],
    }
