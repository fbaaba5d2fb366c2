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


@pytest.mark.parametrize("n_answers", [1, 3])
@pytest.mark.parametrize("place", ["between", "after"])
def test_a_signal_at_the_edges_of_a_pass_costs_nobody_a_token(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, place: str, n_answers: int
) -> None:
    """When the batches are gathered and the pass has not begun, and when some answers have their results."""
    served = Served(tokenizer)
    wanted = [request([7 + number], 20, number) for number in range(n_answers)]
    entered = {served.sequence(each): each for each in wanted}
    for _ in range(5):
        served.scheduler.step()

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(served.scheduler, "_given" if place == "between" else "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        served.scheduler.step()
    served.run(*entered, most=200)
    for sequence, each in entered.items():
        served.same(sequence, each)


def test_a_signal_while_one_answer_takes_its_token_costs_the_others_none(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tokenizer)
    entered = served.under_way()
    first, *others = entered

    def interrupted(*_: object) -> list[int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        served.scheduler.step()
    assert isinstance(first.error, KeyboardInterrupt)
    served.run(*others, most=200)
    for sequence in others:
        served.same(sequence, entered[sequence])
