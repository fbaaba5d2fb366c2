"""Chat line by line: no full screen, no terminal control, works with pipes and screen readers.

In: lines. Out: answers on stdout; everything else goes to stderr. At a terminal it prompts for lines, saves their
history between runs and continues after errors; from a pipe each line is a turn and the first error ends it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from edgeinfer.app.answer_output import print_answer, print_notices, stats_text
from edgeinfer.app.chat.attachments import attach, mentions
from edgeinfer.app.chat.beginning import NO_EARLIER, Beginning, last_chat
from edgeinfer.app.chat.commands import is_command
from edgeinfer.app.chat.dialogue import Dialogue, GivenAnswer, LineCommands, Then
from edgeinfer.app.disk_reading import read_since, reading_lines, skipped_lines
from edgeinfer.app.opening.first_look import look_once
from edgeinfer.app.opening.loading import record_speed
from edgeinfer.app.plain_text import echo
from edgeinfer.app.progress import ProgressLine
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.sessions.store import SessionStore, default_path
from edgeinfer.engine.llm import LLM
from edgeinfer.errors import EdgeInferError, EngineClosed, SessionsFailed, SessionsUnwritable
from edgeinfer.private_files import readable_folder

if TYPE_CHECKING:
    from edgeinfer.app.chat.tool_turns import ToolTurns
    from edgeinfer.app.mcp.toolbox import Toolbox
    from edgeinfer.engine.scheduler.stream import TextStream

PROMPT = "> "
HISTORY_LINES = 1000


class LineChat:
    """A chat at a terminal, or over a pipe if `terminal` is False."""

    def __init__(
        self,
        llm: LLM,
        dialogue: Dialogue,
        progress: ProgressLine,
        *,
        terminal: bool,
        stats: bool = False,
        toolbox: Toolbox | None = None,
    ) -> None:
        """`progress`: where prefill progress of answers is shown; `toolbox`: tools that answers may call."""
        self._llm = llm
        self._dialogue = dialogue
        self._progress = progress
        self._terminal = terminal
        self._stats = stats
        self._unsaved = ""
        self._tools: ToolTurns | None = None
        if toolbox is not None:
            from edgeinfer.app.chat.tool_turns import ToolTurns

            self._tools = ToolTurns(toolbox, dialogue, self._print)

    def run(self, question: str = "") -> None:
        """Process turns until the input ends or the user leaves; `question`, if any, is the first turn.

        Raises EdgeInferError if there is no terminal at which the user could correct it.
        """
        facts = self._llm.info
        print_notices(facts.notices)
        if self._terminal:
            approx = "" if facts.approximation.is_exact else f", approximate ({facts.approximation})"
            where = f"{facts.name} on {facts.device}{approx}, {facts.n_context} tokens of context"
            echo(f"{where}. /help shows the commands.")
        if question and self._terminal:
            echo(f"{PROMPT}{question}")
        said = f"/{question}" if question.startswith("/") else question
        for line in chain((said,) if question else (), self._lines()):
            try:
                if not self._take(line):
                    return
            except EngineClosed:
                raise
            except KeyboardInterrupt:  # before the answer began, while an image was read
                if not self._terminal:
                    raise
                self._progress.clear()
                echo("stopped; nothing was answered", err=True)
            except EdgeInferError as error:
                if not self._terminal:
                    raise
                echo(f"error: {error}", err=True)

    def _take(self, line: str) -> bool:
        """Process one line; return whether to continue."""
        if not line.strip():
            return True
        if not is_command(line):
            self._answer(line[1:] if line.startswith("//") else line)
            return True
        outcome = LineCommands(self._dialogue, self._llm.modules).run(line)
        if outcome.text:
            echo(outcome.text, err=not self._terminal)
        if outcome.then is Then.ANSWER:
            self._answer(None)
        return outcome.then is not Then.LEAVE

    def _answer(self, question: str | None) -> None:
        """Answer a question (None: answer the last one again), print the answer and save it even if it was stopped."""
        dialogue, sent = self._dialogue, self._attached(question or "")
        started, before = time.perf_counter(), self._llm.telemetry.weight_reads
        answer, interrupted = self._given(question, sent)
        read, seconds = read_since(before, self._llm.telemetry.weight_reads), time.perf_counter() - started
        stats = answer.stream.stats
        assert stats is not None
        if question is None:
            dialogue.keep_instead(answer)
        else:
            dialogue.keep(question, answer, sent)
        if interrupted and not self._terminal:
            raise KeyboardInterrupt
        print_notices((*stats.notices, *(("stopped; the partial answer is saved",) if interrupted else ())))
        self._tell_unsaved()
        record_speed(self._llm, stats)
        if self._terminal:
            look_once(self._llm)
        if self._stats:
            skipped = skipped_lines(read, self._llm.info.approx)
            for line in (stats_text(stats), *reading_lines(read, seconds), *skipped):
                echo(line, err=True)

    def _attached(self, question: str) -> list[Attachment]:
        """The files and images that a question mentions as @path. Raises EdgeInferError if one cannot be read."""
        found = [attach(path) for path in mentions(question, missing=self._terminal)]
        print_notices(tuple(notice for each in found for notice in each.notices))
        return [attachment for each in found for attachment in each.attachments]

    def _given(self, question: str | None, sent: Sequence[Attachment]) -> tuple[GivenAnswer, bool]:
        """Generate and print an answer: with its calls of tools, and whether it was interrupted."""
        if self._tools is not None:
            return self._tools.answer(question, sent)
        stream = self._dialogue.ask_again() if question is None else self._dialogue.ask(question, sent)
        interrupted = self._print(stream)
        return GivenAnswer(stream, stream.text), interrupted

    def _print(self, stream: TextStream) -> bool:
        return print_answer(stream, progress=self._progress)

    def _tell_unsaved(self) -> None:
        """Report once why the chat cannot be saved."""
        reason = self._dialogue.unsaved
        if reason and reason != self._unsaved:
            print_notices((f"not saved: {reason}",))
        self._unsaved = reason

    def _lines(self) -> Iterator[str]:
        if not self._terminal:
            yield from (line.rstrip("\r\n") for line in sys.stdin or ())
            return
        with line_history(history_path()):
            while True:
                try:
                    line = input(PROMPT)
                except EOFError:
                    echo()
                    return
                except KeyboardInterrupt:
                    echo("\nCtrl-D or /exit leaves.")
                    continue
                yield line


@contextmanager
def saved_chat(beginning: Beginning, system: str | None, *, is_kept: bool) -> Iterator[Chat | None]:
    """The chat to continue, a new one, or None. Raises SessionsFailed if the chat to continue cannot be opened."""
    store = _store(beginning) if is_kept or beginning.continues else None
    if store is None:
        yield None
        return
    with store:
        found = last_chat(store, beginning.system) if beginning.continues else None
        if beginning.continues:
            print_notices((NO_EARLIER if found is None else f"going on with: {found.title}",))
        yield found or Chat(store, system=system)


def _store(beginning: Beginning) -> SessionStore | None:
    """The saved chats; None, with a notice, if they cannot be used and no chat is to be continued."""
    try:
        return SessionStore(default_path())
    except SessionsFailed as reason:
        if beginning.continues and not isinstance(reason, SessionsUnwritable):
            raise
        print_notices((f"this chat is not saved: {reason}",))
        return None


def history_path() -> Path:
    """The file of lines typed in earlier chats."""
    from edgeinfer.models.store_files import default_root

    return default_root().parent / "chat_history"


@contextmanager
def line_history(path: Path) -> Iterator[None]:
    """Line editing with a saved history, where Python has readline; a file that cannot be used is left alone."""
    readline = _readline()
    if readline is None:
        yield
        return
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            readable_folder(path.parent)
            path.touch(mode=0o600)
            readline.write_history_file(path)


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline
