"""Tabs share the engine of another process: what they are told is what the engine says, and who goes leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgeinfer.app.opening.face import OpeningCalledOff, OpeningFace, WatchedFace
from edgeinfer.app.opening.loading import load_model
from edgeinfer.app.web import wire
from edgeinfer.app.web.engine_host import EngineHost
from edgeinfer.app.web.joined import JoinedModel, open_joined
from edgeinfer.app.web.shared_models import SharedModels
from edgeinfer.app.web.tab import Tab
from edgeinfer.engine.llm import LLM
from edgeinfer.errors import (
    BadGGUF,
    BadSetting,
    ContextOverflow,
    DoesNotFit,
    EdgeInferError,
    EngineClosed,
    ModelNotFound,
)
from edgeinfer.settings import Settings, load_settings
from tests.conftest import write_tiny_llama
from tests.waiting import until

ASKED = [{"role": "user", "content": "tell me"}]


@dataclass
class Engine:
    """An engine's process, as a thread of this one, and the models it has opened."""

    address: wire.Address
    models: SharedModels
    opened: list[LLM] = field(default_factory=list)
    before_opening: Callable[[], object] = lambda: None

    def open(self, path: Path, told: list[tuple[str, int, int]] | None = None, **options: object) -> JoinedModel:
        face = WatchedFace(lambda *progress: None if told is None else told.append(progress), _nothing, _nothing)
        return open_joined(self.address, load_settings({"model": str(path), "temp": 0.0, **options}), face)


@pytest.fixture
def engine(home: Path) -> Iterator[Engine]:
    def opening(path: Path, settings: Settings, face: OpeningFace) -> LLM:
        found.before_opening()
        llm = load_model(path, settings, face, n_sessions=2, parallel=4)
        found.opened.append(llm)
        return llm

    listener, address = wire.listen()
    found = Engine(address, SharedModels(opening))
    host = EngineHost(listener, found.models, {"temp": 0.25})
    yield found
    host.close()
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("edgeinfer-tab")])


def _nothing(*_: object) -> None:
    pass


def test_answers_are_those_of_the_engine(engine: Engine, tiny_model: Path) -> None:
    told: list[tuple[str, int, int]] = []
    model = engine.open(tiny_model, told)
    (llm,) = engine.opened
    assert model.info == llm.info
    assert ("loading the model", 0, 0) in told
    read: list[tuple[int, int]] = []
    session = model.session()
    stream = session.chat(
        ASKED, max_tokens=40, temperature=0.0, progress=lambda what, done, total: read.append((done, total))
    )
    pieces = list(stream)
    with llm.session() as own:
        wanted = own.chat(ASKED, max_tokens=40, temperature=0.0)
        assert "".join(pieces) == wanted.read() == stream.text
    assert stream.stats is not None
    assert (stream.stats.n_generated, stream.stats.finish_reason) == (40, "length")
    assert sum(mark.n_characters for mark in stream.marks) == len(stream.text)
    assert stream.live is not None
    assert stream.live.n_generated == 40
    assert read[-1][0] == read[-1][1] == stream.stats.n_prompt
    assert len(session.tokens) == stream.stats.n_prompt + 39
    assert session.saved_bytes
    assert model.tokenize("the end", add_special=False) == llm.tokenize("the end", add_special=False)
    assert model.prompts.render(ASKED) == llm.prompts.render(ASKED)
    assert model.prompts.n_tokens(ASKED) == llm.prompts.n_tokens(ASKED)
    assert model.prompts.fitted(ASKED, 10) == llm.prompts.fitted(ASKED, 10)
    model.close()


