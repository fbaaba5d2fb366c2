"""Ctrl-C at any moment of a command: exit code 130, and nothing printed but that it was interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED_AT = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
sys.argv[0] = "edgeinfer"
runpy.run_module("edgeinfer", run_name="__main__")
"""


def interrupted_at(module: str, arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    """A command that gets an interrupt when it imports a module."""
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, module, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "EDGEINFER_HOME": str(home)},
    )


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("edgeinfer.app", ""),
        ("edgeinfer.app.cli", ""),
        ("typer", ""),
        ("edgeinfer.app.commands.run", ""),
        ("edgeinfer.app.opening.loading", "interrupted\n"),
        ("numpy", ""),  # where the name of a device is looked up
        ("tokenizers", "interrupted\n"),
        ("jinja2", "interrupted\n"),
    ],
)
def test_an_import_is_interrupted_quietly(home: Path, tiny_model: Path, module: str, says: str) -> None:
    arguments = ["run", "-m", str(tiny_model), "--device", "reference", "--ctx", "60000", "the rain"]
    done = interrupted_at(module, arguments, home)
    said = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("note: "))
    assert (done.returncode, said) == (130, says)


def test_little_is_imported_before_interrupts_are_quiet() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules); import edgeinfer.interrupts;"
        "print(*sorted(set(sys.modules) - before - {'os', 'os.path', 'posixpath', 'genericpath', 'stat', '_stat'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= {"__future__", "_collections_abc", "edgeinfer", "edgeinfer.interrupts"}


def test_the_program_begins_with_the_module_that_makes_interrupts_quiet() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["scripts"] == {"edgeinfer": "edgeinfer.__main__:main"}


def test_interrupts_that_are_ignored_stay_so(home: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import edgeinfer.__main__ as program;"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
