"""Devices take turns, load is noticed, and one that fails does not keep the others from finishing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgeinfer.engine.racing.contest import (
    Contestant,
    ContestantFailed,
    Finish,
    TurnSpeeds,
    Waiting,
    compare,
    is_certain,
    notice_of,
    runner_up_of,
    winner_of,
)

QUIET, BUSY = True, False


class Scripted:
    """A device with the speeds of its turns; None: it fails there."""

    def __init__(
        self,
        device: str,
        turns: Sequence[tuple[float, bool] | None],
        log: list[str],
        found: Sequence[Contestant] = (),
        opens: bool = True,
    ) -> None:
        self.device, self._turns, self._log, self._found, self._opens = device, list(turns), log, found, opens

    def open(self, waiting: Waiting) -> Sequence[Contestant]:
        self._log.append(f"open {self.device}")
        waiting(None)
        if not self._opens:
            raise ContestantFailed("no such thing")
        return self._found

    def turn(self, waiting: Waiting) -> TurnSpeeds:
        self._log.append(self.device)
        waiting(None)
        found = self._turns.pop(0)
        if found is None:
            raise ContestantFailed("crashed")
        return TurnSpeeds(10 * found[0], *found)

    def close(self) -> None:
        self._log.append(f"close {self.device}")


def ignore(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def test_devices_take_turns() -> None:
    log: list[str] = []
    steps: list[tuple[str, int, int]] = []
    entrants = [Scripted("cpu", [(400, QUIET)] * 2, log), Scripted("onnx", [(185, QUIET)] * 2, log)]
    found = compare(entrants, lambda *step: steps.append(step))
    assert log == ["open cpu", "open onnx", "cpu", "onnx", "cpu", "onnx", "close cpu", "close onnx"]
    assert found == (Finish("cpu", 4000, 400), Finish("onnx", 1850, 185))
    assert steps[0] == ("comparing devices, once: cpu", 0, 6)
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


def test_where_memory_is_short_one_device_is_open_at_a_time() -> None:
    log: list[str] = []
    entrants = [Scripted("cpu", [(400, QUIET)] * 2, log), Scripted("onnx", [(185, QUIET)] * 2, log)]
    compare(entrants, ignore, together=False)
    assert log == ["open cpu", "cpu", "cpu", "close cpu", "open onnx", "onnx", "onnx", "close onnx"]


def test_a_busy_core_does_not_make_the_cpu_lose() -> None:
    """The false result that was seen: 134 for the cpu, whose other turns are quiet and give 430."""
    entrants = [
        Scripted("cpu", [(134, BUSY), (131, BUSY), (430, QUIET), (420, QUIET)], []),
        Scripted("onnx", [(185, QUIET)] * 4, []),
    ]
    found = compare(entrants, ignore)
    assert found == (Finish("cpu", 4300, 430), Finish("onnx", 1850, 185))
    assert is_certain(found)
    assert winner_of(found) == "cpu"


def test_a_machine_that_stays_busy_gives_no_certain_result() -> None:
    entrants = [Scripted("cpu", [(134, BUSY)] * 4, []), Scripted("onnx", [(185, QUIET)] * 4, [])]
    found = compare(entrants, ignore)
    assert winner_of(found) == "onnx"
    assert not is_certain(found)


def test_who_fails_takes_no_further_part() -> None:
    log: list[str] = []
    gpu = Scripted("openvino:gpu", [(900, QUIET)] * 2, log)
    entrants = [
        Scripted("cpu", [(400, QUIET)] * 2, log),
        Scripted("cuda", [], log, opens=False),
        Scripted("onnx", [(800, QUIET), None], log),
        Scripted("openvino", [(100, QUIET)] * 2, log, found=[gpu]),
    ]
    found = compare(entrants, ignore)
    assert [each.device for each in found] == ["cpu", "openvino", "openvino:gpu"]
    assert winner_of(found) == "openvino:gpu"
    assert log.count("onnx") == 2
    assert sorted(line for line in log if line.startswith("close")) == [
        "close cpu",
        "close cuda",
        "close onnx",
        "close openvino",
        "close openvino:gpu",
    ]


def test_who_calls_it_off_leaves_nothing_open() -> None:
    class CalledOff(BaseException):
        pass

    def progress(what: str, done: int, total: int) -> None:
        if done == 2:
            raise CalledOff

    log: list[str] = []
    with pytest.raises(CalledOff):
        compare([Scripted("cpu", [(1, QUIET)] * 2, log), Scripted("onnx", [(1, QUIET)] * 2, log)], progress)
    assert log == ["open cpu", "open onnx", "close cpu", "close onnx"]


def test_the_cpu_wins_unless_another_is_clearly_faster() -> None:
    cpu = Finish("cpu", 1000, 100)
    assert winner_of([cpu, Finish("openvino", 1000, 105)]) == "cpu"
    assert winner_of([cpu, Finish("openvino", 1000, 130)]) == "openvino"
    assert winner_of([cpu, Finish("openvino", 1e6, 90)]) == "cpu"
    assert winner_of([Finish("openvino", 10, 10)]) == "openvino"
    assert winner_of([]) == "cpu"
    assert runner_up_of([cpu]) is None
    assert runner_up_of([cpu, Finish("onnx", 500, 50), Finish("openvino", 600, 60)]) == Finish("openvino", 600, 60)


def test_the_notice_is_one_line_that_is_true() -> None:
    cpu, others = Finish("cpu", 1000, 430), [Finish("openvino", 900, 120), Finish("onnx", 800, 110)]
    assert notice_of([*others, cpu]) == (
        "cpu is the fastest device here: 430 tok/s (openvino 120, onnx 110); --device chooses another"
    )
    close = notice_of([cpu, Finish("onnx", 1000, 440)])
    assert close.startswith("cpu is about as fast as any device here: ")
    prompts = notice_of([Finish("cpu", 100, 100), Finish("openvino", 2000, 95)])
    expected = "openvino is the fastest device here: 2000 tok/s for prompts and 95 for answers (cpu 100 "
    assert prompts.startswith(expected)
