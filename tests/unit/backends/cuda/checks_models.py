"""Whole golden models on the CUDA device, against what transformers computed; run under the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda import gemm
from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.driver import FAILURES, Driver, GpuArray, Recorder, Startable, Stream
from edgeinfer.backends.cuda.footprint import footprint, weight_regions
from edgeinfer.backends.cuda.layout import slab_bytes
from edgeinfer.backends.cuda.placing import stage_weights
from edgeinfer.errors import DeviceFailed, DeviceUnavailable, DoesNotFit, EngineClosed
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.conformance.test_shared_caches import changed
from tests.golden.goldens import PAGES, RESULTS, Golden, Player, distance, is_cpu_only
from tests.unit.backends.cuda import quick_blocks
from tests.unit.backends.cuda.checks_kernels import step_of
from tests.unit.engine.overlap.journeys import (
    EACH,
    Journey,
    alone,
    assert_as_alone,
    cpu,
    overlapping,
    texts,
    travel,
)

Floats = NDArray[np.float32]
SMALL = "llama-q8_0"
quick_blocks.install()


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    found = CudaDevice(Driver())
    yield found
    found.close()


MODELS = [
    *[("llama-k", "f16"), ("qwen2-q4_0", "q8"), ("gemma2-q8_0", "f16"), ("gemma3-bf16", "f16"), ("phi3-f16", "f16")],
    *[("minicpm3-q8_0", "q8"), ("minicpm3-f32", "f16")],
    *[("qwen3-k", "q8"), ("phi3-k", "f16"), ("gemma2-k", "f16"), ("llama-f32", "f16"), ("llama-yarn-q8_0", "f16")],
    *[("llama-bias-q8_0", "f16"), ("phi3-longrope-q8_0@long", "f16"), ("opt-q4_0", "q8"), ("opt-f16", "f16")],
    *[("llama-relu-sparse-q4_1", "f16"), ("llama-relu2-k", "f16"), ("granite-q8_0", "f16"), ("cohere2-q8_0", "q8")],
    *[("olmo-f32", "f16"), ("openelm-q8_0", "f16")],
]
FLOATS = ("bf16", "f16", "f32")


@pytest.mark.parametrize(("name", "kv"), MODELS)
def test_logits_are_those_of_transformers(device: CudaDevice, name: str, kv: KVKind) -> None:
    """Models of floats differ by the rounding of keys and values, others by that of activations too."""
    golden = Golden.read(name)
    with Player(device, golden, kv=kv) as player:
        logits = player.feed(golden.tokens[:4])
    error = distance(logits[:, golden.columns], golden.logits[: len(logits)])
    assert error < (2e-3 if name.endswith(FLOATS) else 0.05)


def test_a_shared_cache_is_as_good_as_a_copy(device: CudaDevice) -> None:
    """A layer that attends to the keys and values of the layer before it."""
    golden, logits = Golden.read(SMALL), []
    with open_model(golden.model, golden.n_context) as model:
        specs = [changed(model.spec, shares=shares) for shares in (True, False)]
    for spec in specs:
        with Player(device, golden, spec) as player:
            logits.append(np.concatenate([player.feed(golden.tokens[:2]), player.feed(golden.tokens[2:4])]))
    assert logits[0].tobytes() == logits[1].tobytes()


def test_windows_end(device: CudaDevice) -> None:
    """The last tokens no longer see the first ones; attention's own check has windows over pages."""
    golden = Golden.read("mistral-window-q8_0")
    with Player(device, golden) as player:
        logits = player.feed(golden.tokens[:30])
        window = player._model.spec.kv[0].window
    assert window is not None
    assert window < 25
    assert distance(logits[25:, golden.columns], golden.logits[25:30]) < 0.05


