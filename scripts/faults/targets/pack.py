"""Packing: under the final name is a whole bundle file or none; the next pack resumes, and its bytes are the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from campaign import python, starter
from homes import Home
from processes import Running

from edgeinfer.offload.bundle_file import PART_SUFFIX, SUFFIX


class Target:
    """The bundle file of a model."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home, self._model = home, model or starter()
        self._expected = ""
        self.life_s = 0.0

    def prepare(self) -> None:
        running = self.start()
        code = running.wait()
        self.life_s = running.passed_s()
        self._expected = self._digest()
        if code or not self._expected:
            raise SystemExit(f"the undisturbed pack failed: {running.text}")

    def start(self) -> Running:
        self._home.empty()
        return self._begun("pack")

    def _begun(self, run: str, *more: str) -> Running:
        command = python("pack", str(self._model), *more)
        return Running(command, self._home.environment(run), self._home.folder)

    def _files(self, suffix: str) -> list[Path]:
        return list((self._home.data / "bundles").glob(f"*{suffix}"))

    def _digest(self) -> str:
        return " ".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in self._files(SUFFIX))

    def has_written(self) -> bool:
        return bool(self._files(PART_SUFFIX) or self._files(SUFFIX))

    def judge(self, running: Running) -> list[str]:
        problems = []
        if self._files(SUFFIX) and self._digest() != self._expected:
            problems.append("a file under the final name is not whole")
        again = self._begun("again")
        if code := again.wait():
            problems.append(f"the next pack ends with {code}: {again.text[-300:]}")
        return problems + self._whole()

    def finish(self, running: Running) -> list[str]:
        code = running.wait()
        return ([f"the pack ends with {code}: {running.text[-300:]}"] if code else []) + self._whole()

    def _whole(self) -> list[str]:
        problems = [f"{path.name} is left" for path in self._files(PART_SUFFIX)]
        return problems if self._digest() == self._expected else [*problems, "the bundle file has other bytes"]
