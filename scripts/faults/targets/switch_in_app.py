"""The terminal app that opens one model beside or instead of another, each in a process of its own."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

from campaign import python, starter
from homes import Home
from processes import OPENING_S, Running

NAMES = ("two", "one")
QUIT = b"\x11"


class Target:
    """Somebody who types /model NAME as soon as the model before is open."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home, self._model = home, model or starter()
        self._opened: list[str] = []
        self._typist = threading.Thread()
        self._took_s = 0.0
        self.life_s = 0.0

    def prepare(self) -> None:
        running = self.start()
        problems = self.finish(running)
        self.life_s = self._took_s
        if problems:
            raise SystemExit(f"the undisturbed switches failed: {problems} {running.text[-2000:]}")

    def start(self) -> Running:
        self._home.empty()
        (self._home.data / "models").mkdir()
        for name in NAMES:
            os.symlink(self._model, self._home.data / "models" / f"{name}.gguf")
        running = self._begun("app")
        self._opened, self._took_s = [], 0.0
        self._typist = threading.Thread(target=self._type, args=(running,), daemon=True)
        self._typist.start()
        return running

    def _begun(self, run: str) -> Running:
        command = python("chat", "-m", NAMES[-1], "--ctx", "512", "--isolate")
        return Running(command, self._home.environment(run), self._home.folder, terminal=True)

    def _type(self, running: Running) -> None:
        if not running.until(lambda: self._is_open(NAMES[-1]), 900):
            return
        for name in NAMES:
            running.send(f"/model {name}\r".encode())
            if not running.until(lambda name=name: self._is_open(name), 120):
                return
            self._opened.append(name)
        self._took_s = running.passed_s()

    def _is_open(self, name: str) -> bool:
        """Whether a model alone is open, by the app's own notes."""
        notes = []
        for path in (self._home.data / "running").glob("*.process"):
            try:
                notes.append(json.loads(path.read_text()))
            except (OSError, ValueError):
                return False
        return [(note.get("model"), note.get("loading")) for note in notes] == [(name, False)]

    def has_written(self) -> bool:
        return bool(self._opened) or any((self._home.data / "running").glob("*"))

    def judge(self, running: Running) -> list[str]:
        self._typist.join(10)
        again = self._begun("again")
        is_open = again.until(lambda: self._is_open(NAMES[-1]), OPENING_S)
        problems = [] if is_open else [f"the model does not open: {again.text[-300:]!r}"]
        return problems + self._left(again)

    def finish(self, running: Running) -> list[str]:
        self._typist.join(300)
        problems = [] if self._opened == list(NAMES) else [f"only {self._opened} were opened"]
        return problems + self._left(running)

    def _left(self, running: Running) -> list[str]:
        """Leave the app as a user does."""
        ends = time.monotonic() + 120
        while not running.has_ended and time.monotonic() < ends:
            running.send(QUIT)
            time.sleep(0.3)
        code = running.wait(1)
        return [f"the app ends with {code}: {running.text[-300:]!r}"] if code else []
