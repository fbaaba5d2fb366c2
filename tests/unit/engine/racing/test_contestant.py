"""Devices compared in processes of their own: real ones with a tiny model, and some that crash or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.device_choice import DeviceChoice, entrant_kinds
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.racing import child, contestant
from edgeinfer.engine.racing.child import first_layers, pass_s
from edgeinfer.engine.racing.contest import Contestant, ContestantFailed, Finish, Waiting, compare
from edgeinfer.engine.racing.contestant import ChildContestant, RacedModel, choice_of
from edgeinfer.engine.run.evaluators import open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.ipc.child import ChildProcess
from edgeinfer.load_options import LoadOptions
from tests.golden.goldens import Golden
from tests.waiting import is_over, until

GOLDEN = Golden.read("llama-q8_0")
OPTIONS = DeviceOptions(n_workers=1)
MODEL = RacedModel(GOLDEN.model, OPTIONS, "f16", 1)


def ignore(*given: object) -> None:
    """Whatever is told."""


START = "from edgeinfer.ipc.child import connect; from edgeinfer.engine.racing.child import *; channel = connect();"
OPEN = "channel.receive(RaceOpening); channel.send(RaceReply(is_open=True));"
TURN = "channel.receive(RaceTurn);"


class Programs:
    """Writes programs that devices run in place of ours."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    def run(self, code: str) -> ChildContestant:
        (self._folder / "raced_program.py").write_text(code)
        return Replaced("onnx", MODEL)


class Replaced(ChildContestant):
    """A device whose process runs another program."""

    def open(self, waiting: Waiting) -> Sequence[Contestant]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contestant, "MODULE", "raced_program")
            return super().open(waiting)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


def test_those_that_cannot_run_the_model_do_not_take_part() -> None:
    names = ["cpu", "openvino:abacus", "nobody", "reference"]
    told: list[tuple[str, int, int]] = []
    entrants = [ChildContestant(name, MODEL) for name in names]
    found = compare(entrants, lambda *step: told.append(step))
    assert [each.device for each in found] == ["cpu", "reference"]
    assert all(each.prefill_tok_s > 0 and each.decode_tok_s > 0 for each in found)
    assert {step[0] for step in told} >= {f"comparing devices, once: {name}" for name in names}
    for each in entrants:
        until(lambda pid=each.pid: is_over(pid))


CRASHES = {
    "dies": "import os; os.abort()",
    "dies in its turn": f"{START} {OPEN} {TURN} os.abort()",
    "ends": "",
    "fails": f"{START} channel.send(RaceReply(error='no driver'))",
    "says nonsense": f"{START} channel._connection.send_bytes(b'Segmentation fault')",
    "sends another record": f"{START} channel.send(RaceTurn())",
    "gives no speeds": f"{START} {OPEN} {TURN} channel.send(RaceReply(speeds=(0.0, 1.0)))",
}


@pytest.mark.parametrize("code", CRASHES.values(), ids=CRASHES.keys())
def test_a_device_that_crashes_takes_no_part(code: str, programs: Programs) -> None:
    found = compare([ChildContestant("reference", MODEL), programs.run(code)], ignore)
    assert [each.device for each in found] == ["reference"]


def test_a_device_that_cannot_be_started_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with pytest.raises(ContestantFailed, match="onnx cannot be tried"):
        ChildContestant("onnx", MODEL).open(ignore)


@pytest.mark.parametrize("where", ["opening", "a turn"])
def test_a_device_that_hangs_is_ended(where: str, programs: Programs) -> None:
    opens = f"{START} {OPEN}" if where == "a turn" else ""
    hanging = programs.run(f"import time; {opens}\nwhile True: time.sleep(1)")
    hanging.open_s, hanging.turn_s = (0.5, 60.0) if where == "opening" else (60.0, 0.5)
    assert compare([hanging], ignore) == ()
    until(lambda: is_over(hanging.pid))


