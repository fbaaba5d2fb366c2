"""The example of a desktop window, without a screen: it answers, stops, says what is wrong and leaves nothing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edgeinfer

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_window.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    widgets = pytest.importorskip("PySide6.QtWidgets", reason="PySide6 cannot be used here", exc_type=ImportError)
    spec = importlib.util.spec_from_file_location("chat_window", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.app = widgets.QApplication.instance() or widgets.QApplication([])
    return module


@pytest.fixture
def show(example: ModuleType, home: Path) -> Iterator[Callable[[Path], Any]]:
    windows: list[Any] = []

    def opened(model: Path) -> Any:
        window = example.ChatWindow(str(model))
        windows.append(window)
        window.show()
        return window

    yield opened
    shiboken = importlib.import_module("shiboken6")
    for window in windows:
        window.close()
        assert window.thread_of_model.isFinished()
        for each in (window.chatter, window.thread_of_model, window):  # here, not in the thread that collects garbage
            shiboken.delete(each)


def until(example: ModuleType, is_so: Callable[[], object], seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, "it never happens"
        example.app.processEvents()
        time.sleep(0.001)


def is_ready(window: Any) -> bool:
    return bool(window.input.isEnabled()) and window.button.text() == "Send"


def ask(window: Any, question: str) -> None:
    window.input.setText(question)
    window.input.returnPressed.emit()


@pytest.mark.model
def test_an_answer_comes_in_parts_and_is_the_models(
    example: ModuleType, show: Callable[[Path], Any], starter_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = edgeinfer.Session.chat
    monkeypatch.setattr(
        edgeinfer.Session,
        "chat",
        lambda self, messages, **more: chat(self, messages, temperature=0.0, max_tokens=60, **more),
    )
    window = show(starter_model)
    worked: list[str] = []
    parts: list[str] = []
    window.chatter.worked.connect(lambda what, done, total: worked.append(what))
    window.chatter.wrote.connect(parts.append)
    assert not window.input.isEnabled()
    until(example, lambda: is_ready(window))
    assert worked
    ask(window, "Name three lighthouses.")
    assert window.button.text() == "Stop"
    until(example, lambda: is_ready(window))
    with edgeinfer.load(starter_model) as llm:
        wanted = llm.chat([{"role": "user", "content": "Name three lighthouses."}], temperature=0.0, max_tokens=60)
        assert "".join(parts) == wanted.read()
    assert len(parts) > 1
    assert window.transcript.toPlainText() == f"Name three lighthouses.\n{''.join(parts)}\n\n"
    assert "60 tokens, " in window.status.text() or "tokens/s" in window.status.text()
    ask(window, "And which is the oldest?")
    until(example, lambda: is_ready(window))
    assert len(window.chatter._messages) == 4


def test_an_answer_is_stopped_and_the_next_one_comes(
    example: ModuleType, show: Callable[[Path], Any], tiny_model: Path
) -> None:
    window = show(tiny_model)
    parts: list[str] = []
    window.chatter.wrote.connect(parts.append)
    until(example, lambda: is_ready(window))
    ask(window, "tell me")
    window.button.click()  # before there is anything to stop
    until(example, lambda: is_ready(window))
    assert window.status.text().startswith("stopped: ")
    ask(window, "tell me more")
    until(example, lambda: len(window.transcript.toPlainText()) > 60)
    window.button.click()
    until(example, lambda: is_ready(window))
    assert "tell me more\n" in window.transcript.toPlainText()
    kept = window.chatter._messages[-1]["content"]
    assert kept
    assert "".join(parts).endswith(kept)  # any bytes: the transcript shows not all of them as they are


def test_what_cannot_be_opened_is_said(example: ModuleType, show: Callable[[Path], Any], tmp_path: Path) -> None:
    window = show(tmp_path / "none.gguf")
    until(example, lambda: "none.gguf" in window.transcript.toPlainText())
    assert not window.input.isEnabled()


def test_a_question_that_does_not_fit_is_told_and_the_chat_goes_on(
    example: ModuleType, show: Callable[[Path], Any], tiny_model: Path
) -> None:
    window = show(tiny_model)
    until(example, lambda: is_ready(window))
    ask(window, "word " * 600)
    until(example, lambda: is_ready(window))
    assert "512" in window.transcript.toPlainText()
    ask(window, "tell me")
    until(example, lambda: window.transcript.toPlainText().count("tell me\n"))
    window.button.click()
    until(example, lambda: is_ready(window))


def test_closing_ends_the_answer_and_closes_the_model(
    example: ModuleType, show: Callable[[Path], Any], tiny_model: Path
) -> None:
    window = show(tiny_model)
    until(example, lambda: is_ready(window))
    ask(window, "tell me")
    until(example, lambda: len(window.transcript.toPlainText()) > 20)
    window.close()
    assert window.thread_of_model.isFinished()
    with pytest.raises(edgeinfer.EngineClosed):
        window.chatter._llm.session()
    early = show(tiny_model)
    early.close()
    assert early.thread_of_model.isFinished()


INTERRUPTED = """\
import os, runpy, signal, sys, threading, time

def interrupt():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(0.01)
    time.sleep(0.5)  # the window waits for what happens
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(os.name == "nt", reason="processes are not interrupted one by one here")
def test_an_interrupt_closes_the_window(example: ModuleType, home: Path, tiny_model: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(EXAMPLE), str(tiny_model)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
