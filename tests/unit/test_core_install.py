"""The package without the extra `app`: the library works, and the command line says what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
APP_PACKAGES = [re.split(r"[^\w-]", needed)[0] for needed in EXTRAS["app"]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which no process finds the packages of the app."""
    for name in APP_PACKAGES:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name={name!r})\n")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def test_a_model_answers(tiny_model: Path, environ: dict[str, str]) -> None:
    code = f"""
import edgeinfer
with edgeinfer.load({str(tiny_model)!r}, device="cpu", n_context=128, spec="on", ram_bytes="50%") as llm:
    stream = llm.chat([{{"role": "user", "content": "Hi"}}], max_tokens=8)
    stream.read()
    print(stream.stats.n_generated > 0, llm.info.notices[0].startswith("weights may take 50% of available memory"))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    assert (ran.returncode, ran.stdout.split()) == (0, ["True", "True"]), ran.stderr


def test_the_command_line_says_what_to_install(environ: dict[str, str]) -> None:
    command = [sys.executable, "-m", "edgeinfer", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    said = "error: the command line needs typer: pip install 'edgeinfer[app]'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", said)
