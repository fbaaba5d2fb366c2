"""Models that tabs share: fetched and opened once, called off at the end, and as fast as answers alone say."""

from __future__ import annotations

import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeinfer.app.opening import model_choice
from edgeinfer.app.opening.face import OpeningCalledOff, OpeningFace, WatchedFace
from edgeinfer.app.web import engine_host, shared_models, wire
from edgeinfer.app.web.engine_host import AnswerRelay, EngineHost
from edgeinfer.app.web.joined import open_joined
from edgeinfer.app.web.shared_models import SharedModel, SharedModels
from edgeinfer.engine.scheduler.stats import RequestProgress
from edgeinfer.errors import EngineClosed
from edgeinfer.settings import Settings, load_settings
from tests.waiting import until

ASKED = [{"role": "user", "content": "tell me"}]


def a_face() -> WatchedFace:
    def nothing(*_: object) -> None:
        pass

    return WatchedFace(nothing, nothing, nothing)


class Opener:
    """Opens what only reports, until it is called off or let go on."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.n_opened = 0

    def __call__(self, path: Path, settings: Settings, face: OpeningFace) -> Any:
        self.n_opened += 1
        self.begun.set()
        with face.loading() as progress:
            while not self.goes_on.wait(0.01):
                progress("loading the model", 0, 0)
        return SimpleNamespace(close=lambda: None)


@pytest.fixture
def chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tabs choose a model at a time, when each does."""
    found: list[int] = []
    entered: list[None] = []

    def choose(settings: Settings, store: object, **given: object) -> SimpleNamespace:
        entered.append(None)
        found.append(len(entered))
        time.sleep(0.05)
        entered.pop()
        return SimpleNamespace(path=Path("tiny.gguf"), name="tiny", nbytes=1)

    monkeypatch.setattr(model_choice, "choose_model", choose)
    monkeypatch.setattr(model_choice, "_remembered_as", lambda model, store: "tiny")
    monkeypatch.setattr(shared_models, "require_model_file", lambda path: None)
    monkeypatch.setattr("edgeinfer.app.readings.service.Readings", lambda llm: None)
    return found


def test_two_tabs_fetch_a_model_once(chosen: list[int]) -> None:
    opener = Opener()
    opener.goes_on.set()
    models = SharedModels(opener)
    taken: list[SharedModel] = []
    threads = [
        threading.Thread(target=lambda: taken.append(models.take(load_settings(), a_face())), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert chosen == [1, 1, 1]
    assert opener.n_opened == 1
    assert [each.number for each in taken] == [1, 1, 1]
    models.close()


def test_the_end_calls_off_what_is_opened_and_what_waits(chosen: list[int]) -> None:
    opener = Opener()
    models = SharedModels(opener)
    ended: list[type[BaseException]] = []

    def take() -> None:
        with pytest.raises(OpeningCalledOff) as stopped:
            models.take(load_settings(), a_face())
        ended.append(stopped.type)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    opener.begun.wait(30)
    until(lambda: len(models._faces) == 2)
    models.close()
    for thread in threads:
        thread.join(30)
    assert ended == [OpeningCalledOff, OpeningCalledOff]
    assert opener.n_opened == 1
    with pytest.raises(EngineClosed):
        models.take(load_settings(), a_face())
    assert opener.n_opened == 1


def test_the_end_does_not_wait_for_what_never_reports(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_models, "LAST_S", 0.05)
    begun, goes_on, closed = threading.Event(), threading.Event(), threading.Event()

    def opening(path: Path, settings: Settings, face: OpeningFace) -> Any:
        begun.set()
        goes_on.wait(60)
        return SimpleNamespace(close=closed.set)

    models = SharedModels(opening)

    def take() -> None:
        with pytest.raises(OpeningCalledOff):
            models.take(load_settings(), a_face())

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    begun.wait(30)
    models.close()
    assert not goes_on.is_set()
    goes_on.set()
    thread.join(30)
    assert closed.is_set()


def test_answers_are_alone_when_none_was_made_from_their_beginning_to_their_end() -> None:
    model = SharedModel(1, Any, (), Any)  # type: ignore[arg-type]
    with model.answering() as first:
        pass
    assert first.was_alone
    with model.answering() as outer, model.answering() as inner:
        pass
    assert not outer.was_alone
    assert not inner.was_alone
    with model.answering() as last:
        pass
    assert last.was_alone


def test_only_answers_made_alone_are_noted(home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.app.opening.loading import load_model

    noted: list[int] = []
    monkeypatch.setattr(engine_host, "note_answer", lambda llm, stats: noted.append(stats.n_generated))
    listener, address = wire.listen()
    host = EngineHost(listener, SharedModels(lambda *given: load_model(*given, n_sessions=2, parallel=4)), {})
    model = open_joined(address, load_settings({"model": str(tiny_model)}), a_face())
    list(model.session().chat(ASKED, max_tokens=5))
    until(lambda: noted == [5])
    met = threading.Barrier(2)

    class Meeting(AnswerRelay):
        """Waits with each piece for another answer's."""

        def piece(self, text: str, live: RequestProgress) -> None:
            met.wait(30)
            super().piece(text, live)

    with monkeypatch.context() as together:
        together.setattr(engine_host, "AnswerRelay", Meeting)
        answers = [model.session().chat(ASKED, max_tokens=2, temperature=0.0) for _ in range(2)]
        threads = [threading.Thread(target=list, args=(answer,), daemon=True) for answer in answers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    list(model.session().chat(ASKED, max_tokens=6))
    until(lambda: noted == [5, 6])
    model.close()
    host.close()


def test_who_has_gone_is_told_nothing_and_fails_nobody() -> None:
    here, there = Pipe()
    there.close()
    AnswerRelay(here).read("reading the prompt", 1, 2)  # in a pass that others' answers are part of