def fill(player: Player, n_cached: int) -> None:
    """Give a sequence of a player some cached tokens whose keys and values are any small numbers."""
    pages = np.arange(PAGES, dtype=np.int32)
    shape = player.lane.read_pages(pages).shape
    numbers = np.random.default_rng(1).standard_normal((shape[0], shape[1] // 2)).astype(np.float16)
    player.lane.write_pages(pages, numbers.view(np.uint8))
    player._cached[0] = n_cached


@pytest.mark.parametrize(("name", "kv"), [("llama-q8_0", "q8"), ("phi3-f16", "f16")])
def test_bits_do_not_depend_on_the_pass(device: CudaDevice, name: str, kv: KVKind) -> None:
    golden = Golden.read(name)
    tokens = golden.tokens[:14]
    with Player(device, golden, kv=kv) as player:
        whole = player.feed(tokens)
    with Player(device, golden, kv=kv) as player:
        parts = np.concatenate([player.feed(part) for part in np.split(tokens, [9, 10, 12])])
    assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize(("kv", "n_cached"), [("f16", 62), ("q8", 4)])
def test_trees_give_the_bits_of_chains(device: CudaDevice, kv: KVKind, n_cached: int) -> None:
    """Two branches, one of which may lead over the end of a page, each against its own chain."""
    golden = Golden.read(SMALL)
    left, right = golden.tokens[:4], np.array([11, 12], np.int32)
    with Player(device, golden, kv=kv) as player:
        fill(player, n_cached)
        tree = player.look(np.array([*left[:2], *right, *left[2:]], np.int32), [-1, 0, 0, 2, 1, 4])
        chain = player.look(left, [-1, 0, 1, 2])
        other = player.look(np.array([left[0], *right], np.int32), [-1, 0, 1])
    assert tree[[0, 1, 4, 5]].tobytes() == chain.tobytes()
    assert tree[[0, 2, 3]].tobytes() == other.tobytes()


def test_sequences_do_not_see_each_other(device: CudaDevice) -> None:
    golden = Golden.read(SMALL)
    first, second = golden.tokens[:4], golden.tokens[20:22]
    with Player(device, golden, n_sequences=2) as player:
        together = player.feed_together({1: first, 0: second})
        more = player.feed_together({0: first[:2], 1: second[:1]})
    with Player(device, golden, n_sequences=2) as player:
        alone = [player.feed(first, 1), player.feed(second, 0), player.feed(first[:2], 0), player.feed(second[:1], 1)]
    assert together.tobytes() + more.tobytes() == np.concatenate(alone).tobytes()


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_saved_pages_go_on_as_before(device: CudaDevice, kv: KVKind) -> None:
    golden = Golden.read(SMALL)
    pages = np.arange(PAGES, dtype=np.int32)
    with Player(device, golden, kv=kv) as first, Player(device, golden, kv=kv) as second:
        first.feed(golden.tokens[:3])
        second.feed(golden.tokens[30:33])
        second.lane.write_pages(pages[::-1].copy(), first.lane.read_pages(pages)[::-1].copy())
        assert second.feed(golden.tokens[3:5]).tobytes() == first.feed(golden.tokens[3:5]).tobytes()


@pytest.mark.parametrize("name", [path.stem for path in RESULTS if "@" not in path.stem and not is_cpu_only(path.stem)])
def test_footprints_are_what_lanes_hold(device: CudaDevice, name: str) -> None:
    golden = Golden.read(name)
    for kv in ("f16", "q8"):
        limits = Limits(golden.n_context, 5, 40, 20, kv)  # type: ignore[arg-type]
        with open_model(golden.model, golden.n_context) as model:
            expected = footprint(model.spec, model.file.tensors, limits)
            lane = device.compile(model.spec, model.file, limits)
            assert lane.resident_bytes == expected.weight_bytes + expected.kv_bytes + expected.buffer_bytes
            assert expected.kv_bytes == expected.kv_bytes_per_token * limits.n_pages * 64
            lane.close()
            assert lane.resident_bytes == 0


def test_streamed_weights_give_the_same_bits(device: CudaDevice) -> None:
    """With room for the embedding and two places of a stage, each sent after the one before it there has run."""
    golden = Golden.read(SMALL)
    with open_model(golden.model, golden.n_context) as model:
        spec, limits = single_ops(model.spec), Limits(golden.n_context, PAGES, 256, 256)
        whole = footprint(spec, model.file.tensors, limits)
        slabs = {
            weight: slab_bytes(list(sizes.values()))
            for weight, sizes in weight_regions(spec, model.file.tensors).items()
        }
    sizes = [sum(slabs[weight] for weight in stage_weights(stage)) for stage in spec.stages]
    budget = whole.kv_bytes + whole.buffer_bytes + sizes[0] + 2 * max(sizes[1:])
    small = CudaDevice(device.driver, budget)
    with Player(device, golden, spec=spec) as player:
        expected = player.feed(golden.tokens[:4])
    with Player(small, golden, spec=spec) as player:
        assert player.lane.part.model._weights.n_sent > 6  # type: ignore[attr-defined]
        assert player.lane.resident_bytes <= budget
        assert player.feed(golden.tokens[:4]).tobytes() == expected.tobytes()


def single_ops(spec: ModelSpec) -> ModelSpec:
    """A model whose layers are cut into stages of one op each, so that many are streamed."""
    stages = [Stage(f"{stage.name}.{place}", (op,)) for stage in spec.stages for place, op in enumerate(stage.ops)]
    return dataclasses.replace(spec, stages=tuple(stages))


def test_too_little_memory_is_said_with_numbers(device: CudaDevice) -> None:
    golden = Golden.read(SMALL)
    for budget in (1000, 500000):
        with pytest.raises(DoesNotFit, match=str(budget)):
            Player(CudaDevice(device.driver, budget), golden)


def halves(spec: ModelSpec) -> tuple[Fragment, Fragment]:
    """A model of two layers as two fragments that pass `x` on."""
    first = dataclasses.replace(spec, stages=spec.stages[:2], kv=spec.kv[:1])
    moved = tuple(
        Stage(
            stage.name,
            tuple(
                dataclasses.replace(op, layer=op.layer - 1) if isinstance(op, StoreKV | Attention) else op
                for op in stage.ops
            ),
        )
        for stage in spec.stages[2:]
    )
    second = dataclasses.replace(spec, stages=moved, kv=spec.kv[1:])
    return Fragment(first, (), ("x",)), Fragment(second, ("x",), (spec.logits,))


def test_fragments_make_the_whole(device: CudaDevice) -> None:
    golden = Golden.read(SMALL)
    limits = Limits(golden.n_context, 4, 32, 8)
    with open_model(golden.model, golden.n_context) as model:
        lanes = [device.compile_fragment(part, model.file, limits) for part in halves(model.spec)]
        whole = device.compile(model.spec, model.file, limits)
        for first, count in ((0, 3), (3, 1)):
            step = step_of(count, first, (count - 1,), golden.tokens[first : first + count])
            lanes[0].submit(step, {})
            x = lanes[0].wait()["x"]
            assert x.shape == (count, model.spec.width)
            lanes[1].submit(step, {"x": x})
            logits = lanes[1].wait()["logits"]
            began, ended = lanes[1].ran
            assert began < ended
            assert logits.shape == (1, model.spec.n_vocab)
            assert logits.tobytes() == whole.run(step).tobytes()
        for lane in (*lanes, whole):
            lane.close()
            lane.close()


def multiplied(x: GpuArray, tile: GpuArray, products: GpuArray, sizes: tuple[int, int, int], stream: Stream) -> None:
    """What cuBLAS is asked for, in NumPy."""
    n_tokens, n_rows, n_columns = sizes
    held = [np.empty(count, np.uint16) for count in (n_tokens * n_columns, n_rows * n_columns)]
    for array, host in zip((x, tile), held, strict=True):
        array[: len(host)].copy_to_host(host)
    left, right = (host.view(np.float16).astype(np.float32).reshape(-1, n_columns) for host in held)
    products[: n_tokens * n_rows].copy_to_device((left @ right.T).reshape(-1))


@pytest.mark.parametrize("name", ["llama-bias-q8_0", "phi3-f16"])
def test_large_products_are_left_to_others(device: CudaDevice, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of three tokens or more go through float16 tiles of ten rows; smaller ones do not change by a bit."""
    monkeypatch.setattr(gemm, "TILE_BYTES", 2 * 10 * 64)
    large = CudaDevice(device.driver, None, gemm.Gemm(3, multiplied))
    assert device.batch_invariant
    assert not large.batch_invariant
    golden = Golden.read(name)
    with Player(large, golden) as player:
        logits = player.feed(golden.tokens[:3])
    assert distance(logits[:, golden.columns], golden.logits[:3]) < 5e-3
    with Player(large, golden) as player, Player(device, golden) as plain:
        assert player.feed(golden.tokens[:2]).tobytes() == plain.feed(golden.tokens[:2]).tobytes()


def test_no_output_is_wanted(device: CudaDevice) -> None:
    golden = Golden.read(SMALL)
    with open_model(golden.model, golden.n_context) as model:
        lane = device.compile(model.spec, model.file, Limits(golden.n_context, 4, 8, 8))
        assert lane.run(step_of(2, 0, (), golden.tokens[:2])).shape == (0, model.spec.n_vocab)
        lane.close()
        with pytest.raises(EngineClosed):
            lane.run(step_of(1, 2, (0,), golden.tokens[2:3]))


def test_what_the_driver_reports_is_a_failed_device(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden.read(SMALL)

    def fail(*arguments: object) -> None:
        raise FAILURES[0](700, "illegal address")

    with Player(device, golden) as player:
        monkeypatch.setattr(Driver, "launch", fail)
        with pytest.raises(DeviceFailed, match="illegal address"):
            player.feed(golden.tokens[:2])


class Bindings:
    """What `graphs` uses of cuda.bindings.driver, in Python: a graph is what was asked for while recording."""

    def __init__(self, refuses: str = "") -> None:
        self.calls: list[str] = []
        self._refuses = refuses

    def __getattr__(self, name: str) -> Callable[..., tuple[object, ...]]:
        def call(*arguments: object) -> tuple[object, ...]:
            self.calls.append(name)
            return (1 if name == self._refuses else 0, name)

        return call

    def CUstream(self, number: int) -> int:  # noqa: N802
        return number


class NumberedStream:
    """A stream as cuda.bindings knows it."""

    def __int__(self) -> int:
        return 5

    def synchronize(self) -> None: ...


def test_steps_are_recorded_once(device: CudaDevice) -> None:
    bindings, started = Bindings(), []
    recorder = Recorder(device.driver, bindings)
    assert not Recorder(device.driver).works
    graph = recorder.record(lambda: started.append("start"), NumberedStream())
    assert graph is not None
    graph.launch(NumberedStream())
    graph.close()
    assert started == ["start"]
    recording = ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"]
    assert bindings.calls == [*recording, "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy"]


class Replaying:
    """A recorder that keeps the very launches of a step and starts them again."""

    works = True

    def __init__(self, driver: Driver) -> None:
        self._driver, self.n_started = driver, 0

    def record(self, start: Callable[[], None], stream: Stream) -> Replaying:
        self._kept: list[Startable] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._driver, "launch", lambda launches, stream: self._kept.extend(launches))
            start()
        return self

    def launch(self, stream: Stream) -> None:
        self.n_started += 1
        self._driver.launch(self._kept, stream)

    def close(self) -> None: ...


def test_recorded_steps_serve_later_tokens(device: CudaDevice) -> None:
    """What a step's kernels are started with holds for any step of the same shape: all else they read from the GPU."""
    golden = Golden.read("llama-bias-q8_0")
    with Player(device, golden) as plain, Player(device, golden) as player:
        replaying = Replaying(device.driver)
        player.lane.part._recorder = replaying  # type: ignore[attr-defined]
        for token in np.split(golden.tokens[:5], 5):
            assert player.feed(token).tobytes() == plain.feed(token).tobytes()
    assert replaying.n_started == 4


@pytest.mark.parametrize("refused", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"])
def test_a_driver_that_does_not_record_is_asked_once(device: CudaDevice, refused: str) -> None:
    recorder = Recorder(device.driver, Bindings(refused))
    assert recorder.works
    assert recorder.record(lambda: None, NumberedStream()) is None
    assert not recorder.works
    assert recorder.record(lambda: None, NumberedStream()) is None


def test_what_fails_while_recording_ends_it(device: CudaDevice) -> None:
    """The stream is given back, and steps are started one by one from then on."""
    bindings = Bindings()
    recorder = Recorder(device.driver, bindings)

    def fail() -> None:
        raise FAILURES[0](900, "not permitted")

    assert recorder.record(fail, NumberedStream()) is None
    assert bindings.calls == ["cuStreamBeginCapture", "cuStreamEndCapture"]
    assert not recorder.works


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(DeviceUnavailable, match="cuda:7"):
        Driver(7)


def test_sequences_may_be_on_the_device_or_in_memory(device: CudaDevice) -> None:
    """Products of all and attention of one on the device, attention of the other on the CPU."""
    golden = Golden.read(SMALL)
    with overlapping(golden, device, "overlap", n_resident=1) as executor, alone(golden, cpu()) as single:
        found = {executor.create(EACH): Journey(text, (3, 1)) for text in texts(golden, 2, 4)}
        assert [executor.is_resident(sequence) for sequence in found] == [True, False]
        travel(executor, found)
        assert_as_alone(found, single)