def test_readings_are_of_the_process_that_computes(engine: Engine, tiny_model: Path) -> None:
    model = engine.open(tiny_model)
    list(model.session().chat(ASKED, max_tokens=8))
    readings = model.readings
    until(lambda: readings.roofline().reached != ())  # told when the answer is over, beside what the tab is told
    assert readings.plan().model == "tiny"
    assert readings.memory().weight_bytes
    assert readings.taken()[0] > 0
    assert readings.cores().cores
    assert readings.drafting().is_on == (engine.opened[0].drafts is not None)
    assert readings.energy().mode == "balanced"
    assert readings.can_time_stages
    assert readings.time_stages()
    assert readings.plan().source == "measured"
    model.close()


def test_an_answer_is_stopped_and_kept_as_far_as_it_is(engine: Engine, tiny_model: Path) -> None:
    model = engine.open(tiny_model)
    session = model.session()
    stream = session.chat(ASKED, temperature=0.0)
    pieces = iter(stream)
    first = [next(pieces) for _ in range(3)]
    stream.stop()
    rest = list(pieces)
    assert stream.text == "".join(first + rest)
    assert stream.stats is not None
    assert stream.stats.finish_reason == "cancelled"
    assert stream.stats.n_generated < 400
    early = session.chat(ASKED, temperature=0.0)
    early.stop()
    assert "".join(early) == early.text
    assert early.stats is not None
    assert early.stats.finish_reason == "cancelled"
    model.close()


def test_two_tabs_have_one_model_and_each_its_own_session(engine: Engine, tiny_model: Path) -> None:
    first, second = engine.open(tiny_model), engine.open(tiny_model)
    (llm,) = engine.opened
    sessions = first.session(), second.session()
    texts: dict[int, str] = {}

    def answer(number: int) -> None:
        asked = [{"role": "user", "content": f"tell me of {number}"}]
        texts[number] = "".join(sessions[number].chat(asked, max_tokens=60, temperature=0.0))

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for number in range(2):
        asked = [{"role": "user", "content": f"tell me of {number}"}]
        assert texts[number] == llm.chat(asked, max_tokens=60, temperature=0.0).read()
    first.close()
    assert "".join(second.session().chat(ASKED, max_tokens=3))
    second.close()


def test_a_tab_that_goes_takes_its_answer_and_its_session_with_it(engine: Engine, tiny_model: Path) -> None:
    stays, goes = engine.open(tiny_model), engine.open(tiny_model)
    (llm,) = engine.opened
    before = llm.telemetry.n_free_pages
    session = goes.session()
    pieces = iter(session.chat(ASKED, max_tokens=400))
    next(pieces)
    assert llm.telemetry.n_requests == 1
    pieces.close()  # type: ignore[attr-defined]
    goes.close()
    until(lambda: llm.telemetry.n_requests == 0 and llm.telemetry.n_free_pages == before)
    assert stays.info.name == "tiny"
    stays.close()


