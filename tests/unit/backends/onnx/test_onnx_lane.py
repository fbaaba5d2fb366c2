"""Lanes of the onnx device: rows that come and go, threads, ends, failures, and attention by plain operators."""

from __future__ import annotations

import os
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Device, DeviceOptions, Limits
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import DeviceFailed, DeviceUnavailable, EngineClosed
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.models.load import open_model
from edgeinfer.process import allowed_cpus
from tests.golden.goldens import Golden, Player, distance
from tests.unit.backends.onnx.onnx_parts import LIMITS, chain, part
from tests.waiting import rests

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx.helper")

from edgeinfer.backends.onnx import attention
from edgeinfer.backends.onnx import lane as lanes
from edgeinfer.backends.onnx.device import OnnxDevice

FEW = Limits(PAGE, 3, 8, 8)
"""So few pages that rows of rejected drafts are soon in the way."""
PATIENCE_S = 60.0


def device() -> OnnxDevice:
    return OnnxDevice(DeviceOptions(n_workers=2))


def tree(sequence: int, n_cached: int, tokens: list[int], parents: list[int]) -> Batch:
    """A draft tree whose logits are all wanted."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    index = np.arange(len(tokens), dtype=np.int32)
    positions = np.array(depths, np.int32) + np.int32(n_cached)
    return Batch(
        np.array(tokens, np.int32),
        np.full(len(tokens), sequence, np.int32),
        positions,
        np.array(parents, np.int32),
        index,
    )


def drafted(opened: Device, name: str) -> np.ndarray:
    """Logits of many drafts on three sequences, of which some path is kept; sequences end, begin and branch."""
    golden = Golden.read(name)
    rng = np.random.default_rng(11)
    seen = []
    with open_model(golden.model, PAGE) as model:
        lane = opened.compile(model.spec, model.file, FEW)
        with Executor(opened, lane, FEW, "golden") as executor:
            sequences = [executor.create()]
            for turn in range(90):
                number = int(rng.integers(len(sequences)))
                sequence = sequences[number]
                n_cached = executor.n_cached(sequence)
                if n_cached > 40:
                    executor.free(sequence)
                    sequences[number] = executor.create()
                    continue
                parents = [-1, 0, 1, 0, 3, -1, 5]
                tokens = rng.integers(0, model.spec.n_vocab, len(parents)).tolist()
                seen.append(executor.evaluate(tree(sequence, n_cached, tokens, parents)).copy())
                executor.commit(sequence, np.array(([0, 3, 4], [5], [0, 1])[turn % 3], np.int32))
                if turn == 20:
                    sequences.append(executor.branch(sequence))
    return np.concatenate(seen)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["llama-f32", "gemma2-f32"])
def test_rows_come_and_go(monkeypatch: pytest.MonkeyPatch, name: str, plain: bool) -> None:
    compactions = []
    compact = lanes.OnnxCache._compact
    monkeypatch.setattr(lanes.OnnxCache, "_compact", lambda *given: (compactions.append(1), compact(*given)))
    if plain:
        monkeypatch.setattr(attention, "HEAD_MULTIPLE", 1 << 20)
    assert distance(drafted(device(), name), drafted(ReferenceDevice(), name)) < 1e-5
    assert len(compactions) > 2


@pytest.mark.parametrize("name", ["llama-f32", "gemma2-f32", "phi3-longrope-q8_0@long", "qwen3-f32"])
def test_plain_operators_attend_as_the_one_operator_does(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(attention, "HEAD_MULTIPLE", 1 << 20)
    golden = Golden.read(name)
    with Player(device(), golden) as player:
        logits = np.concatenate([player.feed(chunk) for chunk in np.split(golden.tokens, [10, 11, 40])])
    assert golden.error(logits) < (1e-5 if name.endswith("f32") else 1e-1)


def test_a_full_context_is_written_and_read_again() -> None:
    """Pages of a whole cache, put back twice: rows of the first time give way."""
    golden = Golden.read("llama-q8_0")
    pages = np.arange(12, dtype=np.int32)
    with Player(device(), golden) as player:
        player.feed(golden.tokens)
        contents = player.lane.read_pages(pages)
        for _ in range(3):
            player.lane.write_pages(pages, contents)
        assert np.array_equal(player.lane.read_pages(pages), contents)


def test_the_caller_goes_on_while_a_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden.read("llama-f32")
    gate, run = threading.Event(), lanes.GraphSession.run

    def held_up(session: lanes.GraphSession, options: object = None) -> None:
        assert gate.wait(30)
        run(session)

    monkeypatch.setattr(lanes.GraphSession, "run", held_up)
    with open_model(golden.model, 128) as model:
        lane = device().compile_fragment(part(model.spec, model.spec.ops(), (), ("logits",)), model.file, LIMITS)
        before = time.perf_counter()
        lane.submit(chain(golden.tokens[:20], 0), {})
        gate.set()  # reached only because submit does not wait for the step
        logits = lane.wait()["logits"]
        began, ended = lane.ran
        assert before <= began <= ended <= time.perf_counter()
        assert distance(logits[:, golden.columns], golden.logits[:20]) < 1e-5
        with pytest.raises(DeviceFailed, match="no step was submitted"):
            lane.wait()
        lane.close()
        with pytest.raises(EngineClosed):
            lane.submit(chain(golden.tokens[:1], 20), {})
        assert lane.resident_bytes == 0


def test_a_whole_model_that_stalls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a driver may hang: nobody waits for its step any longer."""
    golden = Golden.read("llama-f32")
    gate, run = threading.Event(), lanes.GraphSession.run

    def held_up(session: lanes.GraphSession, options: object = None) -> None:
        assert gate.wait(30)
        run(session)

    with open_model(golden.model, 128) as model:
        fragment = part(model.spec, model.spec.ops(), (), ("logits",))
        lane = lanes.OnnxLane(device().compile_fragment(fragment, model.file, LIMITS), "logits", apart=True)
        expected = lane.run(chain(golden.tokens[:4], 0))[:, golden.columns]
        assert distance(expected, golden.logits[:4]) < 1e-5
        monkeypatch.setattr(lanes.GraphSession, "run", held_up)
        monkeypatch.setattr(lane._part, "patience_s", 0.05)
        with pytest.raises(DeviceFailed, match="did not finish a step"):
            lane.run(chain(golden.tokens[4:8], 4))
        lane.close()  # does not wait for it
        assert not gate.is_set()
        gate.set()
        thread = lane._part._thread
        assert thread is not None
        thread.shutdown(wait=True)


