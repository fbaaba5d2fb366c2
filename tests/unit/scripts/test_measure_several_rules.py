"""The script that measures rules of keeping one of several answers: its outcomes, which follow from seeds alone."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from edgeinfer.scheduling.several.picks import PICKS
from edgeinfer.scheduling.several.samples import Rules
from scripts import measure_several_rules
from scripts.measure_several_rules import (
    ROWS,
    Distribution,
    RuleRow,
    ScriptedAnswer,
    bootstrapped,
    decided,
    rule_rows,
    sample_rows,
    wilson,
)

OUTCOMES = {
    (1.0, "vote of all"): (66, 2712),
    (1.0, "vote"): (66, 2454),
    (1.0, "weighted"): (99, 1514),
    (1.0, "shortest"): (123, 1254),
    (1.0, "shortest enough=3"): (86, 1842),
    (1.5, "vote of all"): (58, 3225),
    (1.5, "vote"): (58, 2880),
    (1.5, "weighted"): (44, 1678),
    (1.5, "shortest"): (52, 1417),
    (1.5, "shortest enough=3"): (43, 2106),
}
"""Wrong answers to 300 questions, and tokens of one, by ratio and pick."""


@pytest.fixture(scope="module", params=[1.0, 1.5])
def rows(request: pytest.FixtureRequest) -> dict[str, RuleRow]:
    return {f"{row.pick} {row.rules}".strip(): row for row in rule_rows(300, request.param)}


def test_every_pick_is_measured() -> None:
    assert {name for name, _ in ROWS} == set(PICKS.keys())


def test_what_is_saved_is_counted_by_hand() -> None:
    scripts = [ScriptedAnswer(n, said, -0.3, True, False, 0.0) for n, said in ((9, 1), (4, 0), (6, 0), (30, 0), (7, 2))]
    shortest, first3 = decided("shortest", Rules(), scripts), decided("first", Rules(3), scripts)
    assert (shortest.is_right, shortest.n_tokens, shortest.n_passes) == (True, 5 * 4, 4)
    assert (first3.is_right, first3.n_tokens, first3.n_passes) == (True, 4 + 6 + 3 * 7, 7)
    vote = decided("vote", Rules(), scripts)
    assert (vote.is_right, vote.n_tokens, vote.n_passes) == (True, 9 + 4 + 6 + 30 + 7, 30)


def test_the_shortest_saves_three_tenths_of_the_tokens_and_needs_that_right_answers_are_shorter(
    rows: dict[str, RuleRow],
) -> None:
    all_read, shortest, three = rows["vote of all"], rows["shortest"], rows["shortest enough=3"]
    assert shortest.saved_interval[0] >= 0.3
    assert three.saved_interval[0] >= 0.3
    assert rows["vote"].error == all_read.error
    assert 0.05 < rows["vote"].saved < shortest.saved
    assert rows["check"].error < all_read.error
    if shortest.ratio == 1:
        assert shortest.error_interval[0] > all_read.error_interval[1]
    else:
        assert shortest.error <= all_read.error
        assert three.error < all_read.error


def test_outcomes_are_those_of_the_seeds(rows: dict[str, RuleRow]) -> None:
    found = {(row.ratio, name): (round(row.error * 300), round(row.tokens)) for name, row in rows.items()}
    expected = {key: value for key, value in OUTCOMES.items() if key in found}
    assert len(expected) == 5
    assert {key: found[key] for key in expected} == expected


def test_weights_need_six_tenths_of_the_samples_if_probable_answers_have_probable_paths() -> None:
    shapes = Distribution(4, 1.0), Distribution(16, 1.0), Distribution(16, 1.0, spread=4)
    few, many, spread = sample_rows(150, shapes, (15,))
    assert (few.n, few.n_weighted) == (15, 9)
    for row in (few, many):
        assert row.weighted <= row.vote
        assert row.only_weighted > row.only_vote
    assert few.weighted_interval[1] < few.vote_interval[0]
    assert spread.weighted > spread.vote  # the right answer is on many paths, each of them improbable
    assert spread.only_vote > spread.only_weighted


def test_intervals_are_those_of_the_books() -> None:
    assert wilson(8, 20) == pytest.approx((0.2188, 0.6134), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    n_all = np.full(50, 100)
    assert bootstrapped(np.full(50, 60), n_all) == pytest.approx((0.4, 0.4))
    low, high = bootstrapped(np.where(np.arange(50) % 2, 40, 80), n_all)
    assert low < 0.4 < high
    assert high - low == pytest.approx(2 * 1.96 * 0.2 / 50**0.5, rel=0.15)


def test_tables_and_json_have_all_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(measure_several_rules, "RATIOS", (1.5,))
    monkeypatch.setattr(measure_several_rules, "DISTRIBUTIONS", (Distribution(4, 1.0),))
    given = ["measure_several_rules.py", "--questions", "5", "--trials", "3"]
    monkeypatch.setattr(sys, "argv", given)
    measure_several_rules.main()
    assert sum(line.startswith("| x1.5 |") for line in capsys.readouterr().out.splitlines()) == len(ROWS) + 1
    monkeypatch.setattr(sys, "argv", [*given, "--json"])
    measure_several_rules.main()
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["pick"] for record in records if "pick" in record] == ["vote of all", *(name for name, _ in ROWS)]
