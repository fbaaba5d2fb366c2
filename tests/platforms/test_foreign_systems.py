"""edgeinfer as Windows and macOS would run it: every module is imported, commands and the tests of some rooms run.

The other system is played by this one (`foreign_system`), so these tests are run on Linux alone.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import edgeinfer
from tests.platforms.foreign_system import ROOT, is_missing, missing_names

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are played by Linux")
both = pytest.mark.parametrize("platform", ["win32", "darwin"])
ROOMS = (
    "tests/unit/models/test_store.py",
    "tests/unit/models/test_store_url.py",
    "tests/unit/engine/prefixes/test_prefix_store.py",
    "tests/unit/offload",
    "tests/unit/ipc",
    "tests/app/test_cli_pack.py",
)
"""Tests that speak of nothing that only one system has."""
KILLING = "not killed and not process and not interrupt"
"""Tests that start programs of their own see Linux there."""
COMMANDS = """
import json, sys
from edgeinfer.app.cli import main
for words in json.loads(sys.argv[3]):
    try:
        main(words)
    except SystemExit as left:
        print(f"exit code {left.code or 0}", flush=True)
"""


def run(platform: str, code: str, *words: str, **environment: str) -> str:
    """What code prints on a system."""
    command = [sys.executable, "-m", "tests.platforms.foreign_system", platform, code, *words]
    own = {**os.environ, "PYTHONPATH": str(ROOT), "EDGEINFER_OFFLINE": "1", **environment}
    done = subprocess.run(command, capture_output=True, env=own, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace").replace("\r\n", "\n")


def test_what_other_systems_lack_is_known() -> None:
    missing = ("fcntl", "termios", "resource", "pwd", "grp", "pty", "tty")
    there = ("os", "signal", "mmap", "socket", "asyncio", "sqlite3")
    assert [is_missing(name, "win32") for name in (*missing, *there)] == [True] * len(missing) + [False] * len(there)
    assert not any(is_missing(name, "darwin") for name in (*missing, *there))
    assert {"fork", "preadv", "getuid", "sched_getaffinity", "O_DIRECT"} <= missing_names("os", "win32")
    assert {"sched_getaffinity", "posix_fadvise", "O_DIRECT"} <= missing_names("os", "darwin")
    assert not {"fork", "preadv", "getuid", "replace"} & missing_names("os", "darwin")
    assert {"SIGHUP", "SIGKILL"} <= missing_names("signal", "win32")


@both
def test_every_module_is_imported(platform: str) -> None:
    n_modules = sum(
        not module.name.endswith("__main__") for module in pkgutil.walk_packages(edgeinfer.__path__, "edgeinfer.")
    )
    code = "from tests.platforms.foreign_system import import_all; print(import_all())"
    assert int(run(platform, code)) == n_modules


def test_commands_answer_alike(tiny_model: Path, tmp_path: Path) -> None:
    """Greedy answers with weights in memory, from a bundle file and in batches."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "Hi"}\n{"prompt": "Ho"}\n')
    model = ["-m", str(tiny_model), "--device", "cpu", "--temp", "0", "--max-tokens", "8"]
    commands = [
        ["run", *model, "Hi"],
        ["run", *model, "--stats", "Hi"],
        ["pack", str(tiny_model)],
        ["run", *model, "--ram", "300k", "Hi"],
        ["batch", *model, str(lines)],
        ["config", "set", "temp", "0.5"],
        ["rm", str(tiny_model), "--yes"],
        ["run", *model, "-m", "no-such-model", "Hi"],
    ]
    said = dict[str, list[str]]()
    for platform in ("linux", "win32", "darwin"):
        own_home = tmp_path / platform
        shown = run(platform, COMMANDS, json.dumps(commands), EDGEINFER_HOME=str(own_home))
        said[platform] = [plain(line) for line in shown.replace(str(own_home), "HOME").splitlines()]
    assert said["linux"].count("exit code 0") == 6
    assert said["win32"] == said["linux"]
    assert said["darwin"] == said["linux"]


def plain(line: str) -> str:
    """A line without what differs from run to run: of an answer of a batch, what was asked and answered."""
    if not line.startswith("{"):
        return line
    answer = json.loads(line)
    return f"{answer['id']} {answer['digest']} {answer['tokens']} {answer['text']!r}"


@both
def test_rooms_pass_their_tests(platform: str, tmp_path: Path) -> None:
    plugin = f"tests.platforms.as_{platform}"
    options = ["-q", "-p", plugin, "-p", "no:cacheprovider", "-k", KILLING, "--basetemp", str(tmp_path / "own")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *ROOMS],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


IN_A_CONSOLE = """
import pty, os, sys
_, ours = pty.openpty()
os.dup2(ours, 0)
from edgeinfer.app.chat.beginning import TypedAhead, typed_ahead
from edgeinfer.app.tui.graphics.pixel_terminal import window_cell
with typed_ahead() as typed:
    assert typed == TypedAhead(), typed
assert window_cell(0) is None
print("begun")
"""


def test_a_chat_begins_in_a_console_of_windows() -> None:
    """There is no module termios, and its error cannot be caught by its name."""
    assert run("win32", IN_A_CONSOLE) == "begun\n"


HELD_OPEN = """
import sys, threading, time
from pathlib import Path
from edgeinfer import temporary
from edgeinfer.file_lock import FileLock
folder = Path(sys.argv[3])

def held(path, seconds):
    ready = threading.Event()
    def hold():
        with path.open("rb"):
            ready.set()
            time.sleep(seconds)
    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    return thread

for name in ("old", "fresh"):
    (folder / name).write_text(name)
thread = held(folder / "old", 0.2)
temporary.put_in_place(folder / "fresh", folder / "old")
print((folder / "old").read_text())
with FileLock(folder / ".lock", "it"):
    thread = held(folder / ".lock", 0.2)
print((folder / ".lock").exists())
temporary.PATIENCE_S = 0.1
(folder / "fresh").write_text("later")
thread = held(folder / "old", 1.0)
try:
    temporary.put_in_place(folder / "fresh", folder / "old")
except PermissionError:
    print("refused")
"""


def test_a_file_that_another_reads_is_replaced_once_it_is_closed(tmp_path: Path) -> None:
    assert run("win32", HELD_OPEN, str(tmp_path)).split() == ["fresh", "False", "refused"]


def test_a_refusal_of_posix_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer import temporary

    calls = list[object]()

    def refuse(*paths: object) -> None:
        calls.append(paths)
        raise PermissionError

    monkeypatch.setattr(temporary.os, "replace", refuse)
    with pytest.raises(PermissionError):
        temporary.put_in_place(tmp_path / "a", tmp_path / "b")
    assert len(calls) == 1
