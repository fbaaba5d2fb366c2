"""A chat window of a desktop program.

    pip install 'edgeinfer[examples]'
    python examples/chat_window.py [MODEL]

The model lives in a thread of its own, which loads it, answers one question after another and closes it; signals carry
what comes of that to the window. `stop` may be called from the window's thread, and nothing else of the model is.
"""

from __future__ import annotations

import signal
import sys
import time

from PySide6.QtCore import QObject, Qt, QThread, QTimer, Signal, Slot
from PySide6.QtGui import QCloseEvent, QFont, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QApplication,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QMainWindow,
    QPlainTextEdit,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

import edgeinfer

BETWEEN_S = 0.03
"""Parts of an answer are shown no more often than this: drawing takes time from the model."""


class Left(Exception):
    """The window was closed while the model was loaded."""


class Chatter(QObject):
    """The model and one conversation. Its slots run in the thread it was moved to; the others in any."""

    worked = Signal(str, object, object)  # what is being done, how much is done, of how much
    opened = Signal(str)
    wrote = Signal(str)
    answered = Signal(str)
    failed = Signal(str)
    asked = Signal(str)

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._messages: list[dict[str, object]] = []
        self._llm: edgeinfer.LLM | None = None
        self._session: edgeinfer.Session | None = None
        self._stream: edgeinfer.TextStream | None = None
        self._leaves = self._is_stopped = False
        self.asked.connect(self.answer)

    @Slot()
    def open(self) -> None:
        """Load the model."""
        try:
            self._llm = edgeinfer.load(self._model, progress=self._tell)
            self._session = self._llm.session()
        except edgeinfer.EdgeInferError as error:
            self.failed.emit(str(error))
        except Left:
            pass
        else:
            self.opened.emit(self._llm.info.name)

    @Slot(str)
    def answer(self, question: str) -> None:
        """Answer a question of the conversation."""
        if self._session is None or self._leaves:
            return
        asked = [*self._messages, {"role": "user", "content": question}]
        try:
            self._stream = stream = self._session.chat(asked, progress=self._tell)
            self._write(stream)
        except edgeinfer.EdgeInferError as error:
            self.failed.emit(str(error))
            return
        self._messages = [*asked, {"role": "assistant", "content": stream.text}]
        stats = stream.stats
        speed = "" if stats is None or stats.decode_tok_s is None else f", {stats.decode_tok_s:.0f} tokens/s"
        stopped = "stopped: " if stats is not None and stats.finish_reason == "cancelled" else ""
        self.answered.emit(f"{stopped}{len(stream.tokens)} tokens{speed}")

    def _write(self, stream: edgeinfer.TextStream) -> None:
        """Show the answer while it is made."""
        if self._is_stopped or self._leaves:  # before there was a stream
            stream.stop()
        parts, shown_s = list[str](), 0.0
        for piece in stream:
            parts.append(piece)
            if time.monotonic() - shown_s >= BETWEEN_S:
                self.wrote.emit("".join(parts))
                parts, shown_s = [], time.monotonic()
        if parts:
            self.wrote.emit("".join(parts))

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._leaves and self._llm is None:
            raise Left
        self.worked.emit(what, done, total)

    def ask(self, question: str) -> None:
        """Have a question answered, in the model's thread."""
        self._is_stopped = False
        self.asked.emit(question)

    def stop(self) -> None:
        """End the running request; what there is of it stays."""
        self._is_stopped = True
        if self._stream is not None:
            self._stream.stop()

    def leave(self) -> None:
        """End whatever is done; the thread closes the model then."""
        self._leaves = True
        self.stop()

    @Slot()
    def close(self) -> None:
        """Give memory and threads back."""
        if self._llm is not None:
            self._llm.close()


