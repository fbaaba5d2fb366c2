"""The scheduler: each answer is what it is alone, whoever it shares passes and memory with."""

from __future__ import annotations

import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.scheduler import retained
from edgeinfer.engine.scheduler.retained import SwapSpace
from edgeinfer.engine.scheduler.sequence import AHEAD, ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.errors import EdgeInferError, EngineClosed
from edgeinfer.graph.step import Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import Served, request, stream_of

SYSTEM = range(3, 103)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def test_prompts_are_read_while_others_go_on(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    wanted = [request(range(3, 3 + n), 20, n) for n in (1, 90, 40, 200)]
    entered = [served.sequence(each) for each in wanted]
    served.run(*entered)
    for sequence, each in zip(entered, wanted, strict=True):
        served.same(sequence, each)
    assert max(served.lane.sizes) <= 32


def test_somebody_who_comes_takes_memory_from_background_answers_and_they_go_on(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer, n_pages=8)
    behind = [request(range(3, 73), 100, seed) for seed in range(2)]
    entered = [served.sequence(each, "background") for each in behind]
    for _ in range(12):
        served.scheduler.step()
    watched = request(range(100, 200), 30)
    sequence = served.sequence(watched)
    served.run(sequence)
    served.same(sequence, watched)
    assert served.scheduler.admission.swap.counts.in_ram > 0
    assert not any(each.is_over for each in entered)
    served.run(*entered)
    for other, each in zip(entered, behind, strict=True):
        served.same(other, each)
    counts = served.scheduler.admission.swap.counts
    assert (counts.swapped_in, counts.dropped, served.scheduler.admission.swap.ram_bytes) == (counts.in_ram, 0, 0)
    assert sum(each.n_preempted for each in entered) == counts.in_ram


@pytest.mark.parametrize("place", ["ram", "disk", "nowhere"])
def test_a_preempted_answer_is_the_same_wherever_it_waited(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    swap = SwapSpace(1 << 30 if place == "ram" else 0, lambda: tmp_path)
    if place == "nowhere":

        def full(**_: object) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    served = Served(tokenizer, n_pages=5, swap=swap)
    first, second = request(range(3, 133), 60, 1), request(range(60, 160), 60, 2)
    behind = served.sequence(first, "background", shares=False)
    for _ in range(9):
        served.scheduler.step()
    watched = served.sequence(second, shares=False)
    served.run(watched)
    assert behind.n_preempted == 1
    assert list(tmp_path.iterdir()) == []  # files have no name
    served.run(behind)
    served.same(behind, first)
    served.same(watched, second)
    counts = swap.counts
    assert (counts.in_ram, counts.on_disk, counts.dropped) == {"ram": (1, 0, 0), "disk": (0, 1, 0)}.get(
        place, (0, 0, 1)
    )
    n_read = sum(served.lane.sizes)
    assert (n_read > 130 + 59 + 100 + 59) == (place == "nowhere")  # what is forgotten is read again
    assert served.pool.executor.n_free_pages == 5


def test_a_swap_file_that_cannot_be_read_back_costs_time_and_no_token(tokenizer: Tokenizer, tmp_path: Path) -> None:
    swap = SwapSpace(0, lambda: tmp_path)
    served = Served(tokenizer, n_pages=5, swap=swap)
    first, second = request(range(3, 133), 60, 1), request(range(60, 160), 60, 2)
    behind = served.sequence(first, "background", shares=False)
    for _ in range(9):
        served.scheduler.step()
    watched = served.sequence(second, shares=False)
    while not behind.n_preempted:
        served.scheduler.step()
    (kept,) = swap._swapped.values()
    kept.file.truncate(10)
    served.run(watched, behind)
    served.same(behind, first)
    assert swap.counts.dropped == 1


def test_prompts_that_begin_alike_are_read_once(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    wanted = [request([*SYSTEM, 150 + n, 160 + n], 10, n) for n in range(4)]
    entered = [served.sequence(each) for each in wanted]
    served.run(*entered)
    for sequence, each in zip(entered, wanted, strict=True):
        served.same(sequence, each)
    assert [sequence.stats.n_cached for sequence in entered] == [0, 96, 96, 96]  # what is left is too little to wait
    assert sum(served.lane.sizes) == 102 + 9 + 3 * (6 + 9)


def test_what_was_read_of_answers_that_are_over_is_kept_while_there_is_room(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    first = request(SYSTEM, 20)
    sequence = served.sequence(first)
    served.run(sequence)
    turn = request([*SYSTEM, *sequence.tokens, 150, 151], 20)
    again = served.sequence(turn)
    served.run(again)
    served.same(again, turn)
    assert again.stats.n_cached == 119  # its last token had not been read
    assert len(served.scheduler.admission.prefixes.kept) == 1  # one that begins as the other replaces it
    other = request([*SYSTEM[:50], 200, 201], 20)
    branch = served.sequence(other)
    served.run(branch)
    served.same(branch, other)
    assert branch.stats.n_cached == 50
    assert len(served.scheduler.admission.prefixes.kept) == 2
    large = request(range(20, 220), 56)
    served.run(*[served.sequence(large, shares=False) for _ in range(6)])
    assert len(served.scheduler.admission.prefixes.kept) < 2
    served.scheduler.close()
    assert served.pool.executor.n_free_pages == 24


def test_no_more_is_kept_than_so_many(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "MOST_KEPT", 3)
    served = Served(tokenizer, n_pages=40)
    for n in range(6):
        served.run(served.sequence(request(range(3 + 20 * n, 23 + 20 * n), 4)))
    assert len(served.scheduler.admission.prefixes.kept) == 3


def test_streams_that_nobody_asks_get_a_few_pieces_ahead_and_give_way(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer, n_pages=8)
    left = request(range(3, 103), 100)
    idle = served.sequence(left, driven=False)
    busy = served.sequence(request(range(40, 60), 200), driven=True)
    for _ in range(120):
        served.scheduler.step()
    assert idle.output.n_pieces == AHEAD
    served.run(busy)
    more = [request(range(60 + n, 200), 50, n) for n in range(2)]
    entered = [served.sequence(each, "background", shares=False) for each in more]
    served.run(*entered)
    assert idle.n_preempted
    pieces = []
    while (piece := served.driver.next_piece(idle)) is not None:
        pieces.append(piece)
    assert "".join(pieces) == served.alone(left).text


def test_leaving_forgets_what_nobody_has_seen(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    wanted = request(range(3, 40), 50)
    sequence = served.sequence(wanted)
    while sequence.n_generated < 20:
        served.scheduler.step()
    seen = "".join(served.driver.next_piece(sequence) or "" for _ in range(5))
    served.scheduler.leave(sequence)
    assert sequence.is_over
    assert sequence.output.text() == seen
    assert served.alone(wanted).text.startswith(seen)
    waiting = served.sequence(request([5], 5))
    served.scheduler.leave(waiting)  # it has not begun
    assert waiting.is_over
    assert waiting.stats.finish_reason == "cancelled"


def test_a_stream_that_is_dropped_waits_for_nobody(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    wanted = request(range(3, 40), 50)

    def begun() -> ScheduledSequence:
        stream = stream_of(served.pool.open(), tokenizer, wanted, driver=served.driver)
        sequence, shown = stream._sequence, next(stream)
        assert served.scheduler.admission.active
        del stream  # the finalizer of its generator runs here
        assert sequence.output.text(sequence.n_seen) == shown
        return sequence

    begun()
    assert served.scheduler.admission.sequences == ()  # nobody held the lock
    with served.pool.lock:  # as a finalizer in the middle of a pass
        left = begun()
        assert len(served.scheduler.admission.active) == 1
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with served.pool.lock:
            holds.set()
            ends.wait(10)

    pieces = stream_of(served.pool.open(), tokenizer, wanted, driver=served.driver)._pieces
    next(pieces)
    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(10)
    pieces.close()  # another thread makes a pass
    ends.set()
    thread.join()
    other = served.sequence(request([5], 3))
    served.run(other)
    assert served.scheduler.admission.sequences == ()
    assert left.stats is not None


def test_a_stream_that_is_dropped_while_another_threads_last_pass_is_made_is_over_with_it(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tokenizer)
    pieces = stream_of(served.pool.open(), tokenizer, request(range(3, 40), 50), driver=served.driver)._pieces
    next(pieces)
    last = served.sequence(request([7], 1))
    real = served.lane.run

    def run(step: Step) -> np.ndarray:
        dropping = threading.Thread(target=pieces.close)
        dropping.start()
        dropping.join(10)
        return real(step)

    monkeypatch.setattr(served.lane, "run", run)
    served.scheduler.step()
    assert last.is_over
    assert served.scheduler.admission.sequences == ()
    assert not any(member.runs for member in served.pool.members)


def test_an_error_ends_the_answer_whose_it_is(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tokenizer)
    good, bad = request([7, 8], 20), request([9], 20)
    fine, broken = served.sequence(good), served.sequence(bad)

    def show(token: int) -> None:
        raise EdgeInferError("no such token")

    monkeypatch.setattr(broken, "show", show)
    served.run(fine, broken)
    served.same(fine, good)
    with pytest.raises(EdgeInferError, match="no such token"):
        served.driver.next_piece(broken)


def test_an_interrupted_pass_costs_nobody_a_token(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tokenizer)
    entered = served.under_way()
    real = served.lane.run

    def interrupted(step: Step) -> np.ndarray:
        served.lane.run = real  # type: ignore[method-assign]
        raise KeyboardInterrupt

    served.lane.run = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        served.scheduler.step()
    served.run(*entered)
    for sequence, each in entered.items():
        served.same(sequence, each)


def test_a_failed_pass_fails_all_that_took_part(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    entered = [served.sequence(request([7 + n], 20)) for n in range(2)]
    served.scheduler.step()

    def broken(step: Step) -> np.ndarray:
        raise EdgeInferError("the device is gone")

    served.lane.run = broken  # type: ignore[method-assign]
    served.run(*entered)
    for sequence in entered:
        sequence.output.take_all()
        with pytest.raises(EdgeInferError, match="the device is gone"):
            served.driver.next_piece(sequence)


def test_threads_lead_for_each_other(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer, n_pages=40)
    wanted = [request(range(3 + n, 40 + n), 60, n) for n in range(6)]
    found: dict[int, TextStream] = {}

    def stream(number: int) -> None:
        generation = stream_of(served.pool.open(), tokenizer, wanted[number], driver=served.driver)
        found[number] = generation
        list(generation)

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, each in enumerate(wanted):
        assert found[number].text == served.alone(each).text
    assert len(served.lane.sizes) < 0.7 * 6 * 60  # most passes were shared


def told(generation: TextStream, left: list[int], over: threading.Event) -> None:
    """Count the answers that are over; all of them are once none is left."""
    if generation._sequence.is_over:
        left[0] -= 1
        if not left[0]:
            over.set()


def test_the_engines_thread_leads_where_nobody_waits_and_sleeps_when_there_is_nothing(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer)
    wanted = [request([7 + n], 30, n) for n in range(3)]
    for _ in range(2):
        over, left = threading.Event(), [3]
        made: list[ScheduledSequence] = []
        for each in wanted:
            generation = stream_of(served.pool.reserve(), tokenizer, each, driver=served.driver, shares_prefix=True)

            served.driver.drive(generation._sequence, partial(told, generation, left, over))
            made.append(generation._sequence)
        assert over.wait(30)
        for sequence, each in zip(made, wanted, strict=True):
            served.same(sequence, each)
    n_passes = served.scheduler.counts.passes
    thread = served.driver._thread
    assert thread is not None
    assert thread.is_alive()
    assert not served.driver._demand.is_set()
    assert served.scheduler.counts.passes == n_passes
    served.driver.close()
    assert not thread.is_alive()


def test_closing_ends_what_is_in_the_making_and_what_waits(tokenizer: Tokenizer) -> None:
    served = Served(tokenizer, most_active=1)
    entered = [served.sequence(request([7 + n], 60), driven=False) for n in range(3)]
    for _ in range(4):
        served.scheduler.step()
    served.driver.close()
    assert all(sequence.is_over for sequence in entered)
    assert {sequence.stats.finish_reason for sequence in entered} == {"cancelled"}
    served.pool.close()
    late = served.sequence(request([7], 5))
    with pytest.raises(EngineClosed):
        StepDriver(served.scheduler).next_piece(late)


def test_a_bug_in_the_engines_thread_reaches_who_waits(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tokenizer)

    def broken() -> bool:
        raise RuntimeError("unheard of")

    monkeypatch.setattr(served.scheduler, "step", broken)
    over = threading.Event()
    generation = stream_of(served.pool.reserve(), tokenizer, request([5], 5), driver=served.driver)
    sequence = generation._sequence
    served.driver.drive(sequence, over.set)
    assert over.wait(30)
    with pytest.raises(RuntimeError, match="unheard of"):
        served.driver.next_piece(sequence)
    served.driver.close()
