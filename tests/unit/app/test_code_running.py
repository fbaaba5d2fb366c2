"""Running code blocks: what runs which language, output as it comes, stopping, and what cannot be started."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from edgeinfer.app.chat import code_running
from edgeinfer.app.chat.code_running import CodeCommand, RunningCode, interpreter
from edgeinfer.errors import EdgeInferError

PYTHON = CodeCommand((sys.executable, "-"))
posix_only = pytest.mark.skipif(os.name != "posix", reason="signals and sh")


def ran(command: CodeCommand, text: str) -> RunningCode:
    running = RunningCode(command, text)
    asyncio.run(running.run(lambda: None))
    return running


def test_python_is_run_by_this_python() -> None:
    assert interpreter("Python") == interpreter("py") == PYTHON
    assert PYTHON.shown == f"{os.path.basename(sys.executable)} -"


@pytest.mark.parametrize(
    ("language", "said"),
    [("", "does not name its language"), ("cobol", "nothing here runs 'cobol'")],
    ids=["unnamed", "unknown"],
)
def test_what_cannot_be_run_says_what_would_work(language: str, said: str) -> None:
    with pytest.raises(EdgeInferError, match=said) as caught:
        interpreter(language)
    assert "/pipe" in str(caught.value)


def test_an_interpreter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_running.shutil, "which", lambda name: None)
    with pytest.raises(EdgeInferError, match="node is not installed"):
        interpreter("js")


def test_output_and_errors_come_together_with_the_code() -> None:
    running = ran(PYTHON, "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)\nsys.exit(3)\n")
    assert running.output.split() == ["out", "err"]
    assert running.code == 3


@posix_only
@pytest.mark.parametrize(
    ("line", "text", "output"),
    [("wc -l", "a\nb\n", "2"), ("tr a-z A-Z | cat", "grüße\n", "GR"), ("true", "x" * 1_000_000, "")],
    ids=["count", "pipe of a shell", "does not read"],
)
def test_a_text_is_piped_into_a_command_of_the_shell(line: str, text: str, output: str) -> None:
    running = ran(CodeCommand(line=line), text)
    assert running.output.strip().startswith(output)
    assert running.code == 0


def test_long_output_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_running, "OUTPUT_CAP", 1000)
    running = ran(PYTHON, "print('é' * 100_000)")
    assert running.output == "é" * 1000
    assert running.is_cut
    assert running.code == 0


@posix_only
def test_stopping_ends_what_it_has_started(tmp_path: Path) -> None:
    running = RunningCode(CodeCommand(line="sleep 600 & echo $!; wait"), "")

    async def stopped() -> None:
        begun = asyncio.Event()
        work = asyncio.create_task(running.run(begun.set))
        await begun.wait()
        await running.stop()
        await work

    asyncio.run(stopped())
    assert running.was_stopped
    assert running.code != 0
    child = int(running.output.split()[0])
    ends = time.monotonic() + 10
    while _is_running(child) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not _is_running(child)


def test_what_is_stopped_before_it_starts_does_not_go_on() -> None:
    running = RunningCode(PYTHON, "import time; time.sleep(600)")

    async def stopped() -> None:
        await running.stop()
        await running.run(lambda: None)

    asyncio.run(stopped())
    assert running.was_stopped
    assert running.code is not None


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return status != "Z"


def test_a_command_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(EdgeInferError, match="cannot be started"):
        ran(CodeCommand(("/nowhere/at-all",)), "")