def test_a_whole_model_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ONNX Runtime itself, which is told to stop; the lane goes on, and no thread is left of it."""
    golden, run = Golden.read("llama-f32"), lanes.GraphSession.run
    before = threading.active_count()

    def slow(session: lanes.GraphSession, options: lanes.onnxruntime.RunOptions) -> None:
        deadline = time.monotonic() + 30
        while not options.terminate:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        run(session, options)

    with open_model(golden.model, 128) as model:
        lane = device().compile(model.spec, model.file, LIMITS)
        assert lane._watch is not None
        lane._watch.patience_s = 0.05
        with monkeypatch.context() as patch:
            patch.setattr(lanes.GraphSession, "run", slow)
            with pytest.raises(DeviceFailed, match="the onnx device did not finish a step"):
                lane.run(chain(golden.tokens[:4], 0))
        lane._watch.patience_s = 60
        logits = lane.run(chain(golden.tokens[:4], 0))
        assert distance(logits[:, golden.columns], golden.logits[:4]) < 1e-5
        lane.close()
        lane.close()
    assert threading.active_count() <= before


def test_a_step_that_fails_says_so_and_the_lane_goes_on() -> None:
    golden = Golden.read("llama-f32")
    with open_model(golden.model, 128) as model:
        spec = model.spec
        layer = [op for stage in spec.stages[1:2] for op in stage.ops]
        lane = device().compile_fragment(part(spec, layer, ("x",), ("x",)), model.file, LIMITS)
        step, rows = chain(golden.tokens[:4], 0), np.ones((4, spec.width), np.float32)
        lane.submit(step, {"x": rows[:, :-1]})
        with pytest.raises(DeviceFailed, match="ONNX Runtime failed"):
            lane.wait()
        lane.submit(step, {"x": rows})
        assert np.isfinite(lane.wait()["x"]).all()
        lane.close()


def test_no_thread_is_left_and_none_works_between_steps() -> None:
    golden = Golden.read("llama-f32")
    before = threading.active_count()
    with open_model(golden.model, 128) as model:
        lane = device().compile_fragment(part(model.spec, model.spec.ops(), (), ("logits",)), model.file, LIMITS)
        lane.submit(chain(golden.tokens[:20], 0), {})
        lane.wait()
        assert rests(time.process_time)
        lane.close()
    assert threading.active_count() <= before  # a thread of an earlier test may have ended meanwhile


def test_a_provider_that_does_not_start_is_not_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime leaves out a provider whose driver is missing and would go on with the others."""
    import onnxruntime

    golden = Golden.read("llama-f32")
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda session: ["CPUExecutionProvider"])
    opened = OnnxDevice(DeviceOptions(target="cuda"))
    message = "CUDAExecutionProvider, but it did not start here"
    with open_model(golden.model, 128) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real one says that it knows no CUDA
        with pytest.raises(DeviceUnavailable, match=message):
            opened.compile(model.spec, model.file, LIMITS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("bad allocation", MemoryError),
        ("Failed to allocate memory for requested buffer", MemoryError),
        ("x", DeviceFailed),
    ],
)
def test_a_shortage_of_memory_is_told_from_a_failure(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception]
) -> None:
    golden = Golden.read("llama-f32")

    class Broken:
        def run_with_iobinding(self, binding: object, options: object) -> None:
            raise RuntimeError(text)

    with Player(device(), golden) as player:
        session = player.lane._part._session  # type: ignore[attr-defined]
        whole, session._session = session._session, Broken()
        with pytest.raises(kind, match=text):
            player.feed(golden.tokens[:5])
        session._session = whole
        assert np.isfinite(player.feed(golden.tokens[:5])).all()


def test_threads_stay_on_the_cores_they_are_given() -> None:
    """The runtime starts one thread less than it is given workers; that one goes to the second core."""
    cores = allowed_cpus()
    if len(cores) < 2 or not Path("/proc/self/task").is_dir():
        pytest.skip("needs two cores and /proc")
    golden = Golden.read("llama-f32")
    before = set(os.listdir("/proc/self/task"))
    with Player(OnnxDevice(DeviceOptions(cores=cores[:2])), golden):
        started = {int(task) for task in set(os.listdir("/proc/self/task")) - before}
        assert started
        ends = time.monotonic() + PATIENCE_S  # a thread moves itself, some time after it was started
        while (found := {tuple(os.sched_getaffinity(task)) for task in started}) != {(cores[1],)}:
            assert time.monotonic() < ends, found
            time.sleep(0.01)
