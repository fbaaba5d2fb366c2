"""How the page is served: what ends it, and the link that it prints."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.opening.face import OpeningFace
from edgeinfer.app.opening.terminal_face import TerminalFace
from edgeinfer.app.server.listening import listen
from edgeinfer.app.web import launch
from edgeinfer.app.web.launch import _link, _load, _signals_set
from edgeinfer.errors import DoesNotFit
from edgeinfer.settings import Settings, load_settings


@pytest.fixture
def kept_signals() -> Iterator[None]:
    numbers = [each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGHUP")]
    before = {each: signal.getsignal(each) for each in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
async def test_what_ends_a_program_ends_the_page_and_afterwards_the_program(kept_signals: None, name: str) -> None:
    if not hasattr(signal, name):
        pytest.skip("there is no such signal here")
    before = signal.getsignal(signal.SIGINT)
    ends = asyncio.Event()
    with _signals_set(ends):
        signal.raise_signal(getattr(signal, name))
        await asyncio.wait_for(ends.wait(), 10)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="closed terminals send no signal here")
async def test_who_is_not_to_hear_of_closed_terminals_does_not(kept_signals: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with _signals_set(asyncio.Event()):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_link_names_an_address_that_a_browser_can_open() -> None:
    with listen("127.0.0.1", 0) as here, listen("0.0.0.0", 0) as everywhere:
        assert _link(here) == f"http://127.0.0.1:{here.getsockname()[1]}"
        assert "//0.0.0.0" not in _link(everywhere)
        assert _link(everywhere).endswith(f":{everywhere.getsockname()[1]}")


def test_a_page_has_one_request_at_a_time_where_states_of_more_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[object]()

    def load_model(path: Path, settings: Settings, face: OpeningFace, **how: int) -> str:
        tried.append(how["parallel"])
        if how["parallel"] > 1:
            raise DoesNotFit("states of 2 sequences would fit (--parallel 2)")
        return "open"

    monkeypatch.setattr(launch, "load_model", load_model)
    assert _load(Path("wide.gguf"), load_settings(environ={}), TerminalFace()) == "open"
    assert tried == [8, 1]
