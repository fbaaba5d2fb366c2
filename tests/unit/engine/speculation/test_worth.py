"""When drafts rest: they have to give more tokens a second than passes without them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import pytest

from edgeinfer.engine.speculation.worth import FIRST_JUDGED, FIRST_REST, MOST_REST, SAMPLE, SharedWorth, Worth

PLAIN_S = 0.004


@dataclass(slots=True)
class Text:
    """A text whose drafted passes give so many tokens and take so long; the passes so far: whether each had a draft."""

    n_tokens: float
    drafted_s: float
    worth: Worth = field(default_factory=Worth)
    passes: list[bool] = field(default_factory=list)
    owed: float = 0.0

    def go_on(self, n_passes: int) -> None:
        """Run passes."""
        for _ in range(n_passes):
            drafted = not self.worth.rests
            self.owed += self.n_tokens if drafted else 1.0
            n_tokens, self.owed = int(self.owed), self.owed % 1
            self.worth.note(n_tokens, self.drafted_s if drafted else PLAIN_S, drafted=drafted)
            self.passes.append(drafted)

    @property
    def rate(self) -> float:
        """Tokens a second against passes without drafts, in the long run."""
        n_drafted = sum(self.passes)
        n_plain = len(self.passes) - n_drafted
        spent_s = n_drafted * self.drafted_s + n_plain * PLAIN_S
        return (n_drafted * self.n_tokens + n_plain) * PLAIN_S / spent_s


def test_what_pays_is_hardly_interrupted() -> None:
    text = Text(1.5, 1.2 * PLAIN_S)
    text.go_on(1000)
    assert sum(text.passes) > 970
    assert all(text.passes[:FIRST_JUDGED])
    assert not any(text.passes[FIRST_JUDGED : FIRST_JUDGED + SAMPLE])


@pytest.mark.parametrize("n_tokens", [1.0, 1.1])
def test_what_does_not_pay_rests_longer_and_longer(n_tokens: float) -> None:
    text = Text(n_tokens, 1.25 * PLAIN_S)
    text.go_on(2000)
    assert not any(text.passes[FIRST_JUDGED : FIRST_JUDGED + FIRST_REST])
    assert text.rate > 0.97
    rests = [len(list(group)) for drafted, group in groupby(text.passes[:-1]) if not drafted]
    doubling = [min(FIRST_REST << step, MOST_REST) for step in range(len(rests))]
    assert rests[:-1] == [SAMPLE + each for each in doubling[:-1]]


def test_drafts_are_tried_again_when_they_pay_again() -> None:
    text = Text(1.0, 1.25 * PLAIN_S)
    text.go_on(400)
    text.n_tokens = 2.0
    text.go_on(MOST_REST + FIRST_JUDGED)
    assert text.passes[-1]
    text.passes.clear()
    text.go_on(500)
    assert sum(text.passes) > 480


def test_one_interrupted_pass_stops_no_drafts_that_pay() -> None:
    worth = Worth()
    for number in range(FIRST_JUDGED):
        worth.note(2, 1.0 if number == 3 else 1.3 * PLAIN_S, drafted=True)
    for _ in range(SAMPLE):
        assert worth.rests
        worth.note(1, PLAIN_S, drafted=False)
    assert not worth.rests


def test_a_new_text_begins_with_drafts() -> None:
    text = Text(1.0, 1.25 * PLAIN_S)
    text.go_on(FIRST_JUDGED + SAMPLE + 1)
    assert text.worth.rests
    text.worth.begin()
    assert not text.worth.rests


@dataclass(slots=True)
class Passes:
    """Passes that several texts share, on a clock that they move; whether each had drafts."""

    monkeypatch: pytest.MonkeyPatch
    worth: SharedWorth = field(default_factory=SharedWorth)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.monkeypatch.setattr("edgeinfer.engine.speculation.worth.time.perf_counter", lambda: self.now_s)

    def go_on(self, n_passes: int, n_texts: int, n_tokens: int, seconds: float, *, beside: bool = False) -> list[bool]:
        """Run passes that give `n_tokens` tokens with drafts in so many seconds; `beside`: they read a prompt too."""
        found = []
        for _ in range(n_passes):
            rests = self.worth.begin(n_texts, judged=not beside)
            self.now_s += PLAIN_S if rests else seconds
            if not beside:
                self.worth.ran()
            for text in range(n_texts):
                self.worth.learnt(1 if rests or text else n_tokens - n_texts + 1)
            found.append(not rests)
        return found


def test_drafts_of_several_texts_rest_where_they_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)
    n_first = FIRST_JUDGED + SAMPLE
    assert passes.go_on(n_first, 4, 5, 1.3 * PLAIN_S) == FIRST_JUDGED * [True] + SAMPLE * [False]
    assert not any(passes.go_on(FIRST_REST, 4, 5, 1.3 * PLAIN_S))
    assert all(passes.go_on(FIRST_JUDGED, 4, 5, 1.3 * PLAIN_S))  # they are tried again


def test_drafts_of_several_texts_go_on_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(Passes(monkeypatch).go_on(1000, 4, 6, 1.3 * PLAIN_S)) > 970


def test_each_number_of_texts_is_judged_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)
    passes.go_on(FIRST_JUDGED + SAMPLE + 1, 4, 5, 1.3 * PLAIN_S)
    assert all(passes.go_on(FIRST_JUDGED, 2, 3, 1.3 * PLAIN_S))
    assert not any(passes.go_on(FIRST_REST - 1, 4, 5, 1.3 * PLAIN_S))


def test_passes_beside_prompts_are_not_judged_but_rest_too(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)
    assert all(passes.go_on(200, 4, 5, 9 * PLAIN_S, beside=True))
    passes.go_on(FIRST_JUDGED + SAMPLE + 1, 4, 5, 1.3 * PLAIN_S)
    assert not any(passes.go_on(200, 4, 5, PLAIN_S, beside=True))


def test_a_pass_that_not_all_texts_learned_from_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)
    for _ in range(200):
        assert not passes.worth.begin(4, judged=True)
        passes.now_s += 9 * PLAIN_S
        passes.worth.ran()
        passes.worth.learnt(1)
