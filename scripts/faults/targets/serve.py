"""A server amid streams and saved slots: started again at once it answers, and slots are whole or absent."""

from __future__ import annotations

import signal
from pathlib import Path

from campaign import python, starter
from clients import BROKEN, Clients, Streamed, call, free_port, is_ready, stream
from homes import Home
from processes import OPENING_S, Running

from edgeinfer.temporary import OWNED

QUESTIONS = ("Write a story about a storm.", "Explain how a lighthouse works.")
MOST_TOKENS = 60
IDENTITY = "kept"


class Target:
    """Two streams, one of which is kept, and a client that saves a slot again and again."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home, self._model, self._port = home, model or starter(), free_port()
        self._slots = home.data / "slots"
        self._expected: list[str] = []
        self._streams: list[Streamed] = []
        self._clients = Clients(self._port)
        self.life_s = 0.0

    def prepare(self) -> None:
        running = self.start()
        running.until(self._clients.are_done, 900)
        self.life_s = running.passed_s()
        self._expected = [each.text for each in self._streams]
        problems = self._ended(running)
        if problems or not all(each.is_whole and each.text for each in self._streams) or not self.has_written():
            raise SystemExit(f"the undisturbed server failed: {problems} {self._streams} {running.text[-2000:]}")

    def start(self) -> Running:
        self._home.empty()
        self._slots.mkdir()
        running = self._begun("serve")
        self._clients, self._streams = Clients(self._port), [Streamed() for _ in QUESTIONS]
        for question, into, identity in zip(QUESTIONS, self._streams, (IDENTITY, ""), strict=True):
            body = self._body(question)
            self._clients.add(lambda body=body, into=into, identity=identity: stream(self._port, body, into, identity))
        self._clients.add(self._save_slots)
        return running

    def _begun(self, run: str) -> Running:
        options = ("--port", str(self._port), "--ctx", "1024", "--slot-save-path", str(self._slots))
        command = python("serve", "-m", str(self._model), *options)
        return Running(command, self._home.environment(run), self._home.folder)

    def _body(self, question: str, most: int = MOST_TOKENS) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": most}

    def _save_slots(self) -> None:
        try:
            call(self._port, "POST", "/v1/chat/completions", {**self._body("Say yes.", 4), "id_slot": 5})
            for number in range(12):
                call(self._port, "POST", "/slots/5?action=save", {"filename": f"slot-{number % 3}"})
        except BROKEN:
            return

    def has_written(self) -> bool:
        return self._slots.is_dir() and any(self._slots.iterdir())

    def judge(self, running: Running) -> list[str]:
        again = self._begun("again")
        self._clients.end()
        problems = [
            f"a stream that was cut looks whole: {each.text[-50:]!r}"
            for each, expected in zip(self._streams, self._expected, strict=True)
            if not expected.startswith(each.text) or (each.is_whole and each.text != expected)
        ]
        if not again.until(lambda: is_ready(self._port), OPENING_S):
            return [*problems, f"not ready on its port: {again.text[-300:]}", *self._ended(again)]
        problems += self._slots_read()
        if (status := call(self._port, "GET", f"/v1/stream?id={IDENTITY}")[0]) < 400:
            problems.append(f"a stream of the killed server is there: {status}")
        answered = stream(self._port, self._body(QUESTIONS[0]), Streamed())
        if not answered.is_whole or answered.text != self._expected[0]:
            problems.append(f"the answer is another one: {answered}")
        return problems + self._ended(again)

    def _slots_read(self) -> list[str]:
        problems = []
        for path in self._slots.iterdir():
            if OWNED.search(path.name):
                continue
            status, record = call(self._port, "POST", "/slots/5?action=restore", {"filename": path.name})
            if status != 200 or not record["n_restored"]:
                problems.append(f"{path.name} is not whole: {status} {record}")
        return problems

    def finish(self, running: Running) -> list[str]:
        running.until(self._clients.are_done, 300)
        problems = [
            f"a stream ends otherwise: {each}"
            for each, expected in zip(self._streams, self._expected, strict=True)
            if not each.is_whole or each.text != expected or each.failure
        ]
        return problems + self._slots_read() + self._ended(running)

    def _ended(self, running: Running) -> list[str]:
        """End a server as a user does."""
        running.signal(signal.SIGTERM, only_parent=True)
        code = running.wait(120)
        return [f"the server ends with {code}: {running.text[-300:]}"] if code else []