def test_a_model_nobody_uses_stays_until_another_one_comes(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    engine.open(tiny_model).close()
    again = engine.open(tiny_model)
    assert len(engine.opened) == 1
    again.close()
    until(lambda: engine.models.find(1).n_users == 0)
    third = engine.open(other)
    assert len(engine.opened) == 2
    with pytest.raises(EngineClosed):
        engine.opened[0].session()
    smaller = engine.open(other, ctx=256)
    assert (third.info.n_context, smaller.info.n_context) == (512, 256)
    third.close()
    smaller.close()


def test_what_goes_wrong_is_told_as_the_engine_tells_it(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        engine.open(tmp_path / "nowhere.gguf")
    model = engine.open(tiny_model)
    session = model.session()
    with pytest.raises(ContextOverflow):
        list(session.chat([{"role": "user", "content": "word " * 600}]))
    with pytest.raises(ContextOverflow):
        model.prompts.fitted([{"role": "user", "content": "word " * 600}])
    with pytest.raises(BadSetting, match="temperature"):
        list(session.chat(ASKED, temperature=-1.0))
    with pytest.raises(EdgeInferError, match="cannot be read"):
        session.restore(tmp_path / "none")
    with pytest.raises(EdgeInferError, match="not asked"):
        model._ask(str, "close")
    assert "".join(session.chat(ASKED, max_tokens=2))
    model.close()


def test_a_session_is_saved_and_goes_on(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    model = engine.open(tiny_model)
    session = model.session()
    list(session.chat(ASKED, max_tokens=5, temperature=0.0))
    session.save(tmp_path / "kept")
    other = model.session()
    other.restore(tmp_path / "kept")
    assert other.tokens == session.tokens
    model.close()


def test_opening_is_called_off(engine: Engine, tiny_model: Path) -> None:
    gate = threading.Event()
    engine.before_opening = gate.wait
    face = WatchedFace(_nothing, _nothing, _nothing)
    threading.Timer(0.2, face.call_off).start()
    with pytest.raises(OpeningCalledOff):
        open_joined(engine.address, load_settings({"model": str(tiny_model)}), face)
    waits = WatchedFace(_nothing, _nothing, _nothing)  # for the first one to be over
    threading.Timer(0.2, waits.call_off).start()
    with pytest.raises(OpeningCalledOff):
        open_joined(engine.address, load_settings({"model": str(tiny_model)}), waits)
    gate.set()
    model = engine.open(tiny_model)
    assert "".join(model.session().chat(ASKED, max_tokens=2))
    assert all(engine.models.find(each.number).n_users == 1 for each in engine.models._models)
    model.close()


def test_what_is_no_model_closes_none(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    engine.open(tiny_model).close()
    until(lambda: all(not each.n_users for each in engine.models._models))
    (bad := tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(BadGGUF):
        engine.open(bad)
    again = engine.open(tiny_model)
    assert len(engine.opened) == 1
    again.close()


def test_a_model_without_room_beside_the_tabs_own_is_refused_before_it_is_loaded(
    engine: Engine, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = engine.open(tiny_model)
    other = write_tiny_llama(tmp_path / "other.gguf")
    monkeypatch.setattr("edgeinfer.scheduling.machine.topology.available_bytes", lambda: 1000)
    face = WatchedFace(_nothing, _nothing, _nothing, is_beside=True)
    with pytest.raises(DoesNotFit, match="beside"):
        open_joined(engine.address, load_settings({"model": str(other)}), face)
    assert len(engine.opened) == 1
    assert "".join(model.session().chat(ASKED, max_tokens=2))
    model.close()


def test_a_tab_is_told_its_options_and_hears_that_the_engine_has_gone(home: Path, tiny_model: Path) -> None:
    listener, address = wire.listen()
    host = EngineHost(listener, SharedModels(load_model), {"temp": 0.25, "model": "tiny"})
    environ = {"PATH": "/bin"}
    address.put_into(environ)
    found = wire.Address.taken_from(environ)
    assert found == address
    assert environ == {"PATH": "/bin"}
    assert wire.Address.taken_from(environ) is None
    assert Tab(address).options == {"temp": 0.25, "model": "tiny"}
    host.close()
    with pytest.raises(wire.EngineGone, match="has ended"):
        Tab(address)


def test_who_does_not_know_the_key_is_not_heard(engine: Engine, tiny_model: Path) -> None:
    with pytest.raises(Exception, match="digest"):
        wire.Address(engine.address.path, b"wrong").connect()
    model = engine.open(tiny_model)
    assert model.info.name == "tiny"
    model.close()


def test_an_engine_that_ends_while_a_model_is_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lease:
        """A connection as Windows has it when the other side ends: looking raises, and not only reading."""

        def send(self, said: object) -> None:
            pass

        def poll(self, limit_s: float) -> bool:
            raise BrokenPipeError

        def close(self) -> None:
            pass

    monkeypatch.setattr(wire.Address, "connect", lambda self: Lease())
    face = WatchedFace(_nothing, _nothing, _nothing)
    with pytest.raises(wire.EngineGone, match="has ended"):
        open_joined(wire.Address("nowhere", b"key"), load_settings(), face)
