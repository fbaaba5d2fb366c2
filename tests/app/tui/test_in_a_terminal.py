"""The app in a real terminal (tmux), driven by keys as a person would: what is seen, kept and left behind."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from edgeinfer.app.sessions.store import SessionStore
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ROOT = Path(__file__).parents[3]


class Terminal:
    """A tmux session of its own, with the app in it."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self._socket = str(folder / "tmux")
        self._size = ("-x", str(columns), "-y", str(rows))

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        settings = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        self._tmux("-f", "/dev/null", "new-session", "-d", *self._size, *settings, "-s", "app", *command)
        self._tmux("set-option", "-t", "app", "remain-on-exit", "on")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names."""
        self._tmux("send-keys", "-t", "app", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "app", "-l", text)

    def screen(self) -> str:
        """What is seen."""
        return self._tmux("capture-pane", "-p", "-t", "app")

    def wait_for(self, seen: Callable[[str], object]) -> str:
        """Until the screen shows something; that screen."""
        ends = time.monotonic() + PATIENCE_S
        while not seen(shown := self.screen()):
            assert time.monotonic() < ends, f"not seen within {PATIENCE_S} s:\n{shown}"
            time.sleep(0.05)
        return shown

    @property
    def pid(self) -> int:
        """Of the program in the terminal."""
        return int(self._tmux("list-panes", "-t", "app", "-F", "#{pane_pid}"))

    @property
    def is_dead(self) -> bool:
        return self._tmux("list-panes", "-t", "app", "-F", "#{pane_dead}").strip() == "1"

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-t", "app", "-x", str(columns), "-y", str(rows))

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, check=False)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "TMUX")}
        return subprocess.run(command, env=kept, capture_output=True, text=True, check=True).stdout


Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path, home: Path, tiny_model: Path) -> Iterator[Start]:
    """Starts the app in terminals, and ends them."""
    opened: list[Terminal] = []

    def begin(
        *arguments: str, columns: int = 100, rows: int = 30, in_a_shell: bool = False, **environment: str
    ) -> Terminal:
        folder = tmp_path / f"terminal{len(opened)}"
        folder.mkdir()
        terminal = Terminal(folder, columns, rows)
        opened.append(terminal)
        term = ["env", f"TERM={environment['TERM']}"] if "TERM" in environment else []  # tmux sets one of its own
        command = [*term, sys.executable, "-m", "edgeinfer", "chat", "-m", str(tiny_model), "--device", "reference"]
        kept = {"EDGEINFER_HOME": str(home), "PYTHONPATH": str(ROOT), **environment}
        command += ["--temp", "0", "--max-tokens", "40", *arguments]
        if in_a_shell:
            terminal.start(["bash", "--norc", "--noprofile", "-i"], {**kept, "PS1": "$ "})
            terminal.type(shlex.join(command))
            terminal.press("Enter")
        else:
            terminal.start(command, kept)
        return terminal

    yield begin
    for terminal in opened:
        terminal.close()


def chats(home: Path) -> list[tuple[str, str, str]]:
    """Role, text and state of every kept message."""
    with SessionStore(home / "chats.db") as store:
        return [
            (message.role, message.text, message.state)
            for session in store.sessions()
            for message in store.messages(session.number)
        ]


def test_a_question_is_answered_and_kept(start: Start, home: Path) -> None:
    terminal = start()
    terminal.wait_for(lambda shown: "tiny" in shown)
    terminal.type("Hello there")
    terminal.press("Enter")
    terminal.wait_for(lambda shown: "40 tokens" in shown)
    terminal.press("C-q")
    terminal.wait_for(lambda shown: terminal.is_dead)
    kept = chats(home)
    assert [(role, state) for role, _, state in kept] == [("user", "whole"), ("assistant", "whole")]
    assert kept[0][1] == "Hello there"
    assert kept[1][1]


def test_the_command_line_continues_the_last_chat_with_a_question(start: Start, home: Path) -> None:
    for words in (["Hello", "there"], ["-c", "And", "now?"]):
        terminal = start(*words)
        terminal.wait_for(lambda shown, words=words: words[-1] in shown and "40 tokens" in shown)
        terminal.press("C-q")
        terminal.wait_for(lambda shown, terminal=terminal: terminal.is_dead)
    questions = [text for role, text, _ in chats(home) if role == "user"]
    assert questions == ["Hello there", "And now?"]
    with SessionStore(home / "chats.db") as store:
        assert len(store.sessions()) == 1


def test_what_is_typed_while_the_app_starts_is_sent_as_it_was_typed(start: Start, home: Path) -> None:
    terminal = start()
    for number in range(12):  # before Python runs, while it imports, and when the app is there
        terminal.type(f"question {number}")
        terminal.press("Enter")
        time.sleep(0.2)
    terminal.type("unsent")
    terminal.wait_for(lambda shown: "tiny" in shown and "unsent" in shown)
    terminal.press("C-u", "C-q")
    terminal.wait_for(lambda shown: terminal.is_dead)
    asked = [text for role, text, _ in chats(home) if role == "user"]
    assert asked == [f"question {number}" for number in range(len(asked))]
    assert asked


def test_a_killed_app_loses_at_most_a_second_of_text(start: Start, home: Path) -> None:
    terminal = start("--max-tokens", "400")
    terminal.wait_for(lambda shown: "tiny" in shown)
    terminal.type("Tell me much")
    terminal.press("Enter")
    until(lambda: any(role == "assistant" and text for role, text, _ in chats(home)), lambda: time.sleep(0.1))
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.wait_for(lambda shown: terminal.is_dead)
    until(lambda: chats(home)[1][2] in ("stopped", "whole"))  # told apart once its process is gone
    (question, answer) = chats(home)
    assert question[:2] == ("user", "Tell me much")
    assert answer[1]


def test_an_app_that_hangs_while_it_closes_is_ended(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, edgeinfer.app.tui.app as app\n"
        "app.LAST_S = 0.5\n"
        "app.ChatApp._shutdown = lambda self: threading.Event().wait()\n"
    )
    terminal = start(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    terminal.wait_for(lambda shown: "tiny" in shown)
    os.kill(terminal.pid, signal.SIGHUP)
    terminal.wait_for(lambda shown: terminal.is_dead)


def test_an_app_that_was_stopped_and_continued_goes_on(start: Start, home: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "start = threading.Thread.start\n"
        "def noting(thread):\n"
        f"    open({str(tmp_path / 'threads')!r}, 'a').write(thread.name + '\\n')\n"
        "    start(thread)\n"
        "threading.Thread.start = noting\n"
    )
    terminal = start(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    terminal.wait_for(lambda shown: "tiny" in shown)
    pid = terminal.pid
    for _ in range(3):
        for number in (signal.SIGSTOP, signal.SIGCONT):  # tmux continues it by itself too
            os.kill(pid, number)
            time.sleep(0.3)
    terminal.type("Hello there")
    terminal.press("Enter")
    terminal.wait_for(lambda shown: "40 tokens" in shown)
    terminal.press("C-q")
    terminal.wait_for(lambda shown: terminal.is_dead)
    assert chats(home)[0][1] == "Hello there"
    assert (tmp_path / "threads").read_text().split().count("textual-input") == 1  # two would share the keys


@pytest.mark.parametrize("stop", [signal.SIGTSTP, signal.SIGSTOP], ids=["asked", "forced"])
def test_an_app_that_a_shell_stopped_is_taken_up_again(start: Start, stop: signal.Signals) -> None:
    terminal = start(in_a_shell=True)
    terminal.wait_for(lambda shown: "tiny" in shown and "Ask" in shown)
    shell = psutil.Process(terminal.pid)
    (app,) = shell.children()
    app.send_signal(stop)
    terminal.wait_for(lambda shown: "Stopped" in shown)
    terminal.type("fg")
    terminal.press("Enter")
    terminal.wait_for(lambda shown: "Stopped" not in shown and "Ask" in shown)
    terminal.type("Hello there")
    terminal.press("Enter")
    terminal.wait_for(lambda shown: "40 tokens" in shown)
    terminal.press("C-q")
    until(lambda: not app.is_running())
    terminal.type("echo $((6 * 7)); stty -a | grep -o ' -*icanon'")
    terminal.press("Enter")
    shown = terminal.wait_for(lambda shown: "42" in shown and "icanon" in shown.split("42")[-1])
    assert "-icanon" not in shown.split("42")[-1]


def test_a_lost_terminal_leaves_nothing_running_and_nothing_lost(start: Start, home: Path) -> None:
    terminal = start("--max-tokens", "400")
    terminal.wait_for(lambda shown: "tiny" in shown)
    terminal.type("Tell me much")
    terminal.press("Enter")
    until(lambda: len(chats(home)) == 2, lambda: time.sleep(0.1))
    pid = terminal.pid
    terminal.close()
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert [state for _, _, state in chats(home)] in (["whole", "stopped"], ["whole", "whole"])


def test_a_small_terminal_works_and_one_too_small_says_so(start: Start) -> None:
    terminal = start(columns=40, rows=12)
    terminal.wait_for(lambda shown: "tiny" in shown)
    terminal.type("Hi")
    terminal.press("Enter")
    terminal.wait_for(lambda shown: "40 tokens" in shown)
    terminal.resize(30, 8)
    terminal.wait_for(lambda shown: "40x12" in shown)
    terminal.resize(40, 12)
    terminal.wait_for(lambda shown: "40 tokens" in shown)


def test_plain_is_line_by_line(start: Start) -> None:
    terminal = start("--plain")
    terminal.wait_for(lambda shown: "/help shows the commands" in shown)
    terminal.type("Hi")
    terminal.press("Enter")
    terminal.wait_for(lambda shown: sum(line.startswith(">") for line in shown.splitlines()) >= 2)


def test_a_dumb_terminal_gets_lines(start: Start) -> None:
    terminal = start(TERM="dumb")
    terminal.wait_for(lambda shown: "/help shows the commands" in shown)
