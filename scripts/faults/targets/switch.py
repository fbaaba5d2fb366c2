"""A server that unloads one model for another, each in a process of its own: nothing of it is left after a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from campaign import python, starter
from clients import BROKEN, Clients, call, free_port, is_ready
from homes import Home
from processes import OPENING_S, Running

NAMES = ("one", "two")


class Target:
    """A client that asks one model and then the other, of which one at a time is loaded."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home, self._model, self._port = home, model or starter(), free_port()
        self._answers: list[object] = []
        self._expected: list[object] = []
        self._clients = Clients(self._port)
        self.life_s = 0.0

    def prepare(self) -> None:
        running = self.start()
        running.until(self._clients.are_done, 900)
        self.life_s, self._expected = running.passed_s(), self._answers
        problems = self._ended(running)
        is_answered = [type(each) for each in self._expected] == [str] * (2 * len(NAMES))
        if problems or not is_answered:
            raise SystemExit(f"the undisturbed server failed: {problems} {self._expected} {running.text[-2000:]}")

    def start(self) -> Running:
        self._home.empty()
        (self._home.data / "models").mkdir()
        for name in NAMES:
            os.symlink(self._model, self._home.data / "models" / f"{name}.gguf")
        running = self._begun("switch")
        self._clients, self._answers = Clients(self._port), []
        self._clients.add(self._ask)
        return running

    def _begun(self, run: str) -> Running:
        options = ("--port", str(self._port), "--ctx", "512", "--most-models", "1", "--isolate")
        command = python("serve", "-m", NAMES[0], *options)
        return Running(command, self._home.environment(run), self._home.folder)

    def _ask(self) -> None:
        try:
            for name in NAMES * 2:
                self._answers.append(self._answer(name))
        except BROKEN:
            return

    def _answer(self, name: str) -> object:
        messages = [{"role": "user", "content": "Say the name of a bird."}]
        body = {"model": name, "messages": messages, "temperature": 0, "max_tokens": 6}
        status, record = call(self._port, "POST", "/v1/chat/completions", body)
        return record["choices"][0]["message"]["content"] if status == 200 else (status, record)

    def has_written(self) -> bool:
        return bool(self._answers)

    def judge(self, running: Running) -> list[str]:
        again = self._begun("again")
        self._clients.end()
        if not again.until(lambda: is_ready(self._port), OPENING_S):
            return [f"not ready on its port: {again.text[-300:]}", *self._ended(again)]
        found = [self._answer(name) for name in NAMES]
        problems = [] if found == self._expected[: len(NAMES)] else [f"other answers: {found}"]
        return problems + self._ended(again)

    def finish(self, running: Running) -> list[str]:
        running.until(self._clients.are_done, 300)
        problems = [] if self._answers == self._expected else [f"other answers: {self._answers}"]
        return problems + self._ended(running)

    def _ended(self, running: Running) -> list[str]:
        running.signal(signal.SIGTERM, only_parent=True)
        code = running.wait(120)
        return [f"the server ends with {code}: {running.text[-300:]}"] if code else []
