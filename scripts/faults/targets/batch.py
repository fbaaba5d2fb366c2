"""A batch that appends its answers to a file: resumed, it has one answer a line, those of an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

from campaign import python, starter
from homes import Home
from processes import Running

ASKED = ("a sea", "a fox", "rain", "tea", "a clock", "sleep", "bread", "a song")


class Target:
    """Eight questions, four at a time."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home, self._model = home, model or starter()
        self._asked = home.folder / "asked.jsonl"
        self._out = home.data / "answers.jsonl"
        self._expected: dict[int, object] = {}
        self.life_s = 0.0

    def prepare(self) -> None:
        lines = [json.dumps({"prompt": f"What is {name}?", "max_tokens": 4 + 2 * n}) for n, name in enumerate(ASKED)]
        self._asked.write_text("\n".join(lines))
        running = self.start()
        code = running.wait()
        self.life_s = running.passed_s()
        self._expected, problems = self._answers()
        if code or problems or len(self._expected) != len(ASKED):
            raise SystemExit(f"the undisturbed batch failed: {running.text[-2000:]} {problems}")

    def start(self) -> Running:
        self._home.empty()
        return self._begun("batch")

    def _begun(self, run: str) -> Running:
        command = python("batch", str(self._asked), "-m", str(self._model), "--out", str(self._out))
        options = ("--temp", "0", "--parallel", "4", "--ctx", "1024")
        return Running([*command, *options], self._home.environment(run), self._home.folder)

    def has_written(self) -> bool:
        return self._out.exists() and self._out.stat().st_size > 0

    def judge(self, running: Running) -> list[str]:
        before = self._out.read_bytes() if self._out.exists() else b""
        again = self._begun("resumed")
        code = again.wait()
        if code:
            return [f"the resumed batch ends with {code}: {again.text[-300:]}"]
        whole = before[: before.rfind(b"\n") + 1]
        problems = [] if self._out.read_bytes().startswith(whole) else ["answers that were whole were changed"]
        return problems + self._compared()

    def finish(self, running: Running) -> list[str]:
        code = running.wait()
        return [f"the batch ends with {code}: {running.text[-300:]}"] if code else self._compared()

    def _compared(self) -> list[str]:
        answers, problems = self._answers()
        if answers != self._expected:
            wrong = [n for n in range(len(ASKED)) if answers.get(n) != self._expected[n]]
            problems.append(f"answers of lines {wrong} differ from those of an undisturbed run")
        return problems

    def _answers(self) -> tuple[dict[int, object], list[str]]:
        """What the file answers, by line; a line that is answered twice, or is none of JSON, is a problem."""
        found: dict[int, object] = {}
        problems = []
        for line in self._out.read_text().splitlines() if self._out.exists() else []:
            record = json.loads(line)
            if record["index"] in found:
                problems.append(f"line {record['index']} is answered twice")
            found[record["index"]] = [record["text"], record["tokens"], record["finish_reason"]]
        return found, problems
