"""A stream of text: what `chat` and `complete` return.

In: a sequence that the scheduler drives. Out: its text in pieces. With a plain iterator the caller's thread generates
them; with an asynchronous one the engine's thread does. Starts no event loop, and no work before the first piece is
requested.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stats import DraftSpan, RequestProgress, Stats
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.foreign_names import OF_STREAMS, no_attribute
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.tools import ToolCall

if TYPE_CHECKING:
    import asyncio


SHOWN = 60
"""Characters of a text that stand for it."""


class TextStream:
    """The text of one answer, piece by piece. Iterate over it once, with `for` or `async for`, to generate it.

        for piece in llm.chat("Hi", max_tokens=20):
            print(piece, end="", flush=True)

    `read()` returns the whole text, and so does `str`; in an event loop `await stream.aread()`. The other attributes
    (`text`, `tokens`, `live`, …) cover the text taken so far and may be read from any thread. `stop()` may also be
    called from any thread, and keeps the text generated so far; the end of a `with` stops it too.
    """

    def __init__(self, sequence: ScheduledSequence, driver: StepDriver) -> None:
        """Generates nothing before the first piece is requested.

        `driver`: runs the steps of all requests of its scheduler.
        """
        self._sequence, self._driver = sequence, driver
        self._pieces = driver.pieces(sequence)
        self._lock = threading.Lock()

    if not TYPE_CHECKING:  # a type checker sees only what there is

        def __getattr__(self, name: str) -> object:
            raise no_attribute(self, name, OF_STREAMS)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._lock:
            return next(self._pieces)

    async def __aiter__(self) -> AsyncIterator[str]:
        async for pieces in self._arriving(0.0):
            for piece in pieces:
                yield piece

    async def chunks(self, every_s: float = 0.02) -> AsyncIterator[str]:
        """Yield the text in larger parts, at most one every `every_s` seconds; the first and the last come at once.

        Use it when handling a part is expensive: fewer parts leave more of the processor to the model.
        """
        async for pieces in self._arriving(every_s):
            yield "".join(pieces)

    async def _arriving(self, every_s: float) -> AsyncIterator[list[str]]:
        """Yield all pieces that have arrived, then wait `every_s`, or until the answer ends."""
        import asyncio  # imported here, so that programs without an event loop do not pay for it

        loop, arrived, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def notify() -> None:
            _set(loop, arrived)
            if self.stats is not None:
                _set(loop, ended)

        sequence = self._sequence
        self._driver.drive(sequence, notify)
        try:
            while not (sequence.is_over and not sequence.output.n_pieces):
                pieces = sequence.output.take_all()
                if pieces:
                    yield pieces
                    if every_s and not sequence.is_over:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(every_s):
                                await ended.wait()
                elif not sequence.is_over:
                    await arrived.wait()
                    arrived.clear()
            if sequence.error is not None:
                raise sequence.error
        finally:
            self.stop()
            sequence.notify = sequence.waiter.wake  # `notify` refers to this stream, and to the sequence by it

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __str__(self) -> str:
        """The whole text, as `read` returns it: what is missing is generated."""
        return self.read()

    def __repr__(self) -> str:
        """How far the answer is, and how its text begins; generates nothing."""
        stats, text = self.stats, self.text
        done = "so far" if stats is None else f"done ({stats.finish_reason})"
        told = f"{text[:SHOWN]!r}{' …' if len(text) > SHOWN else ''}"
        if stats is None and not text:
            return "<TextStream: nothing generated yet; iterate over it, or read() it>"
        return f"<TextStream: {self.n_generated} tokens {done}: {told}>"

    def _repr_markdown_(self) -> str:
        """What a notebook shows of it at the end of a cell: the whole answer."""
        return self.read()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an answer cannot be copied or pickled: it belongs to an open model; keep its text or tokens")

    @property
    def text(self) -> str:
        """The text so far."""
        return self._sequence.output.text(self._sequence.n_seen)

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the answer, as they are compared with the cache: rows and modules have names, below 0."""
        return self._sequence.request.prompt[: self._sequence.request.n_before]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt, those of modules too; rows have names, below 0."""
        return self._sequence.request.ids

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens so far, without the end-of-generation token."""
        return self._sequence.tokens[: self._sequence.n_seen]

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._sequence.output.stop_string

    @property
    def reader(self) -> AnswerReader | None:
        """A new reader that separates thoughts, content and tool calls; None if there is only content."""
        return self._sequence.request.reader()

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The complete tool calls in the text so far."""
        return self._read()[1]

    @property
    def content(self) -> str:
        """The text so far without thoughts and tool calls."""
        return self._read()[0]

    @property
    def reasoning(self) -> str:
        """The thoughts in the text so far, without the marks around them."""
        return self._read()[2]

    def _read(self) -> tuple[str, tuple[ToolCall, ...], str]:
        """Content, calls and thoughts so far."""
        reader = self.reader
        if reader is None:
            return self.text, (), ""
        content = reader.push(self.text) + (reader.finish() if self.stats is not None else "")
        return content, tuple(reader.calls), reader.thoughts

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """For each token so far, if requested: its log probability, and those of likely alternatives."""
        return self._sequence.logprobs

    @property
    def entropies(self) -> tuple[float, ...]:
        """Entropy of the model's distribution at each token so far that was chosen, if requested, in nats."""
        return tuple(self._sequence.chooser.entropies)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """The same for tokens of the prompt that have been read, from the one on that `scored_from` names."""
        return tuple(self._sequence.scores.found)

    @property
    def end_logprobs(self) -> TokenLogprobs | None:
        """The same for the end-of-generation token; None if none ended the answer."""
        return self._sequence.end_logprobs

    @property
    def marks(self) -> tuple[DraftSpan, ...]:
        """Which parts of the text so far came from which draft source: runs of characters, in order."""
        return self._sequence.spans(self._sequence.n_seen)

    @property
    def n_generated(self) -> int:
        """Number of tokens of the answer so far, as in `live`, which takes longer to make."""
        return self._sequence.n_generated

    @property
    def live(self) -> RequestProgress:
        """Progress of the answer while it is generated; may be read from any thread."""
        return self._sequence.live

    @property
    def stats(self) -> Stats | None:
        """Statistics of the answer; None until it is done."""
        return self._sequence.stats

    @property
    def is_stopped(self) -> bool:
        """Whether the answer was asked to end."""
        return self._sequence.stop_asked.is_set()

    def read(self) -> str:
        """Generate to the end and return the whole text. Raises what ended the answer."""
        for _ in self:
            pass
        return self.text

    async def aread(self) -> str:
        """The same in an event loop, which goes on meanwhile."""
        async for _ in self.chunks():
            pass
        return self.text

    def stop(self) -> None:
        """End the answer within one step; may be called from any thread. The text generated so far stays in `text`."""
        self._sequence.stop()

    def close(self) -> None:
        """Stop, wait for the running step to end, and release the session."""
        self.stop()
        with self._lock:
            self._pieces.close()
        if self._sequence.has_entered and not self._sequence.is_over:
            self._driver.scheduler.leave(self._sequence)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of an event loop from another thread."""
    if not event.is_set():
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(event.set)
