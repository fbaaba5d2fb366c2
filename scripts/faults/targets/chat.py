"""The terminal app amid an answer: the chat opens again, has lost at most a second of text, and doubles nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from campaign import python, starter
from homes import Home
from processes import ESCAPE, OPENING_S, QUIT, Running

QUESTION = "Write a long story about a lighthouse keeper and a storm."
MOST_TOKENS = 160
LOST_S = 1.0
"""Text that was shown earlier than this before a kill must be saved."""
TOGETHER = 4
"""So many words in a row must be on the screen to count as shown; fewer may stand elsewhere."""


class Target:
    """A question on the command line of the app, in a terminal."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home, self._model = home, model or starter()
        self._path = home.data / "chats.db"
        self._expected = ""
        self.life_s = 0.0

    def prepare(self) -> None:
        running = self.start()
        running.until(lambda: self._is_finished(), 900)
        self.life_s = running.passed_s()
        running.send(QUIT)
        code = running.wait(120)
        messages = self._messages()
        if code or [state for _, _, state in messages[1:]] not in (["whole"], ["cut"]):
            raise SystemExit(f"the undisturbed chat failed with {code}: {messages} {running.text[-2000:]}")
        self._expected = messages[1][1]

    def _is_finished(self) -> bool:
        return any(role == "assistant" and state != "writing" for role, _, state in self._messages())

    def start(self) -> Running:
        self._home.empty()
        return self._begun("chat", QUESTION)

    def _begun(self, run: str, *question: str) -> Running:
        options = ("-m", str(self._model), "--temp", "0", "--max-tokens", str(MOST_TOKENS))
        command = python("chat", *options, "--ctx", "1024", *question)
        return Running(command, self._home.environment(run), self._home.folder, terminal=True)

    def _messages(self) -> list[tuple[str, str, str]]:
        """Role, text and state of all messages, read beside the app."""
        if not self._path.exists():
            return []
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10)) as database:
            try:
                return database.execute("SELECT role, text, state FROM messages ORDER BY number").fetchall()
            except sqlite3.OperationalError as reason:
                if "no such table" in str(reason):
                    return []
                raise

    def has_written(self) -> bool:
        return any(role == "assistant" and text for role, text, _ in self._messages())

    def judge(self, running: Running) -> list[str]:
        shown = self._shown(running, running.killed_s - LOST_S)
        again = self._begun("again", "-c")
        opened = again.until(lambda: again.pid in self._home.opened(), OPENING_S)
        again.send(QUIT)
        problems = [] if opened else [f"opened again, the app opens no model: {again.text[-300:]!r}"]
        if code := again.wait(120):
            problems.append(f"opened again, the app ends with {code}: {again.text[-300:]!r}")
        return problems + self._kept(shown)

    def _kept(self, shown: str) -> list[str]:
        """What is wrong with the saved chat. `shown`: beginning of the answer that must be there."""
        problems = []
        with closing(sqlite3.connect(self._path)) as database:
            if (found := database.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
                problems.append(f"integrity_check: {found}")
            (n_chats,) = database.execute("SELECT count(*) FROM sessions").fetchone()
        messages = self._messages()
        if n_chats > 1 or [role for role, _, _ in messages] not in ([], ["user", "assistant"]):
            problems.append(f"{n_chats} chats and the messages {messages}")
        if messages and messages[0][1] != QUESTION:
            problems.append(f"the question is {messages[0][1]!r}")
        text = messages[1][1] if len(messages) > 1 else ""
        if not self._expected.startswith(text):
            problems.append(f"the saved answer is another one: {text[-100:]!r}")
        if len(text.split()) < len(shown.split()):
            problems.append(f"{len(shown) - len(text)} characters shown over {LOST_S:g} s before are lost: {shown!r}")
        if any(state == "writing" for _, _, state in messages):
            problems.append("an answer is still being written, for the app")
        return problems

    def _shown(self, running: Running, until_s: float) -> str:
        """The beginning of the answer that the screen had shown by then."""
        data = b"".join(part for at_s, part in running.output if at_s <= until_s)
        seen = " ".join(ESCAPE.sub(b" ", data).decode(errors="replace").split())
        words, known = self._expected.split(), {" ".join(QUESTION.split()[n : n + TOGETHER]) for n in range(20)}
        n_shown = 0
        for n in range(TOGETHER, len(words) + 1):
            together = " ".join(words[n - TOGETHER : n])
            if together not in known and together in seen:
                n_shown = n
            known.add(together)  # what is repeated later was shown here
        return " ".join(words[:n_shown])

    def finish(self, running: Running) -> list[str]:
        running.until(self._is_finished, 120)
        running.send(QUIT)
        code = running.wait(120)
        problems = [f"the app ends with {code}"] if code else []
        return problems + self._kept(self._expected)
