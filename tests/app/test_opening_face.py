"""Opening a model without a terminal: everything goes to the face, and it can be called off."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest

from edgeinfer.app.opening.face import Download, OpeningCalledOff, WatchedFace
from edgeinfer.app.opening.loading import open_llm
from edgeinfer.app.opening.model_choice import _pull_starter, pull_model
from edgeinfer.app.opening.terminal_face import TerminalFace
from edgeinfer.errors import DoesNotFit, ModelNotFound
from edgeinfer.models.gguf import Header
from edgeinfer.models.store import ModelStore
from edgeinfer.settings import Settings, load_settings
from tests.file_server import Served, serving
from tests.tiny_models import write_model


class Seen:
    """What a face was told; calls off at the report of a number."""

    def __init__(self, call_off_at: int | None = None) -> None:
        self.loaded: list[tuple[str, int, int]] = []
        self.pulled: list[tuple[str, int, int | None]] = []
        self.asked: list[int] = []
        self._call_off_at = call_off_at
        self.face = WatchedFace(self._on_loaded, self._on_pulled, self._on_asked)

    def _on_loaded(self, what: str, done: int, total: int) -> None:
        self.loaded.append((what, done, total))
        self._count()

    def _on_pulled(self, source: str, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        self.pulled.append((source, done_bytes, total_bytes))
        self._count()

    def _on_asked(self, header: Header, nbytes: int) -> None:
        self.asked.append(nbytes)

    def _count(self) -> None:
        if len(self.loaded) + len(self.pulled) == self._call_off_at:
            self.face.call_off()


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def settings_of(model: Path, device: str) -> Settings:
    return load_settings({"model": str(model), "device": [device], "spec": "off"})


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_loading_is_told_to_the_face_alone(tiny_model: Path, device: str, capfd: pytest.CaptureFixture[str]) -> None:
    seen = Seen()
    with open_llm(settings_of(tiny_model, device), seen.face) as llm:
        assert llm.info.device == device
        assert llm.complete("the rain", max_tokens=2).read()
    assert seen.loaded[0] == ("loading the model", 0, 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_loading_ends_at_the_report_after_it_was_called_off(tiny_model: Path, number: int) -> None:
    seen = Seen(number)
    with pytest.raises(OpeningCalledOff):
        open_llm(settings_of(tiny_model, "cpu"), seen.face)
    assert len(seen.loaded) == number
    with open_llm(settings_of(tiny_model, "cpu"), Seen().face) as llm:
        assert llm.complete("the rain", max_tokens=2).read()


def test_a_download_is_told_to_the_face_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, seen = write_model(tmp_path / "source.gguf"), Seen()
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data)
        source = server.url("/tiny.gguf")
        assert pull_model(ModelStore(), source, face=seen.face).nbytes == len(data)
    assert seen.asked == [len(data)]
    assert seen.pulled[-1] == (source, len(data), len(data))
    assert capfd.readouterr() == ("", "")


def test_a_download_that_was_called_off_goes_on_later(tmp_path: Path) -> None:
    data, seen = write_model(tmp_path / "source.gguf"), Seen(1)
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data)
        with pytest.raises(OpeningCalledOff):
            pull_model(ModelStore(), server.url("/tiny.gguf"), face=seen.face)
        assert ModelStore().models() == []
        again = pull_model(ModelStore(), server.url("/tiny.gguf"), face=Seen().face)
        assert again.path.read_bytes() == data


def test_waiting_for_another_pull_is_told_in_words_and_can_be_called_off() -> None:
    seen = Seen(2)
    seen.face.waiting("pypi:tiny", 7, 40_000_000, 93_000_000)
    seen.face.waiting("pypi:tiny", None, 0, None)
    with pytest.raises(OpeningCalledOff):
        seen.face.waiting("pypi:tiny", None, 0, None)
    assert [what for what, _, _ in seen.loaded] == [
        "waiting for process 7, which is pulling pypi:tiny · 40.0 MB of 93.0 MB",
        "waiting for another process, which is pulling pypi:tiny",
    ]


def test_a_face_that_refuses_is_heard(tmp_path: Path) -> None:
    def refuse(header: Header, nbytes: int) -> None:
        raise DoesNotFit("not wanted")

    data = write_model(tmp_path / "source.gguf")
    face = WatchedFace(lambda *loaded: None, lambda *pulled: None, refuse)
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data)
        with pytest.raises(DoesNotFit, match="not wanted"):
            pull_model(ModelStore(), server.url("/tiny.gguf"), face=face)


def test_a_download_that_nobody_asked_for_is_announced_with_its_size_before_it_begins(tmp_path: Path) -> None:
    data, events = write_model(tmp_path / "source.gguf"), list[object]()
    face = WatchedFace(_ignore, lambda source, done, total, rate: events.append(done), _ignore, agree=events.append)
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data)
        source = server.url("/tiny.gguf")
        model = _pull_starter(ModelStore(), face, "Tiny", source, lambda: events.append("fetching"))
    assert model.path.read_bytes() == data
    assert events[:3] == [Download("Tiny", source, len(data)), "fetching", 0]
    assert events.count("fetching") == 1
    assert sum(isinstance(event, Download) for event in events) == 1


def test_a_download_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    def refuse(download: Download) -> None:
        raise ModelNotFound(download.refused)

    data, pulled = write_model(tmp_path / "source.gguf"), list[int]()
    face = WatchedFace(_ignore, lambda source, done, total, rate: pulled.append(done), _ignore, agree=refuse)
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data)
        with pytest.raises(ModelNotFound, match=r"-m PATH.*edgeinfer pull"):
            _pull_starter(ModelStore(), face, "Tiny", server.url("/tiny.gguf"), lambda: pulled.append(-1))
    assert pulled == []
    assert [path.name for path in ModelStore().root.iterdir()] == []


def test_without_a_terminal_the_announcement_is_one_line_and_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    TerminalFace().agree(Download("Tiny", "pypi:tiny", 92_900_000))
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == "There is no model yet: fetching the starter model Tiny from pypi:tiny, 92.9 MB.\n"


@pytest.mark.parametrize(("typed", "goes_on"), [("\n", True), ("y\n", True), ("n\n", False)])
def test_at_a_terminal_it_is_a_question_with_yes_for_enter(
    monkeypatch: pytest.MonkeyPatch, typed: str, goes_on: bool
) -> None:
    stdin, stderr = StringIO(typed), StringIO()
    for stream in (stdin, stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stderr", stderr)
    with nullcontext() if goes_on else pytest.raises(ModelNotFound, match="was not fetched"):
        TerminalFace().agree(Download("Tiny", "pypi:tiny", 92_900_000))


def _ignore(*anything: object) -> None:
    """A function of a face that nobody looks at."""


def test_models_of_other_programs_are_not_passed_over_in_silence() -> None:
    download = Download("Tiny", "pypi:tiny", 92_900_000, n_here=3)
    assert "There is no model yet" not in str(download)
    assert str(download).endswith("92.9 MB. Or -m NAME takes one that edgeinfer ls lists.")
    assert "edgeinfer ls" in download.refused
    assert "edgeinfer ls" not in str(Download("Tiny", "pypi:tiny", 92_900_000))
