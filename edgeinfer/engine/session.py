"""A session: one conversation or text over a loaded model, which keeps what it has read in the KV cache.

In: messages or text, and options. Out: a `TextStream`. A text goes on with the conversation so far; every other call
passes the whole prompt. The part of it that is still cached from the last call is not read again. Touches no files
except its own saved state, and knows no devices.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack

from edgeinfer.engine.kv.saved_state import Value, seal, unseal
from edgeinfer.engine.requests.conversation import Messages, checked, conversation_of
from edgeinfer.engine.requests.drafting import ClosingSpeculator
from edgeinfer.engine.requests.module_prompts import PromptPiece
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.session_messages import SessionMessages
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.errors import BadSetting, EdgeInferError, EngineClosed
from edgeinfer.foreign_names import OF_SESSIONS, no_attribute
from edgeinfer.models.text import Message
from edgeinfer.scheduling.allotment import Priority
from edgeinfer.temporary import temporary_file

MAGIC = b"EDGEINFER SESSION 1\n"


def _no_drafts() -> None:
    """Nothing to draft from."""


class Session:
    """A conversation: it answers one call at a time, and a new call ends the previous answer.

        with llm.session() as session:
            session.chat("My name is Ann.").read()
            session.chat("What is my name?").read()

    Close it, or use `with`.
    """

    def __init__(
        self,
        cached: CachedSequence,
        prompts: Prompts,
        drafts: Callable[[], ModelDrafts | None] = _no_drafts,
        *,
        kv_bytes: Callable[[int], int] | None = None,
        driver: StepDriver | None = None,
        opens: Callable[[], ClosingSpeculator | None] | None = None,
    ) -> None:
        """`drafts`: returns what to draft from; called before each answer until it returns something.

        `kv_bytes`: bytes for a number of tokens; None if only another program knows.
        `opens`: creates what drafts or writes for one answer, in place of `drafts`.
        `driver`: shared by all sequences that may take part in the same passes; None: this session has its own.
        """
        self._cached = cached
        self._prompts = prompts
        self._drafts = drafts
        self._speculator: SessionDrafts | None = None
        self._opening = threading.Lock()
        """Held while `speculator` is created: a thread may close the session meanwhile."""
        self._kv_bytes, self._opens = kv_bytes, opens
        self._driver = driver or StepDriver(Scheduler(cached.pool))
        self._last: ScheduledSequence | None = None
        self._conversation: SessionMessages | None = SessionMessages()
        """None: what it has read is no conversation that it knows."""

    if not TYPE_CHECKING:  # a type checker sees only what there is

        def __getattr__(self, name: str) -> object:
            raise no_attribute(self, name, OF_SESSIONS)

    def __repr__(self) -> str:
        """How much it has read, or that it is closed."""
        try:
            self._cached.check_open()
        except EngineClosed:
            return f"<Session: closed, {len(self.messages)} messages>"
        return f"<Session: {len(self.messages)} messages, {len(self.tokens)} tokens cached>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session cannot be copied or pickled; branch() copies it, save(path) keeps it in a file")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the KV cache."""
        return self._cached.tokens

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far: what the last `chat` was given, and its answer as far as it was generated.

        () if there is none, as after `complete`.
        """
        return () if self._conversation is None else self._conversation.so_far

    @property
    def saved_bytes(self) -> int | None:
        """Approximate size of the file that `save` would write; None if only the program that runs the model knows."""
        return None if self._kv_bytes is None else self._kv_bytes(self._cached.n_cached)

    @property
    def speculator(self) -> SessionDrafts | None:
        """The drafts of this session; None without speculation."""
        with self._opening:
            if self._speculator is None and (drafts := self._drafts()) is not None:
                self._speculator = drafts.session()
            return self._speculator

    def chat(
        self,
        messages: str | Messages,
        *,
        system: str | None = None,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> TextStream:
        """Answer a text, which goes on with the conversation so far, or another conversation.

        Pass that whole: [{"role": "user", "content": "…"}, …]; or [*session.messages, …] to go on with more than a
        text. `system`: a system message to come first, at the beginning of a conversation.

        If it does not fit in the context, the oldest turns are left out, as `stats.truncated` and `stats.notices`
        report; system messages always stay. If the last message is the assistant's, the answer continues it: the stream
        gives only the new text, and the part that this session generated is not read again. With
        `priority="background"` an answer yields to interactive ones. Raises ContextOverflow if the system messages and
        the last turn alone do not fit, BadTemplate, BadSetting, EngineClosed.
        """
        if isinstance(messages, str) and messages:
            if self._conversation is None:
                told = "this session has read a text, not messages that could go on"
                raise BadSetting(f"{told}; pass the whole conversation, as a list")
            messages = [*self.messages, Message("user", messages)]
        conversation = checked(conversation_of(messages, system))
        stream = self._start(self._prompts.chat(conversation, options, lambda head: self._known()), priority)
        self._conversation = SessionMessages(conversation, stream)
        return stream

    def complete(
        self,
        text: str | Sequence[PromptPiece],
        *,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> TextStream:
        """Continue a text as it is, without the chat template.

        Names of special tokens in the text become those tokens, unless `parse_special` is False. Instead of a text,
        pass token ids, and `PromptRows` among them if the model was loaded with rows=True. Raises ContextOverflow,
        BadSetting, EngineClosed, and UnsupportedModel for rows that the model cannot take.
        """
        stream = self._start(self._prompts.text(text, options), priority)
        self._conversation = None
        return stream

    def render(self, messages: Messages) -> str:
        """Return the text that the model would get for a conversation."""
        return self._prompts.render(messages)

    def branch(self) -> Session:
        """Return a copy of this session with the same cached tokens; the two share memory until they differ."""
        own = self._cached.branch(), self._prompts, self._drafts
        twin = Session(*own, kv_bytes=self._kv_bytes, driver=self._driver, opens=self._opens)
        twin._last = self._last
        twin._conversation = None if self._conversation is None else SessionMessages(self.messages)
        return twin

    def save(self, path: str | Path) -> None:
        """Save the session's cached tokens, state and conversation to a file; writes the whole file or nothing.

            with llm.session() as session:
                session.chat("My name is Ann.", max_tokens=20).read()
                session.save("ann.session")
            with llm.session() as session:
                session.restore("ann.session")
                session.chat("What is my name?", max_tokens=20).read()

        A conversation with images or sound is not saved: pass it whole to `chat` after `restore`.

        Raises EdgeInferError if that fails, or if the session's memory has since been given to other answers.
        """
        if self._cached.was_taken:
            raise EdgeInferError(
                "what this session has read was given up to other answers, which needed the memory; "
                "it can be saved once the session has answered again"
            )
        with self._cached.lock:
            own = *self._cached.save(), self._cached.scales, self._cached.n_exact
            write_cache(Path(path), *own, None if self._conversation is None else self._conversation.saved)

    def restore(self, path: str | Path) -> None:
        """Continue from a file that `save` has written, and with its conversation if it has one.

        Raises EdgeInferError if it is damaged or from another model or kind of device.
        """
        tokens, state, scales, n_exact, messages = read_cache(Path(path))
        self._cached.restore(tokens, state, scales, n_exact)
        self._last, self._conversation = None, messages

    def stop(self) -> None:
        """End the running request within one step; may be called from any thread. Text generated so far stays."""
        self._cached.stop()

    def close(self) -> None:
        """Stop, and release the memory; may be called twice."""
        on_disk = self._driver.scheduler.admission.on_disk
        if on_disk is not None:
            self._cached.stop()
            on_disk.finish()
        self._cached.close()
        with self._opening:
            self._drafts = _no_drafts
        if self._speculator is not None:
            with self._cached.lock:  # what it leaves behind is shared with answers that draft under this lock
                self._speculator.close()

    def _start(self, request: Request, priority: Priority) -> TextStream:
        self._cached.check_open()
        own = self._cached, self._prompts.tokenizer, request, self.speculator
        self._last = ScheduledSequence(*own, opens=self._opens, priority=priority)
        return TextStream(self._last, self._driver)

    def _known(self) -> tuple[int, ...]:
        """Tokens read or generated: the cached ones, and the last token of an answer, which is not cached."""
        cached, last = self._cached.tokens, () if self._last is None else self._last.history
        return last if last[: len(cached)] == cached else cached


def write_cache(
    path: Path,
    tokens: Sequence[int],
    state: bytes,
    scales: tuple[float, ...],
    n_exact: int,
    messages: str | None = None,
) -> None:
    """Write cached tokens, their saved state, scales and how many are exact to a file, whole or not at all.

    `messages`: the conversation that they are of, as JSON. Raises EdgeInferError.
    """
    header: dict[str, Value] = {"tokens": tokens, "scales": json.dumps(scales), "n_exact": n_exact}
    _write(path, seal(MAGIC, header if messages is None else {**header, "messages": messages}, state))


def read_cache(path: Path) -> tuple[list[int], bytes, tuple[float, ...], int, SessionMessages | None]:
    """The tokens, state, scales and number of exact tokens of a file, as `CachedSequence.restore` takes them.

    And its conversation, if it has one. Raises EdgeInferError if it is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None
    header, state = unseal(MAGIC, data, str(path))
    try:
        tokens = list(map(index, header["tokens"]))  # type: ignore[arg-type]
        scales = json.loads(str(header.get("scales", "[]")))  # files of earlier versions have none
        n_exact = index(header.get("n_exact", len(tokens)))  # type: ignore[arg-type]
        told = header.get("messages")
        messages = None if told is None else SessionMessages.restored(str(told))
        return tokens, state, tuple(map(float, scales)), max(0, n_exact), messages
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, BadSetting):
        raise EdgeInferError(f"{path} is damaged; start again from the text") from None


def _write(path: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, then move it into place."""
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
