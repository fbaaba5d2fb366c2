"""A session: one line of conversation or text over a loaded model, which keeps what it has read.

In: messages or text, and how to answer. Out: a `TextStream`. The prompt of every call is given whole; the part of it
that the last call left in the cache is not read again. Knows no files but its own saved state, and no devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from edgeinfer.engine.kv.prompt_rows import Piece
from edgeinfer.engine.kv.saved_state import seal, unseal
from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.engine.stream import TextStream
from edgeinfer.errors import EdgeInferError
from edgeinfer.scheduling.serving.allotment import Priority
from edgeinfer.temporary import temporary_file

MAGIC = b"EDGEINFER SESSION 1\n"


class Session:
    """Answers one call at a time: a new one ends the one before. Close it, or use `with`."""

    def __init__(
        self,
        cached: CachedSequence,
        prompts: Prompts,
        drafts: Callable[[], ModelDrafts | None] = lambda: None,
        *,
        kv_bytes: Callable[[int], int] | None = None,
        driver: StepDriver | None = None,
    ) -> None:
        """`drafts`: what is drafted from, asked before an answer until there is something.

        `kv_bytes`: what so many tokens take; None: only another program knows.
        `driver`: shared with all that may take part in the same passes; None: it has them alone.
        """
        self._cached = cached
        self._prompts = prompts
        self._drafts = drafts
        self._speculator: SessionDrafts | None = None
        self._kv_bytes = kv_bytes
        self._driver = driver or StepDriver(Scheduler(cached.pool))
        self._last: ScheduledSequence | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        return self._cached.tokens

    @property
    def saved_bytes(self) -> int | None:
        """About how many bytes `save` would write; None where only the program that runs the model knows."""
        return None if self._kv_bytes is None else self._kv_bytes(self._cached.n_cached)

    @property
    def speculator(self) -> SessionDrafts | None:
        """Drafts for this session; None without speculation."""
        if self._speculator is None and (drafts := self._drafts()) is not None:
            self._speculator = drafts.session()
        return self._speculator

    def chat(self, messages: Messages, *, priority: Priority = "interactive", **options: Unpack[Options]) -> TextStream:
        """Answer a conversation, given whole: [{"role": "user", "content": "…"}, …].

        Where it outgrows the context its oldest turns are left out, which `stats.truncated` and `stats.notices` tell;
        system messages stay. A last message of the assistant is continued: the stream gives what comes after its text,
        and what this session generated of it is not read again. "background" answers yield to interactive ones. Raises
        ContextOverflow when system messages and the last turn alone do not fit, BadTemplate, BadSetting, EngineClosed.
        """
        return self._start(self._prompts.chat(messages, options, lambda head: self._known()), priority)

    def complete(
        self,
        text: str | Sequence[Piece],
        *,
        parse_special: bool = True,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> TextStream:
        """Continue a text as it is, without the chat template. `parse_special`: texts of special tokens mean them.

        Instead of a text, token ids may be given, and `PromptRows` among them to a model loaded with rows=True. Raises
        ContextOverflow, BadSetting, EngineClosed, and UnsupportedModel for rows that the model cannot be given.
        """
        return self._start(self._prompts.text(text, options, parse_special=parse_special), priority)

    def render(self, messages: Messages) -> str:
        """The text the model is given for a conversation."""
        return self._prompts.render(messages)

    def branch(self) -> Session:
        """Another session that has read the same; the two share memory until they differ."""
        own = self._cached.branch(), self._prompts, self._drafts
        twin = Session(*own, kv_bytes=self._kv_bytes, driver=self._driver)
        twin._last = self._last
        return twin

    def save(self, path: str | Path) -> None:
        """Write what this session has read to a file, whole or not at all.

        Raises EdgeInferError where it cannot, or where the memory was given to other answers meanwhile.
        """
        if self._cached.was_taken:
            raise EdgeInferError(
                "what this session has read was given up to other answers, which needed the memory; "
                "it can be saved once the session has answered again"
            )
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
        self._last = None

    def stop(self) -> None:
        """End the running request within one step; from any thread. What there is of it stays."""
        self._cached.stop()

    def close(self) -> None:
        """Stop, and give back the memory; may be called twice."""
        self._cached.close()
        if self._speculator is not None:
            with self._cached.lock:  # what it leaves behind is shared with answers that draft under it
                self._speculator.close()

    def _start(self, request: Request, priority: Priority) -> TextStream:
        self._cached.check_open()
        own = self._cached, self._prompts.tokenizer, request, self.speculator
        self._last = ScheduledSequence(*own, priority=priority)
        return TextStream(self._last, self._driver)

    def _known(self) -> tuple[int, ...]:
        """Tokens read or generated: those cached, and the last one of an answer, which is not."""
        cached, last = self._cached.tokens, () if self._last is None else self._last.history
        return last if last[: len(cached)] == cached else cached


def _write(path: Path, data: bytes) -> None:
    """Write a file beside its place, then move it there."""
    try:
        handle, name = temporary_file(path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be written: {reason.strerror or reason}") from None
