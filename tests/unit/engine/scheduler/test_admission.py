"""Admission: what has entered is found until it is over, and ends where it is not wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler import scheduler
from edgeinfer.engine.scheduler.retained import SwapSpace
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.allotment import AGED_S, Pace, PassRoom, Wish, allot
from tests.unit.engine.scheduler.served import Served, request


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def test_an_answer_is_among_those_that_entered_while_it_begins_and_while_it_is_preempted(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tokenizer, n_pages=5)
    found: list[tuple[ScheduledSequence, ...]] = []
    behind = served.sequence(request(range(3, 133), 60, 1), "background", shares=False)
    begin, put = behind.begin, served.scheduler.admission.swap.swap_out

    def beginning(*, is_first: bool) -> None:
        found.append(served.scheduler.admission.sequences)  # as another thread looks meanwhile
        begin(is_first=is_first)

    def swapping(cached: object) -> None:
        found.append(served.scheduler.admission.sequences)
        put(cached)

    monkeypatch.setattr(behind, "begin", beginning)
    monkeypatch.setattr(served.scheduler.admission.swap, "swap_out", swapping)
    served.scheduler.step()
    watched = served.sequence(request(range(60, 160), 60, 2), driven=False, shares=False)
    served.scheduler.step()
    assert found == [(behind,), (behind, watched)]
    assert behind.n_preempted == 1
    assert served.scheduler.has_driven
    served.scheduler.close()
    assert served.scheduler.admission.sequences == ()
    assert not served.scheduler.has_driven


def test_a_stop_ends_answers_that_wait_whoever_is_before_them(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer, most_active=1)
    first, second, third = (served.sequence(request(range(3, 50), 100, seed)) for seed in range(3))
    served.scheduler.step()
    third.stop()
    served.scheduler.step()
    assert [each.is_over for each in (first, second, third)] == [False, False, True]
    served.scheduler.stop()
    served.scheduler.step()
    assert [each.stats.finish_reason for each in (first, second, third)] == ["cancelled"] * 3
    assert second.n_generated == 0


def test_a_preempted_stream_that_nobody_reads_takes_no_room_from_others(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer, n_pages=5)
    left = request(range(3, 103), 100)
    idle = served.sequence(left, driven=False)
    while idle.is_wanted:
        served.scheduler.step()
    behind = served.sequence(request(range(60, 200), 100, 3), "background", shares=False)
    served.run(behind)
    assert (idle.n_preempted, behind.n_preempted) == (1, 0)
    while served.driver.next_piece(idle) is not None:
        pass
    assert idle.output.text() == served.alone(left).text


def test_nobody_waits_for_a_prefix_that_a_stream_reads_that_nobody_asks(tokenizer: Tokenizer, tmp_path: Path) -> None:
    served = Served(tokenizer, n_pages=8, swap=SwapSpace(0, lambda: tmp_path / "none"))
    idle = served.sequence(request(range(3, 103), 100), driven=False)
    while idle.is_wanted:
        served.scheduler.step()
    served.scheduler.admission.swap.swap_out(idle.cached)  # forgotten: there is no place for it
    wanted = request([*range(3, 103), 150], 10, 5)
    late = served.sequence(wanted)
    served.run(late)
    served.same(late, wanted)


def test_an_answer_whose_beginning_is_broken_off_is_over(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tokenizer)
    wanted = request([7, 8], 20)
    fine, broken = served.sequence(wanted), served.sequence(request([9], 20))

    def interrupted(*, is_first: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(broken, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        served.scheduler.step()
    assert broken.is_over
    served.run(fine)
    served.same(fine, wanted)


def test_a_background_answer_that_has_waited_long_has_its_share_of_passes_for_a_while(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, seen = Served(tokenizer), list[list[bool]]()

    def noting(wishes: Sequence[Wish], pace: Pace, room: PassRoom) -> dict[int, int]:
        seen.append([wish.is_interactive for wish in wishes])
        return allot(wishes, pace, room)

    monkeypatch.setattr(scheduler, "allot", noting)
    first, second = (served.sequence(request([7 + n], 20), "background") for n in range(2))
    first._waits_since_s -= AGED_S
    served.scheduler.step()
    served.sequence(request([9], 20))
    served.scheduler.step()
    first._stays_until_s -= AGED_S
    served.scheduler.step()
    assert seen == [[False, False], [True, False, True], [False, False, True]]
    assert not second.is_over


def test_no_more_wait_for_a_prefix_than_could_begin(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    served, looked = Served(tokenizer, n_pages=40, most_active=4), list[object]()
    best = served.scheduler.admission.prefixes.best

    def noting(
        cached: CachedSequence, prompt: Sequence[int], scales: tuple[float, ...], *, exact: bool = True
    ) -> tuple[CachedSequence | None, int]:
        looked.append(cached)
        return best(cached, prompt, scales, exact=exact)

    monkeypatch.setattr(served.scheduler.admission.prefixes, "best", noting)
    wanted = [request([*range(3, 103), 150 + n], 4, n) for n in range(20)]
    entered = [served.sequence(each) for each in wanted]
    served.scheduler.step()
    assert len(looked) == 1 + 4  # the one that begins, and as many as there may be
    served.run(*entered)
    for sequence, each in zip(entered, wanted, strict=True):
        served.same(sequence, each)
    assert all(sequence.stats.n_cached >= 96 for sequence in entered[1:])