class ChatWindow(QMainWindow):
    """A transcript, a line to write in, and how far things are."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.setWindowTitle("edgeinfer")
        self.resize(720, 540)
        self.transcript = QPlainTextEdit()
        self.transcript.setReadOnly(True)
        self.transcript.setPlaceholderText("The model is loaded …")
        self.input = QLineEdit()
        self.input.setPlaceholderText("Ask something")
        self.input.setEnabled(False)
        self.button = QPushButton("Send")
        self.button.setEnabled(False)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setMaximumHeight(6)
        self.status = QLabel()
        self._answering = False
        self._lay_out()
        self.input.returnPressed.connect(self.send)
        self.button.clicked.connect(self.press)

        self.chatter = Chatter(model)
        self.thread_of_model = QThread()
        self.chatter.moveToThread(self.thread_of_model)
        self.chatter.worked.connect(self.show_progress)
        self.chatter.opened.connect(self.show_opened)
        self.chatter.wrote.connect(self.write)
        self.chatter.answered.connect(self.show_answered)
        self.chatter.failed.connect(self.show_failed)
        self.thread_of_model.started.connect(self.chatter.open)
        self.thread_of_model.finished.connect(self.chatter.close, Qt.ConnectionType.DirectConnection)
        self.thread_of_model.start()

    def _lay_out(self) -> None:
        line = QHBoxLayout()
        line.addWidget(self.input)
        line.addWidget(self.button)
        column = QVBoxLayout()
        for part in (self.transcript, self.progress):
            column.addWidget(part)
        column.addLayout(line)
        column.addWidget(self.status)
        middle = QWidget()
        middle.setLayout(column)
        self.setCentralWidget(middle)

    def press(self) -> None:
        """The button: stop the running request, or send what is written."""
        if self._answering:
            self.chatter.stop()
        else:
            self.send()

    def send(self) -> None:
        """Ask what is written."""
        question = self.input.text().strip()
        if not question or self._answering or not self.input.isEnabled():
            return
        self.input.clear()
        self.write(f"{question}\n", bold=True)
        self._wait_for_answer(True)
        self.chatter.ask(question)

    @Slot(str)
    def write(self, text: str, bold: bool = False) -> None:
        """Add text to the transcript; who reads further up stays there."""
        bar = self.transcript.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        form = QTextCharFormat()
        form.setFontWeight(QFont.Weight.Bold if bold else QFont.Weight.Normal)
        cursor = QTextCursor(self.transcript.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text, form)
        if follows:
            bar.setValue(bar.maximum())

    @Slot(str, object, object)
    def show_progress(self, what: str, done: int, total: int) -> None:
        """How far loading, or reading the prompt, is; a bar that moves where nobody knows."""
        share = 1000 * done // total if total else 0
        self.progress.setRange(0, 1000 if total else 0)
        self.progress.setValue(share)
        self.status.setText(what)

    @Slot(str)
    def show_opened(self, name: str) -> None:
        """The model is there."""
        self.setWindowTitle(name)
        self.transcript.setPlaceholderText("")
        self._rest(f"{name} is ready")
        self.input.setEnabled(True)
        self.button.setEnabled(True)
        self.input.setFocus()

    @Slot(str)
    def show_answered(self, figures: str) -> None:
        """An answer is over."""
        self.write("\n\n")
        self._wait_for_answer(False)
        self._rest(figures)

    @Slot(str)
    def show_failed(self, reason: str) -> None:
        """Something went wrong; what there is stays."""
        self.write(f"\n{reason}\n\n")
        self.transcript.setPlaceholderText("")
        self._wait_for_answer(False)
        self._rest("")

    def _rest(self, text: str) -> None:
        self.progress.setRange(0, 1000)
        self.progress.setValue(0)
        self.status.setText(text)

    def _wait_for_answer(self, waits: bool) -> None:
        self._answering = waits
        self.button.setText("Stop" if waits else "Send")

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 - Qt's name
        """End the answer, or the loading, and close the model before the window goes."""
        self.chatter.leave()
        self.thread_of_model.quit()
        self.thread_of_model.wait()
        super().closeEvent(event)


def main() -> int:
    app = QApplication(sys.argv)
    window = ChatWindow(sys.argv[1] if len(sys.argv) > 1 else "SmolLM2-135M-Instruct")
    window.show()
    signal.signal(signal.SIGINT, lambda *_: window.close())
    ticking = QTimer()  # Python looks for Ctrl-C when it runs, which is when something happens in the window
    ticking.timeout.connect(lambda: None)
    ticking.start(200)
    return app.exec()


if __name__ == "__main__":
    sys.exit(main())
