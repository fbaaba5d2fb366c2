"""Runs a code block, or pipes it into a command, in a process of its own; asks nobody, so ask the user before.

In: a command, a text for its standard input. Out: its output as it comes, its exit code. Stopping ends the process and
all that it has started. Which language is run by what is a table of interpreters that read programs from a pipe.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from edgeinfer.errors import EdgeInferError

OUTPUT_CAP = 200_000
"""Characters of output that are kept; the rest is read and dropped."""
CHUNK_BYTES = 8192
PATIENCE_S = 2.0
"""Seconds that a stopped process has to end by itself."""
STARTED_APART = os.name == "posix"
"""Whether processes get a session of their own, so that stopping reaches what they started."""
_SHELL_WORDS = ("/bin/sh", "-c") if STARTED_APART else (os.environ.get("COMSPEC", "cmd"), "/c")
"""What runs a line for a shell."""
_SHELL = (("bash", "-s"), ("sh", "-s"))
_POWERSHELL = (("pwsh", "-NoProfile", "-Command", "-"), ("powershell", "-NoProfile", "-Command", "-"))
INTERPRETERS = MappingProxyType(
    {
        "python": ((sys.executable, "-"), ("python3", "-")),
        "bash": _SHELL,
        "sh": (("sh", "-s"),),
        "zsh": (("zsh", "-s"),),
        "fish": (("fish", "-"),),
        "powershell": _POWERSHELL,
        "javascript": (("node", "-"),),
        "ruby": (("ruby", "-"),),
        "perl": (("perl", "-"),),
        "lua": (("lua", "-"),),
        "php": (("php",),),
        "r": (("Rscript", "-"),),
        "awk": (("awk", "-f", "-"),),
    }
)
"""Commands that run a language, the first that is installed counts."""
OTHER_NAMES = MappingProxyType(
    {"py": "python", "python3": "python", "shell": "sh", "console": "sh", "js": "javascript", "node": "javascript",
     "rb": "ruby", "pl": "perl", "ps1": "powershell", "pwsh": "powershell"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CodeCommand:
    """A command that gets a code block on its standard input. `line`: for a shell; else `words` are run as they are."""

    words: tuple[str, ...] = ()
    line: str = ""

    @property
    def shown(self) -> str:
        """The command for people."""
        return self.line or " ".join((os.path.basename(self.words[0]), *self.words[1:]))


def interpreter(language: str) -> CodeCommand:
    """What runs a language. Raises EdgeInferError, saying what would work, if nothing here does."""
    name = language.lower()
    name = OTHER_NAMES.get(name, name)
    commands = INTERPRETERS.get(name, ())
    for words in commands:
        if shutil.which(words[0]) is not None:
            return CodeCommand(words)
    if commands:
        raise EdgeInferError(f"{commands[-1][0]} is not installed, which runs {name}; /pipe COMMAND takes another one")
    said = f"nothing here runs {language[:30]!r}" if language else "the code block does not name its language"
    raise EdgeInferError(f"{said}; /pipe COMMAND pipes it into a command, such as /pipe python3 -")


@dataclass(slots=True)
class RunningCode:
    """One run. `output` grows until `code` is set; `is_cut`: there was more of it."""

    command: CodeCommand
    text: str
    output: str = ""
    code: int | None = None
    is_cut: bool = False
    was_stopped: bool = False
    _process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    async def run(self, changed: Callable[[], object]) -> None:
        """Run to the end. `changed` is called whenever there is more output. Raises EdgeInferError."""
        try:
            words = (*_SHELL_WORDS, self.command.line) if self.command.line else self.command.words
            make = asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=STARTED_APART,
            )
            self._process = process = await make
        except (OSError, ValueError) as error:
            raise EdgeInferError(f"{self.command.shown} cannot be started: {error}") from None
        if self.was_stopped:  # before it had begun
            self._kill(process, is_hard=True)
        try:
            await asyncio.gather(self._write(process), self._read(process, changed))
            self.code = await process.wait()
        finally:
            if process.returncode is None:
                self._kill(process, is_hard=True)

    async def stop(self) -> None:
        """End the process and what it has started."""
        process = self._process
        if process is not None and process.returncode is not None:
            return
        self.was_stopped = True
        if process is None:
            return
        self._kill(process, is_hard=False)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), PATIENCE_S)
        self._kill(process, is_hard=True)

    async def _write(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # it needs no more
            process.stdin.write(self.text.encode("utf-8", "replace"))
            await process.stdin.drain()
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.close()
            await process.stdin.wait_closed()

    async def _read(self, process: asyncio.subprocess.Process, changed: Callable[[], object]) -> None:
        assert process.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await process.stdout.read(CHUNK_BYTES):
            text = self.output + decoder.decode(data)
            self.output, self.is_cut = text[:OUTPUT_CAP], self.is_cut or len(text) > OUTPUT_CAP
            changed()
        self.output = (self.output + decoder.decode(b"", final=True))[:OUTPUT_CAP]

    def _kill(self, process: asyncio.subprocess.Process, *, is_hard: bool) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform != "win32":
                os.killpg(process.pid, signal.SIGKILL if is_hard else signal.SIGTERM)
            elif process.returncode is None:
                process.kill()
