"""Every command of the documentation can be parsed by what is there, and runs unless its page says why it does not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

from edgeinfer.app.cli import build_app
from tests.docs.code_blocks import ROOT, Block, Line, blocks, lines_of
from tests.server.conftest import served

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHELL = blocks("sh", "console", "bash")
ADDRESS = "http://127.0.0.1:8080"
ABOUT_SHELLS = {"--install-completion", "--show-completion"}
"""Options of the program itself that act while they are parsed."""


def parse_ours(words: Sequence[str]) -> None:
    """Parse a command line of edgeinfer to its last word, as the program does. Raises or exits for what it refuses."""
    command: Any = typer.main.get_command(build_app())
    if words[:1] and words[0] in ABOUT_SHELLS:
        assert words[0] in [option for each in command.params for option in each.opts]
        return
    name, context, rest = "edgeinfer", None, list(words)
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        arguments = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, rest = command.resolve_command(context, arguments)


def parse_pip(words: Sequence[str]) -> None:
    """What pip is asked for: extras of ours exist."""
    assert words[0] in ("install", "download")
    for word in words[1:]:
        if word.startswith((".[", "edgeinfer[")):
            requirement = Requirement(word.replace(".[", "edgeinfer["))
            assert requirement.extras <= set(PROJECT["optional-dependencies"]), word


def parse_make(words: Sequence[str]) -> None:
    """What make is asked for: targets and variables that the Makefile has."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert re.search(rf"(?m)^{name} \?=" if is_variable else rf"(?m)^{name}:", makefile), word


def parse_python(words: Sequence[str]) -> None:
    """What Python runs: a script or module that is here, and options that its source names."""
    if words[0] == "-m":
        if words[1] == "scripts" or words[1].startswith("scripts."):
            assert (ROOT / f"{words[1].replace('.', '/')}.py").exists(), words[1]
        return
    script = ROOT / words[0]
    if not words[0].startswith(("scripts/", "examples/")):
        return  # a file of the reader's
    assert script.exists(), words[0]
    rooms = [script, *(script.parent / script.stem).glob("*.py"), *script.parent.glob("*.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in rooms)
    for word in words[1:]:
        if word.startswith("--"):
            assert f'"{word.partition("=")[0]}"' in source, f"{words[0]}: {word}"


PARSERS = {
    "edgeinfer": parse_ours,
    "pip": parse_pip,
    "make": parse_make,
    "python": parse_python,
    "python3": parse_python,
}
PLAIN = {"cat", "echo", "curl", "node", "sh"}
"""Programs that are there, of which nothing is known but that."""


LONG = {"bench", "probe", "pull", "serve", "service", "doctor"}
"""Commands that measure, need a network, or run until they are stopped."""
SILENT = {"config", "models", "pack"}
"""Commands that may have nothing to say."""


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_it_can_be_parsed(block: Block) -> None:
    for line in lines_of(block):
        for program, *words in line.programs:
            name = Path(program).name
            assert name in PARSERS or name in PLAIN or block.reason, (
                f"{program} is not known, and the block says nothing"
            )
            if name == "edgeinfer" and words[0] in LONG:
                assert block.reason, f"{words[0]} cannot run, and the block says nothing"
            try:
                PARSERS.get(name, lambda _: None)(words)
            except SystemExit as left:
                pytest.fail(f"edgeinfer {' '.join(words)} exits with {left.code} while it is parsed")


RUN = [block for block in SHELL if block.reason is None and "make " not in block.text]


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_it_runs(block: Block, desk: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(block)
    if any(program[0] == "curl" for line in lines for program in line.programs):
        with served(stand_in) as running:
            for line in lines:
                run_curl(line, running.url)
        return
    for line in lines:
        for name, value in line.environment:
            monkeypatch.setenv(name, value)
        run_ours(line, desk)


def run_ours(line: Line, desk: Path) -> None:
    """Run a line of edgeinfer, with what comes before it as its standard input."""
    given = b""
    for program, *words in line.programs:
        if program == "echo":
            given = " ".join(words).encode() + b"\n"
        elif program == "cat":
            given = b"".join((desk / word).read_bytes() for word in words)
        else:
            assert program == "edgeinfer", program
            result = CliRunner().invoke(build_app(), words, input=given)
            assert result.exit_code == 0, (words, result.output, result.exception)
            given = result.stdout_bytes
            assert given.strip() or result.stderr or words[0] in SILENT or "--out" in words
    if line.output is not None:
        (desk / line.output).write_bytes(given)
        assert given.strip()


def run_curl(line: Line, url: str) -> None:
    """Ask a server of ours what the page asks."""
    ((_, *words),) = line.programs
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    command = ["curl", "--silent", "--fail", *(word.replace(ADDRESS, url) for word in words)]
    answer = subprocess.run(command, capture_output=True, check=True, env=dict(os.environ), timeout=60)
    assert answer.stdout.strip()


def test_there_is_something_to_run() -> None:
    assert len(SHELL) >= 60
    assert len(RUN) >= 15
