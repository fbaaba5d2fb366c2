"""The text of one answer: its pieces, how much of it was taken, stop strings, and the thread that waits for more.

In: tokens, and which of them were drafted. Out: pieces of text, in order; no part of a stop string is ever let through.
The scheduler's thread adds text and the caller's thread takes it; they may be different threads. Knows no passes and no
memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.stats import DraftSpan, spans_of
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import StreamDecoder, Tokenizer
from edgeinfer.models.text.tokenizer import overlap


class Waiter:
    """Lets a thread sleep until there is something new. Signals may raise in it at any point (an Event breaks then)."""

    def __init__(self) -> None:
        self.is_awaited = False
        self._silent = threading.Lock()
        self._silent.acquire()

    def wait(self, timeout_s: float) -> None:
        """Sleep until `wake` is called, at most `timeout_s` seconds."""
        self._silent.acquire(timeout=timeout_s)

    def wake(self) -> None:
        """Wake the thread: there is something new."""
        if self.is_awaited:
            with suppress(RuntimeError):  # it was told already
                self._silent.release()


class Output:
    """The text of an answer by tokens, and its pieces that were not taken yet."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        shows_control = (request.tools is not None and request.tools.is_written_by_token(tokenizer)) or (
            request.thoughts is not None and request.thoughts.is_written_by_token(tokenizer)
        )
        self._decoder = StreamDecoder(tokenizer, show_control=shows_control, continues=request.continues_text)
        self._stops = StopStrings(request.stop)
        self._starts: list[int] | None = [] if request.stop else None  # characters before each token
        self._n_characters = 0
        self._shown: list[str] = []  # by token, and the text held back at the end
        self._sources: list[str | None] = []  # draft sources of the tokens up to the last drafted one
        self._pieces: deque[tuple[str, int]] = deque()  # not taken, with tokens taken with each
        self.n_taken = 0
        """Tokens of the answer whose text was taken, and of those held back because they may become a stop string."""
        self._n_characters_taken = 0
        for n_tokens, token in enumerate(request.beginning, 1):
            self.add(token, n_tokens)
        if len(self._pieces) > 1:
            self._pieces = deque([("".join(piece for piece, _ in self._pieces), self._pieces[-1][1])])

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._stops.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched

    @property
    def n_shown(self) -> int:
        """Tokens of the text: all, except those that only belong to the stop string that ended it."""
        if self._starts is None or not self.has_stopped:
            return len(self._shown)
        return bisect_left(self._starts, sum(map(len, self._shown)))

    @property
    def n_shown_taken(self) -> int:
        """Tokens of the text that was taken, of each at least its first character."""
        if self._starts is None:
            return self.n_taken
        return bisect_left(self._starts, self._n_characters_taken, 0, self.n_taken)

    @property
    def n_pieces(self) -> int:
        """Number of pieces not taken yet."""
        return len(self._pieces)

    def add(self, token: int, n_tokens: int) -> None:
        """Add the text of a token, with which the answer has `n_tokens` tokens."""
        text = self._decoder.push(token)
        if self._starts is not None:
            self._starts.append(self._n_characters)
            self._n_characters += len(text)
        self._add(self._stops.push(text), n_tokens)

    def add_rest(self, n_tokens: int, *, ended_itself: bool) -> None:
        """The answer is over: add text held back because it could have become part of a stop string.

        An incomplete character at the end of a stopped or cut answer is left out.
        """
        rest = self._stops.push(self._decoder.finish() if ended_itself else "")
        self._add(rest + self._stops.finish(), n_tokens)

    def _add(self, piece: str, n_tokens: int) -> None:
        self._shown.append(piece)
        if piece:
            self._pieces.append((piece, n_tokens))

    def note_sources(self, n_tokens: int, sources: list[str | None]) -> None:
        """Record that the tokens after the first `n_tokens` came from these draft sources."""
        self._sources += [None] * (n_tokens - len(self._sources))
        self._sources += sources

    def take(self) -> str | None:
        """Take the next piece, or None."""
        try:
            piece, self.n_taken = self._pieces.popleft()
        except IndexError:
            return None
        self._n_characters_taken += len(piece)
        return piece

    def take_all(self) -> list[str]:
        """Take all pieces there are."""
        pieces = []
        while (piece := self.take()) is not None:
            pieces.append(piece)
        return pieces

    def text(self, n_tokens: int | None = None) -> str:
        """The text of the first `n_tokens` tokens; None: all of it."""
        return "".join(self._shown[:n_tokens])

    def spans(self, n_generated: int, n_tokens: int | None = None) -> tuple[DraftSpan, ...]:
        """Which part of that text came from which draft source; text that a token completes counts as that token's."""
        return spans_of(tuple(self._shown[:n_tokens]), self._sources[:n_generated])

    def drop_pieces(self) -> bool:
        """Drop the text that was not taken. Returns whether there was any. Nothing may be added afterwards."""
        has_pieces = bool(self._pieces)
        if has_pieces:
            self._pieces.clear()
            del self._shown[self.n_taken :]
        return has_pieces


class StopStrings:
    """Watches text for `stops`. `matched` is the one that was found; nothing more is let through after it."""

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str):
                raise BadSetting(f"a stop string cannot be {stop!r}: it must be text")
            if not stop:
                raise BadSetting("a stop string cannot be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text, and return the text that is now certain not to belong to a stop string."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        self._held += text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, _, self.matched = min(found)
            shown, self._held = self._held[:at], ""
            return shown
        n_held = max((overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - n_held
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """Return what was held back, when the text ends without a stop string."""
        shown, self._held = self._held, ""
        return shown
