"""What goes wrong before a pass is made costs nobody else anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import Served, request


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def test_what_goes_wrong_before_a_pass_is_the_failure_of_the_answer_whose_it_is(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)

    def broken(what: str, done: int, total: int) -> None:
        raise BrokenPipeError("nobody reads this")

    good, bad = request(range(3, 90), 20), replace(request(range(100, 190), 20), progress=broken)
    fine, other = served.sequence(good), served.sequence(bad)
    served.run(fine, other)
    served.same(fine, good)
    with pytest.raises(BrokenPipeError):
        served.driver.next_piece(other)


def test_a_signal_before_a_pass_costs_nobody_a_token(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tokenizer)
    entered = served.under_way()

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(list(entered)[1], "next_work", interrupted)
    with pytest.raises(KeyboardInterrupt):
        served.scheduler.step()
    served.run(*entered)
    for sequence, each in entered.items():
        served.same(sequence, each)
