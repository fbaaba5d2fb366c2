"""Devices compared in processes of their own: real ones with a tiny model, and such as crash, hang or talk nonsense."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.racing import child, contestant
from edgeinfer.engine.racing.child import first_layers, pass_s
from edgeinfer.engine.racing.choosing import entrant_kinds
from edgeinfer.engine.racing.contest import ContestantFailed, compare
from edgeinfer.engine.racing.contestant import ChildContestant, RacedModel
from edgeinfer.engine.run.evaluators import open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.load_options import LoadOptions
from tests.golden.goldens import Golden

GOLDEN = Golden.read("llama-q8_0")
OPTIONS = DeviceOptions(n_workers=1)
MODEL = RacedModel(GOLDEN.model, OPTIONS, "f16", 1)


def ignore(*given: object) -> None:
    """Whatever is told."""


def python(code: str) -> ChildContestant:
    return ChildContestant("onnx", MODEL, start=[sys.executable, "-c", code])


def is_over(pid: int) -> bool:
    """Whether a process ends within a while."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_those_that_cannot_run_the_model_do_not_take_part() -> None:
    names = ["cpu", "openvino:abacus", "nobody", "reference"]
    told: list[tuple[str, int, int]] = []
    entrants = [ChildContestant(name, MODEL) for name in names]
    found = compare(entrants, lambda *step: told.append(step))
    assert [each.device for each in found] == ["cpu", "reference"]
    assert all(each.prefill_tok_s > 0 and each.decode_tok_s > 0 for each in found)
    assert {step[0] for step in told} >= {f"comparing devices, once: {name}" for name in names}
    assert all(is_over(each.pid) for each in entrants)


CRASHES = {
    "dies": "import os; os.abort()",
    "dies in its turn": "import os; input(); print('{\"opened\": true}', flush=True); input(); os.abort()",
    "ends": "",
    "fails": 'print(\'{"error": "no driver"}\')',
    "says nonsense": "print('Segmentation fault')",
    "gives no speeds": 'input(); print(\'{"opened": true}\\n{"speeds": [0, null]}\', flush=True); input(); input()',
    "is no program": None,
}


@pytest.mark.parametrize("code", CRASHES.values(), ids=CRASHES.keys())
def test_a_device_that_crashes_takes_no_part(code: str | None) -> None:
    start = ["/no/such/program"] if code is None else [sys.executable, "-c", code]
    crashing = ChildContestant("onnx", MODEL, start=start)
    found = compare([ChildContestant("reference", MODEL), crashing], ignore)
    assert [each.device for each in found] == ["reference"]


@pytest.mark.parametrize("where", ["opening", "a turn"])
def test_a_device_that_hangs_is_ended(where: str) -> None:
    opens = "input(); print('{\"opened\": true}', flush=True)" if where == "a turn" else ""
    hanging = python(f"import time; {opens}\nwhile True: time.sleep(1)")
    hanging.open_s, hanging.turn_s = (0.5, 60.0) if where == "opening" else (60.0, 0.5)
    assert compare([hanging], ignore) == ()
    assert is_over(hanging.pid)


def test_waiting_is_told_and_whoever_calls_it_off_ends_the_process_at_once() -> None:
    class CalledOff(BaseException):
        pass

    told: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        told.append(what)
        if len(told) > 3:
            raise CalledOff

    hanging = python("while True: pass")
    with pytest.raises(CalledOff):
        compare([hanging], progress)
    assert told == ["comparing devices, once: onnx"] * 4
    assert contestant.LOOK_S <= 2
    assert is_over(hanging.pid)


def test_kernels_that_are_compiled_meanwhile_are_told_of() -> None:
    steps = '{"progress": ["compiling", 1, 9]}', '{"progress": ["compiling", 9, 9]}', '{"opened": true}'
    told: list[object] = []
    entrant = python(f"import time\nfor line in {steps!r}: print(line, flush=True); time.sleep(0.6)\ninput()")
    entrant.open(told.append)
    entrant.close()
    assert [*dict.fromkeys(told)] == [None, ("compiling", 1, 9)]
    assert told[-1] is None


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
    assert is_over(pid)


def test_no_runtime_stays_in_this_process_where_the_cpu_wins(home: Path) -> None:
    """A whole start with the race, in a fresh Python: afterwards no other device's runtime is imported."""
    code = (
        "import sys, edgeinfer\n"
        "from edgeinfer.engine.racing import choosing, contest\n"
        "choosing.LEAST_BYTES, contest.WORTH = 0, 1e9\n"  # the cpu wins
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
    with open_executor(spec, subject.gguf, "few", limits_for(128), "cpu", OPTIONS) as executor:
        assert pass_s(executor, executor.create(), 8) > 0


def test_a_contestant_that_is_dead_says_so() -> None:
    dead = python("")
    with pytest.raises(ContestantFailed, match="ended by itself"):
        dead.open(ignore)
    dead.close()
    dead.close()
