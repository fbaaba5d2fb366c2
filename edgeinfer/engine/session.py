"""A session: one line of conversation or text over a loaded model, which keeps what it has read.

In: messages or text, and how to answer. Out: a `TextStream`. The prompt of every call is given whole; the part of it
that the last call left in the cache is not read again. Knows no files but its own saved state, and no devices.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from edgeinfer.backends.base import Progress
from edgeinfer.engine.cached import CachedSequence
from edgeinfer.engine.conversation import Messages, fit
from edgeinfer.engine.generate import Generation
from edgeinfer.engine.request import Request
from edgeinfer.engine.sampling import SamplingSettings
from edgeinfer.engine.speculation.drafts import ModelDrafts, SessionDrafts
from edgeinfer.engine.state import seal, unseal
from edgeinfer.engine.stream import TextStream
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.models.text import ChatTemplate, Tokenizer

MAGIC = b"EDGEINFER SESSION 1\n"
REQUEST_KEYS = ("max_tokens", "stop", "progress")


class Options(TypedDict, total=False):
    """How to answer: the fields of `SamplingSettings`, and when to stop."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    logit_bias: dict[int, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    progress: Progress


class Session:
    """Answers one call at a time: a new one ends the one before. Close it, or use `with`."""

    def __init__(
        self,
        cached: CachedSequence,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        drafts: ModelDrafts | None = None,
    ) -> None:
        self._cached = cached
        self._tokenizer = tokenizer
        self._template = template
        self._drafts = drafts
        self._speculator = None if drafts is None else drafts.session()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        return self._cached.tokens

    @property
    def speculator(self) -> SessionDrafts | None:
        """Who drafts, if anyone does."""
        return self._speculator

    def chat(self, messages: Messages, **options: Unpack[Options]) -> TextStream:
        """Answer a conversation, given whole: [{"role": "user", "content": "…"}, …].

        Where it outgrows the context its oldest turns are left out, which `stats.truncated` and `stats.notices` tell;
        system messages stay. Raises ContextOverflow when those and the last turn alone do not fit, BadTemplate,
        BadSetting, EngineClosed.
        """
        fitted = fit(messages, self._render, self._cached.n_context, options.get("max_tokens"))
        return self._start(fitted.prompt, options, notices=fitted.notices)

    def complete(self, text: str, *, parse_special: bool = True, **options: Unpack[Options]) -> TextStream:
        """Continue a text as it is, without the chat template. `parse_special`: texts of special tokens mean them.

        Raises ContextOverflow, BadSetting, EngineClosed.
        """
        prompt = self._tokenizer.encode(text, parse_special=parse_special)
        if self._tokenizer.vocabulary.add_eos:  # a text that goes on has no end yet
            prompt.pop()
        return self._start(tuple(prompt), options, continues_text=True)

    def render(self, messages: Messages) -> str:
        """The text the model is given for a conversation."""
        return self._template.render(messages, add_generation_prompt=True)

    def branch(self) -> Session:
        """Another session that has read the same; the two share memory until they differ."""
        return Session(self._cached.branch(), self._tokenizer, self._template, self._drafts)

    def save(self, path: str | Path) -> None:
        """Write what this session has read to a file, whole or not at all. Raises EdgeInferError where it cannot."""
        tokens, state = self._cached.save()
        _write(Path(path), seal(MAGIC, {"tokens": tokens}, state))

    def restore(self, path: str | Path) -> None:
        """Go on from a saved file. Raises EdgeInferError when it is damaged or of another model or device kind."""
        try:
            data = Path(path).read_bytes()
        except OSError as reason:
            raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None
        header, state = unseal(MAGIC, data, str(path))
        tokens = header["tokens"]
        assert isinstance(tokens, list)
        self._cached.restore(tokens, state)

    def stop(self) -> None:
        """End the answer in the making within one step; from any thread. What there is of it stays."""
        self._cached.stop()

    def close(self) -> None:
        """Stop, and give back the memory; may be called twice."""
        self._cached.close()
        if self._speculator is not None:
            self._speculator.close()

    def _start(
        self, prompt: tuple[int, ...], options: Options, *, continues_text: bool = False, notices: tuple[str, ...] = ()
    ) -> TextStream:
        self._cached.check_open()
        stop = options.get("stop", ())
        for name in options:
            if name not in Options.__annotations__:
                raise BadSetting(f"there is no option {name!r}; there are: {', '.join(Options.__annotations__)}")
        sampling = {name: value for name, value in options.items() if name not in REQUEST_KEYS}
        request = Request(
            prompt=prompt,
            sampling=SamplingSettings(**sampling),  # type: ignore[arg-type]
            max_tokens=options.get("max_tokens"),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            continues_text=continues_text,
            notices=notices,
        )
        return TextStream(Generation(self._cached, self._tokenizer, request, self._speculator))

    def _render(self, messages: Messages) -> list[int]:
        """Tokens of the text for a conversation."""
        return self._tokenizer.encode_rendered(self.render(messages))


def _write(path: Path, data: bytes) -> None:
    """Write a file beside its place, then move it there."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be written: {reason.strerror or reason}") from None
