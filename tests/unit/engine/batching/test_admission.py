"""Which answers are in the making: what has entered is found until it is over, and ends where it is not wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.batching.ticket import Ticket
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.batching.served import Served, request


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def test_an_answer_is_among_those_that_entered_while_it_begins_and_while_it_is_parked(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tokenizer, n_pages=5)
    found: list[tuple[Ticket, ...]] = []
    behind = served.ticket(request(range(3, 133), 60, 1), "background", shares=False)
    begin, put = behind.answer.begin, served.scheduler.admission.parking.put

    def beginning() -> None:
        found.append(served.scheduler.admission.tickets)  # as another thread looks meanwhile
        begin()

    def parking(cached: object) -> None:
        found.append(served.scheduler.admission.tickets)
        put(cached)

    monkeypatch.setattr(behind.answer, "begin", beginning)
    monkeypatch.setattr(served.scheduler.admission.parking, "put", parking)
    served.scheduler.step()
    watched = served.ticket(request(range(60, 160), 60, 2), driven=False, shares=False)
    served.scheduler.step()
    assert found == [(behind,), (behind, watched)]
    assert behind.n_parked == 1
    assert served.scheduler.has_driven
    served.scheduler.close()
    assert served.scheduler.admission.tickets == ()
    assert not served.scheduler.has_driven
