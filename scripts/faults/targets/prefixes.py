"""Prefixes saved on disk: after any kill the same question has the same answer, from whatever was saved."""

from __future__ import annotations

import re
from pathlib import Path

from campaign import python, starter
from homes import Home
from processes import Running

from edgeinfer.engine.prefixes.folders import CHECKPOINT, PAGES

TEXT = "The keeper climbs the stairs of the lighthouse in fog, lights the lamp, and counts the ships that pass. "

STEP = re.compile(r"[a-z ]+: \d+ of \d+|[a-z ]+, \d+ (?:s|min)$")
"""A line of progress."""


class Target:
    """A long text and a short answer; the pages of the text are saved at the end of the run."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home, self._model = home, model or starter()
        self._text = home.folder / "text.md"
        self._expected = ""
        self.life_s = 0.0

    def prepare(self) -> None:
        self._text.write_text("\n".join(f"{number}. {TEXT}" for number in range(9)))
        self._home.empty()
        plain = self._begun("plain", "--no-prefix-cache")
        if plain.wait():
            raise SystemExit(f"the run without saved prefixes failed: {plain.text}")
        self._expected = _answer(plain)
        running = self.start()
        running.wait()
        self.life_s = running.passed_s()
        if _answer(running) != self._expected:
            raise SystemExit(f"the undisturbed run gave {running.text!r}, and without saved prefixes {plain.text!r}")
        if not self.has_written():
            raise SystemExit(f"the undisturbed run saved no prefix: {running.text}")

    def start(self) -> Running:
        self._home.empty()
        return self._begun("prefixes")

    def _begun(self, run: str, *more: str) -> Running:
        question = ("-f", str(self._text), "Who lights the lamp? Tell it in a sentence.")
        options = ("-m", str(self._model), "--temp", "0", "--max-tokens", "12", "--ctx", "2048")
        return Running(python("run", *question, *options, *more), self._home.environment(run), self._home.folder)

    def has_written(self) -> bool:
        folder = self._home.data / "prefixes"
        return folder.is_dir() and any(path.is_file() for path in folder.rglob("*"))

    def judge(self, running: Running) -> list[str]:
        problems = []
        for run in ("first", "second"):
            again = self._begun(run)
            code = again.wait()
            if code or _answer(again) != self._expected:
                problems.append(f"the {run} run after it ends with {code} and differs: {again.text[-300:]!r}")
        n_files = [path.suffix in (PAGES, CHECKPOINT) for path in (self._home.data / "prefixes").rglob("*.*")]
        return problems if any(n_files) else [*problems, "two runs after it have saved no prefix"]

    def finish(self, running: Running) -> list[str]:
        code = running.wait()
        return [] if not code and _answer(running) == self._expected else [f"ends with {code}: {running.text[-300:]!r}"]


def _answer(running: Running) -> str:
    """What it wrote but for the lines of progress, which come where a step takes long."""
    return "".join(line for line in running.text.splitlines(keepends=True) if not STEP.match(line))
