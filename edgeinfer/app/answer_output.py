"""Prints an answer while it is generated: text on stdout, notices and numbers on stderr; Ctrl-C stops it.

In: a `TextStream`. Out: printed text, and whether Ctrl-C ended it. On a terminal the model's control characters are
removed, so that no answer can control the terminal, and thoughts are shown dimmed before the answer; elsewhere they are
left out. Knows no commands.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from edgeinfer.app.plain_text import counted, echo, harmless

if TYPE_CHECKING:
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.several.outlined import Outlined


DIM, USUAL = "\x1b[2m", "\x1b[0m"


class _Printer:
    """Writes pieces of an answer to stdout: on a terminal thoughts too, dimmed."""

    def __init__(self, stream: TextStream) -> None:
        self._reader, self._terminal = stream.reader, sys.stdout.isatty()
        self._n_thoughts, self._is_dim = 0, False
        self.ends_line, self.is_empty = True, True

    def push(self, piece: str) -> None:
        """Write what a piece adds."""
        if self._reader is None:
            self._write(piece)
            return
        content = self._reader.push(piece)
        self._think(self._reader.thoughts.rstrip())  # white space comes with what follows it
        self._write(content)

    def finish(self) -> None:
        """Write what was held back, and end the line; an answer of tool calls alone has none."""
        if self._reader is not None:
            self._write(self._reader.finish())
        self._end_thoughts()
        only_calls = self.is_empty and self._reader is not None and bool(self._reader.calls)
        if not only_calls and (self.is_empty or not self.ends_line):
            self._write("\n")

    def _think(self, thoughts: str) -> None:
        more, self._n_thoughts = thoughts[self._n_thoughts :], len(thoughts)
        if more and self._terminal:
            begin, self._is_dim = "" if self._is_dim else DIM, True
            sys.stdout.write(begin + harmless(more))
            sys.stdout.flush()

    def _write(self, text: str) -> None:
        shown = harmless(text) if self._terminal else text
        if shown:
            self._end_thoughts()
            sys.stdout.write(shown)
            sys.stdout.flush()
            self.ends_line, self.is_empty = shown.endswith("\n"), False

    def _end_thoughts(self) -> None:
        if self._is_dim:
            sys.stdout.write(f"{USUAL}\n\n")
            self._is_dim = False


def print_answer(stream: TextStream, *, quiet: bool = False, progress: ProgressLine | None = None) -> bool:
    """Print an answer piece by piece and end its line; return whether it was interrupted. `quiet` prints nothing.

    `progress`: the display of prefill progress, cleared before text appears.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    printer = _Printer(stream)
    with stopping(stream.stop) as interrupted:
        for piece in stream:
            if progress is not None:
                progress.clear()
            if not quiet:
                printer.push(piece)
    if progress is not None:  # the answer may be empty
        progress.clear()
    if not quiet:
        printer.finish()
    return interrupted.is_set()


def print_whole(stream: TextStream) -> None:
    """Print an answer that is complete."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    printer = _Printer(stream)
    printer.push(stream.text)
    printer.finish()


def print_outlined(outlined: Outlined, *, quiet: bool, progress: ProgressLine) -> bool:
    """Print an answer by its outline as it can be read, and end its line; return whether it was interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    printer: _Printer | None = None
    with stopping(outlined.stop) as interrupted:
        for piece in outlined:
            progress.clear()
            if printer is None:
                printer = _Printer(outlined.streams[-1])
            if not quiet:
                printer.push(piece)
    progress.clear()
    if printer is not None and not quiet:
        printer.finish()
    return interrupted.is_set()


def rounding_notices(llm: LLM, parallel: int) -> tuple[str, ...]:
    """What to know where answers depend on each other by rounding."""
    if parallel == 1 or llm.telemetry.batch_invariant:
        return ()
    return (
        f"{llm.telemetry.device} rounds otherwise when several answers share a pass: where two tokens are nearly as "
        "likely, an answer may not be the one it gives alone",
    )


def print_notices(notices: tuple[str, ...]) -> None:
    """Report on stderr what was left out or cut."""
    for notice in notices:
        echo(f"note: {notice}", err=True)


def print_thoughts_note(stream: TextStream) -> None:
    """Say on stderr that an answer was thoughts and nothing else, which may have printed nothing."""
    if stream.reasoning and not stream.content.strip() and not stream.tool_calls:
        print_notices(("the model only thought; --enable-thinking off, or --max-thought-tokens N, makes it answer",))


def stats_text(stats: Stats) -> str:
    """The numbers of an answer as one readable line."""
    joules = stats.joules_per_token
    return " | ".join(
        [
            f"{counted(stats.n_generated, 'token')}, {_number(stats.decode_tok_s)} tok/s",
            f"prompt {stats.n_prompt} ({_cached(stats)}), {_number(stats.prefill_tok_s)} tok/s",
            f"first token after {_number(stats.ttft_s, 3)} s",
            f"{_number(stats.accepted_per_step, 2)} tokens per step{_drafts(stats)}",
            *([] if joules is None else [f"{joules:.3g} J/token"]),
            stats.policy,
            f"seed {stats.seed}",
            stats.finish_reason,
        ]
    )


def _cached(stats: Stats) -> str:
    """How much of the prompt was not read again, and where that was kept."""
    modules = f", {stats.n_from_modules} of modules (not exact)" if stats.n_from_modules else ""
    shifted = f", {stats.n_shifted} shifted (not exact)" if stats.n_shifted else ""
    return (
        f"{stats.n_cached} cached" + (f", {stats.n_from_disk} on disk" if stats.n_from_disk else "") + shifted + modules
    )


def _drafts(stats: Stats) -> str:
    """What came of drafting, if anything was drafted, or who wrote what where two models write."""
    if stats.draft is not None and (both := stats.draft.shared_writing) is not None:
        return (
            f", {both.n_small} by {both.small} and {both.n_large} by the model, which took over "
            f"{counted(both.n_handed_over, 'time')} and dropped {both.n_dropped} (not exact)"
        )
    if stats.draft is None or not stats.draft.n_proposed:
        return ""
    taken = "" if stats.draft_share is None else f", drafting took {stats.draft_share:.1%} of the time"
    return f", {stats.draft.n_accepted} of {stats.draft.n_proposed} drafted were right{taken}"


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """Inside this context the first Ctrl-C calls `stop` and sets the event; the second one interrupts immediately."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        stop()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
