"""What commands of the documentation find: a home of their own with a model in it, and files of common names."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from tests.conftest import write_tiny_llama

STARTER = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROSE = "The harbour has three lights. The first is red. The second is green. The keeper counts ships by night.\n"
FILES = {
    "report.txt": PROSE * 3,
    "report.md": "# Lights\n\n" + PROSE * 3,
    "book.txt": PROSE * 60,
    "notes/first.txt": PROSE,
    "questions.txt": "Name a fruit.\nName a colour.\n",
    "jobs.jsonl": '{"prompt": "Name a fruit.", "temp": 0}\n{"prompt": "Name a colour."}\n',
    "lines.txt": "one\ntwo\n",
    "a.txt": PROSE,
    "b.txt": PROSE.replace("three", "four"),
    "test.py": "import sys\n\nsys.stdin.read()\n",
}
MODELS = ("model.gguf", "large.gguf", "1b-q4_0.gguf")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model under the starter model's name, with as much context."""
    return write_tiny_llama(tmp_path_factory.mktemp("stand-in") / STARTER, context=8192)


@pytest.fixture
def desk(stand_in: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a reader stands: short answers by the cpu, and nothing outside of it is written."""
    kernels = Path(platformdirs.user_cache_dir("edgeinfer")) / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    folder = tmp_path / "desk"
    (home / "models").mkdir(parents=True)
    (home / "models" / STARTER).symlink_to(stand_in)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name in MODELS:
        (folder / name).symlink_to(stand_in)
    cache = tmp_path / "cache"
    (cache / "edgeinfer").mkdir(parents=True)
    (cache / "edgeinfer" / "kernels").symlink_to(kernels)
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path / "config"))
    monkeypatch.setenv("EDGEINFER_MAX_TOKENS", "4")
    monkeypatch.setenv("EDGEINFER_DEVICE", "cpu")  # nothing is compared
    monkeypatch.chdir(folder)
    return folder
