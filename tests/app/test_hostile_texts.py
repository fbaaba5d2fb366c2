"""What models, files, servers and clients say reaches no terminal as a command to it, nor in another order."""

from __future__ import annotations

import io
import logging
import re
import shutil
import socket
import sys
import threading
from pathlib import Path

import gguf
import pytest

from edgeinfer.app.plain_text import echo, harmless
from edgeinfer.app.progress import ProgressLine, PullProgress
from edgeinfer.app.server.running import HarmlessLines
from tests.app.test_cli_models import run
from tests.conftest import SPECIAL, write_tiny_llama

HOSTILE = "evil\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x9d0;title\x9c\u202egnp\u2066\x7f\x08\x0bx"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class HostileWriter(gguf.GGUFWriter):
    """Writes files whose texts are commands to terminals."""

    def add_name(self, name: str) -> None:
        super().add_name(HOSTILE)
        self.add_license(HOSTILE)
        self.add_size_label(HOSTILE)
        self.add_description(HOSTILE)
        self.add_author(HOSTILE)

    def add_chat_template(self, value: str) -> None:  # type: ignore[override]
        super().add_chat_template("{# " + HOSTILE + " #}" + value)


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", HostileWriter)
        return write_tiny_llama(tmp_path_factory.mktemp("hostile") / "plain.gguf")


@pytest.fixture
def hostile(home: Path, hostile_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hostile model with a hostile name in the store; standard output is a terminal."""
    (home / "models").mkdir(parents=True)
    monkeypatch.setattr("edgeinfer.app.plain_text.sys", _AtTerminal())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    return Path(shutil.copy(hostile_file, home / "models" / f"{HOSTILE}.gguf"))


class _AtTerminal:
    """The module sys, with a terminal."""

    class _Output:
        encoding, errors = "utf-8", "strict"

        def isatty(self) -> bool:
            return True

    stdout = _Output()


def unharmed(text: str) -> str:
    assert FORBIDDEN.findall(text) == []
    return text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "MODEL"], 0),
        (["show", "MODEL", "--template"], 0),
        (["ls"], 0),
        (["models"], 0),
        (["plan", "-m", "MODEL"], 0),
        (["run", "-m", "MODEL", "--max-tokens", "4", "--stats", "the hen"], 0),
        (["tokenize", "-m", "MODEL", "the hen"], 0),
        (["pull", "MODEL"], 1),  # a model of this name is here
        (["config", "set", "model", HOSTILE], 0),
        (["show", HOSTILE + "/none"], 1),
        (["show", f"https://{HOSTILE}.example/{HOSTILE}.gguf"], 1),
        (["run", "-m", f"hf:{HOSTILE}", "x"], 1),
        (["run", "--lora", HOSTILE, "-m", "MODEL", "x"], 1),
        (["run", "--" + HOSTILE], 2),
        ([HOSTILE], 2),
        (["batch", HOSTILE, "-m", "MODEL"], 1),
        (["rm", HOSTILE, "--yes"], 0),
    ],
)
def test_commands_print_what_models_say_without_commands_to_the_terminal(
    hostile: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    found, out, err = run(capsys, *(word.replace("MODEL", str(hostile)) for word in words))
    assert found == code, err
    assert "evil" in unharmed(out + err) or words[0] in ("tokenize", "plan", "run")


def test_tokens_of_control_characters_are_not_printed(
    hostile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = " ".join(str(len(SPECIAL) + byte) for byte in b"evil\x1b]0;title\x07\xc2\x9b2J")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(tokens.encode())))
    code, out, err = run(capsys, "detokenize", "-m", str(hostile))
    assert code == 0, err
    assert unharmed(out) == "evil]0;title2J"


def test_pipes_get_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    echo(HOSTILE)
    echo(HOSTILE, err=True)
    shown = capsys.readouterr()
    assert shown.out == HOSTILE.replace("\x1b[2J", "") + "\n"  # typer takes colours away
    assert shown.err == harmless(HOSTILE) + "\n"
    assert harmless("שלום\u200f عربي\tα\n") == "שלום\u200f عربي\tα\n"


def serve_once(listener: socket.socket, answer: bytes) -> None:
    """Answer one request."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)


@pytest.mark.usefixtures("home")
def test_servers_of_models_say_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reason = f"HTTP/1.1 404 {HOSTILE}".encode().replace(b"\x0b", b"") + b"\r\nContent-Length: 0\r\n\r\n"
        answering = threading.Thread(target=serve_once, args=(listener, reason))
        answering.start()
        code, out, err = run(capsys, "pull", f"http://127.0.0.1:{listener.getsockname()[1]}/a.gguf")
        answering.join(60)
    assert code == 1
    assert "evil" in unharmed(out + err)


def test_progress_says_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with PullProgress(HOSTILE, terminal=True) as bar, PullProgress(HOSTILE, terminal=False) as lines:
        for progress in (bar, lines):
            progress(1, 10, 0.0)
            progress.follow(f"waiting for {HOSTILE}", 10, 10)
    line = ProgressLine(terminal=True)
    line._next_s = 0.0
    with line:
        line(f"reading {HOSTILE}", 1, 2)
    shown = capsys.readouterr().err.replace("\r", "")
    assert "evil" in shown
    assert not re.search("\x1b\\]|\x07|\x9b|\u202e|\x1b\\[2J", shown)


def test_logs_hold_one_message_in_one_piece() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "%s failed", (f"{HOSTILE}\nforged",), sys.exc_info())
    told = unharmed(HarmlessLines("%(message)s").format(record))
    assert told.startswith("evil")
    assert "\n  forged failed\n  Traceback" in told