def test_a_comparison_that_is_called_off_ends_the_process_at_once(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CalledOff(BaseException):
        pass

    told: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        told.append(what)
        if len(told) > 3:
            raise CalledOff

    killed: list[int] = []
    kill = ChildProcess.kill
    monkeypatch.setattr(ChildProcess, "kill", lambda each: (killed.append(each.pid), kill(each)))
    hanging = programs.run("while True: pass")
    with pytest.raises(CalledOff):
        compare([hanging], progress)
    assert set(killed) == {hanging.pid}  # not asked to end, and waited for
    assert told == ["comparing devices, once: onnx"] * 4
    assert contestant.LOOK_S <= 2
    until(lambda: is_over(hanging.pid))


def test_progress_of_compiling_is_shown(programs: Programs) -> None:
    steps = "RaceReply(progress=('compiling', 1, 9)), RaceReply(progress=('compiling', 9, 9)), RaceReply(is_open=True)"
    told: list[object] = []
    entrant = programs.run(f"{START}\nfor each in {steps}: channel.send(each)\n{TURN}")
    entrant.open(told.append)
    entrant.close()
    assert [*dict.fromkeys(told)] == [None, ("compiling", 1, 9)]
    assert told[-1] is None


def test_devices_of_a_kind_race_each(programs: Programs) -> None:
    told = "channel.send(RaceReply(('onnx:a', 'onnx:b')));"
    entrant = programs.run(f"{START} {told} {OPEN} {TURN}")
    others = entrant.open(ignore)
    entrant.close()
    assert [entrant.device, *(each.device for each in others)] == ["onnx:a", "onnx:b"]


def test_the_choice_says_how_certain_it_is() -> None:
    cpu, onnx = Finish("cpu", 900, 134.04, is_quiet=False), Finish("onnx", 800, 185)
    assert choice_of([cpu, onnx]) == DeviceChoice("onnx", is_provisional=True, runner_up_tok_s=134.0)
    assert choice_of([Finish("cpu", 900, 430), onnx]) == DeviceChoice("cpu", runner_up_tok_s=185)
    assert choice_of([Finish("cpu", 900, 430)]) == DeviceChoice("cpu")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_process_ends_with_its_parent() -> None:
    code = (
        "import sys, time; from pathlib import Path; from edgeinfer.backends.base import DeviceOptions;"
        "from edgeinfer.engine.racing.contestant import ChildContestant, RacedModel;"
        f"model = RacedModel(Path({str(GOLDEN.model)!r}), DeviceOptions(n_workers=1), 'f16', 1);"
        "each = ChildContestant('reference', model); each.open(lambda told: None);"
        "print(each.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: is_over(pid))


def test_no_runtime_stays_in_this_process_where_the_cpu_wins(home: Path) -> None:
    """A whole start with the race, in a fresh Python: afterwards no other device's runtime is imported."""
    code = (
        "import sys, edgeinfer\n"
        "from edgeinfer.engine.opening import device_choice\n"
        "from edgeinfer.engine.racing import contest\n"
        "device_choice.LEAST_BYTES, contest.WORTH = 0, 1e9\n"  # the cpu wins
        "from edgeinfer.engine.loading import load\n"
        f"llm = load({str(GOLDEN.model)!r}, race='first', n_context=128, spec='off')\n"
        "print(llm.info.device, [text for text in llm.info.notices if 'device' in text])\n"
        "print(sorted({'openvino', 'onnxruntime', 'onnx', 'llama_cpp', 'numba_cuda'} & set(sys.modules)))\n"
        "llm.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    chosen, imported = done.stdout.splitlines()
    assert chosen.startswith("cpu [")
    assert imported == "[]"
    if {"onnx", "openvino"} & {*entrant_kinds()}:
        assert "device here" in chosen


def test_of_large_models_a_few_layers_race(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = open_subject(GOLDEN.model, LoadOptions(device=AUTO_DEVICE, n_context=GOLDEN.n_context))
    assert subject.spec is not None
    assert first_layers(subject.spec, subject) == (subject.spec, 1.0)
    monkeypatch.setattr(child, "RACED_BYTES", 1)
    spec, share = first_layers(subject.spec, subject)
    assert [stage.name for stage in spec.stages] == ["embed", "blk.0", "head"]
    assert 0 < share < 1
    request = OpeningRequest(spec, subject.gguf, limits_for(128), OPTIONS)
    with open_executor("cpu", request, "few") as executor:
        assert pass_s(executor, executor.create(), 8) > 0


def test_a_contestant_that_is_dead_says_so(programs: Programs) -> None:
    dead = programs.run("raise SystemExit('no driver')")
    with pytest.raises(ContestantFailed, match="onnx ended with exit code 1: no driver"):
        dead.open(ignore)
    dead.close()
    dead.close()
