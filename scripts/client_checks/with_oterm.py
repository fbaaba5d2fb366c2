"""oterm, in a terminal that tmux holds: a chat is made by clicks, and what it shows is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from check_parts import QUESTION, run_checks

CALL = "How wet is Rome?"
LONGEST_S = 120.0
TURNING = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
"""Shown in turn while an answer comes."""


class Terminal:
    """A terminal of 120 x 50 cells with a program in it."""

    def __init__(self, command: str) -> None:
        self._tmux = ("tmux", "-L", f"check-{os.getpid()}", "-f", "/dev/null")
        subprocess.run([*self._tmux, "new-session", "-d", "-x", "120", "-y", "50", command], check=True)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=True)

    def lines(self) -> list[str]:
        done = subprocess.run([*self._tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    def type(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def wait_for(self, text: str) -> tuple[int, int]:
        """The place where a text is, as soon as it is there: line and column from 1."""
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            for number, line in enumerate(self.lines(), 1):
                if text in line:
                    return number, line.index(text) + 1
            time.sleep(0.3)
        raise AssertionError(f"no {text!r} in:\n" + "\n".join(self.lines()))

    def click(self, text: str) -> None:
        line, column = self.wait_for(text)
        for end in "Mm":
            self.type("-l", f"\x1b[<0;{column + 1};{line}{end}")
        time.sleep(2)


@contextmanager
def new_chat(address: str, model: str, tool: str = "") -> Iterator[Terminal]:
    """A new chat with a model that oterm lists."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({"splash-screen": False}), encoding="utf-8")
        program = Path(sys.executable).with_name("oterm")
        terminal = Terminal(f"env OLLAMA_URL={address} OTERM_DATA_DIR={folder} {program}")
        try:
            terminal.wait_for("Ctrl+N")
            terminal.type("C-n")
            terminal.click(model)
            terminal.wait_for(f"Model: {model}")
            if tool:
                terminal.click(tool)
            terminal.click("Save")
            terminal.wait_for(f"chat #1 - {model}")
            yield terminal
        finally:
            terminal.close()


def answer_to(terminal: Terminal, question: str) -> list[str]:
    """What is shown of an answer when two looks, two seconds apart, see the same, and nothing turns."""
    terminal.type("-l", question)
    terminal.type("Enter")
    time.sleep(3)
    before: list[str] = []
    while before != (now := terminal.lines()) or any(mark in "".join(now) for mark in TURNING):
        before = now
        time.sleep(2)
    shown = [line.strip() for line in now if line.strip()]
    start = next(number for number, line in enumerate(shown) if question[:20] in line)
    return shown[start : shown.index("❯", start)][:-1]


def streamed(address: str, model: str) -> object:
    with new_chat(address, model) as terminal:
        return answer_to(terminal, QUESTION)


def tools(address: str, model: str) -> object:
    with new_chat(address, model, "date_time") as terminal:
        return answer_to(terminal, CALL)


if __name__ == "__main__":
    run_checks(streamed=streamed, tools=tools)
