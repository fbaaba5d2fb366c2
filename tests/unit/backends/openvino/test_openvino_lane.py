"""The OpenVINO device: parts of models, steps in the background, crowded caches, kept graphs, unknown targets."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import DeviceOptions, Limits, open_device
from edgeinfer.backends.openvino.footprint import footprint
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.errors import BadSetting, DeviceFailed, DeviceUnavailable, EngineClosed, UnsupportedModel
from edgeinfer.graph.activations import silu
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage, whole
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, RopePermutation
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import rms_norm
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.models.load import Model, open_model
from edgeinfer.steps import no_progress
from tests.golden.goldens import PAGES, Golden, Player, distance

openvino = pytest.importorskip("openvino")

from edgeinfer.backends.openvino.device import OpenVinoDevice  # noqa: E402
from edgeinfer.backends.openvino.graph import OpenVinoLowering  # noqa: E402

EXACT = 2e-3
"""Float32 products; keys and values are float16 from the second pass on."""
LIMITS = Limits(128, 4, 64, 64)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[OpenVinoDevice]:
    found = OpenVinoDevice(DeviceOptions(n_workers=2), tmp_path / "graphs")
    yield found
    found.close()


@pytest.fixture
def model() -> Iterator[Model]:
    with open_model(Golden.read("llama-f32").model, 128) as opened:
        yield opened


def part(spec: ModelSpec, ops: tuple[Op, ...], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Fragment:
    """Some ops of a model as a fragment of their own."""
    return Fragment(replace(spec, stages=(Stage("part", ops),)), inputs, outputs)


def chain(tokens: NDArray[np.int32], start: int = 0) -> Step:
    """Tokens of one sequence from a position on, in the slots of the same numbers; logits of all."""
    order = np.arange(len(tokens), dtype=np.int32)
    rows, positions = np.zeros_like(order), order + np.int32(start)
    batch = Batch(tokens.astype(np.int32), rows, positions, order - 1, order)
    return Step(batch, rows, positions, np.full_like(order, start), np.arange(4, dtype=np.int32)[None])


def ops_of(spec: ModelSpec, stage: str) -> tuple[Op, ...]:
    return next(each.ops for each in spec.stages if each.name == stage)


def test_ranges_of_layers_agree_with_the_reference(device: OpenVinoDevice, model: Model) -> None:
    tokens = Golden.read("llama-f32").tokens[:40]
    spec, last = model.spec, len(model.spec.stages) - 2
    front = replace(spec, stages=spec.stages[:-2], kv=spec.kv[:-1], logits="x")
    moved = tuple(replace(op, layer=0) if isinstance(op, StoreKV | Attention) else op for op in spec.stages[last].ops)
    back = replace(spec, stages=(Stage("blk", moved), spec.stages[-1]), kv=spec.kv[-1:])
    first = device.compile_fragment(Fragment(front, (), ("x",)), model.file, LIMITS)
    second = device.compile_fragment(Fragment(back, ("x",), ("logits",)), model.file, LIMITS)
    whole, half = (ReferenceDevice().compile(each, model.file, LIMITS) for each in (spec, front))
    for start in (0, 17, 18):
        step = chain(tokens[start : {0: 17, 17: 18, 18: 40}[start]], start)
        first.submit(step, {})
        x = first.wait()["x"].copy()
        assert distance(x, half.run(step)) < EXACT
        second.submit(step, {"x": x})
        assert distance(second.wait()["logits"], whole.run(step)) < EXACT


def test_rows_of_a_product(device: OpenVinoDevice, model: Model) -> None:
    """Rows in the order of their op, cut between heads."""
    product = next(
        op
        for op in ops_of(model.spec, "blk.0")
        if isinstance(op, MatMul) and isinstance(op.weight.order, RopePermutation)
    )
    assert isinstance(product.weight.order, RopePermutation)
    cut = replace(product, weight=replace(product.weight, start=product.weight.order.head_width))
    buffers = (Buffer(cut.source, cut.weight.columns), Buffer(cut.out, cut.weight.n_rows))
    fragment = part(replace(model.spec, buffers=buffers, kv=()), (cut,), (cut.source,), (cut.out,))
    source = np.random.default_rng(0).standard_normal((5, cut.weight.columns)).astype(np.float32)
    lane = device.compile_fragment(fragment, model.file, LIMITS)
    lane.submit(chain(np.zeros(5)), {cut.source: source})
    assert distance(lane.wait()[cut.out], source @ weights.matrix(model.file, cut.weight).T) < 1e-5


def test_a_feed_forward_branch_alone(device: OpenVinoDevice, model: Model) -> None:
    """One buffer goes in and comes out."""
    norm, gate, up, _, down = ops = ops_of(model.spec, "blk.1")[-5:]
    lane = device.compile_fragment(part(replace(model.spec, kv=()), ops, ("x",), ("x",)), model.file, LIMITS)
    x = np.random.default_rng(0).standard_normal((7, model.spec.width)).astype(np.float32)
    lane.submit(chain(np.zeros(7)), {"x": x})
    normed = rms_norm(x, weights.vector(model.file, norm.weight), 1, norm.epsilon)  # type: ignore[union-attr]
    g, u, d = (weights.matrix(model.file, op.weight) for op in (gate, up, down))  # type: ignore[union-attr]
    assert distance(lane.wait()["x"], x + (silu(normed @ g.T) * (normed @ u.T)) @ d.T) < 1e-5


def test_attention_alone(device: OpenVinoDevice, model: Model) -> None:
    ops = tuple(op for op in ops_of(model.spec, "blk.0") if isinstance(op, StoreKV | Attention))
    inputs = ("query", "key", "value")
    lane = device.compile_fragment(part(model.spec, ops, inputs, ("attended",)), model.file, LIMITS)
    random, spec, attention = np.random.default_rng(0), model.spec, ops[1]
    assert isinstance(attention, Attention)
    given = {name: random.standard_normal((9, spec.buffer(name).width)).astype(np.float32) for name in inputs}
    found = []
    for start, stop in ((0, 4), (4, 9)):
        lane.submit(chain(np.zeros(stop - start), start), {name: rows[start:stop] for name, rows in given.items()})
        found.append(lane.wait()["attended"].copy())
    heads = {name: rows.reshape(9, -1, spec.head_width).swapaxes(0, 1) for name, rows in given.items()}
    repeats = spec.heads // spec.kv_heads
    keys, values = (np.repeat(heads[name], repeats, axis=0) for name in ("key", "value"))
    scores = heads["query"] @ keys.swapaxes(1, 2) * attention.scale
    scores[:, ~np.tri(9, dtype=bool)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (shares / shares.sum(-1, keepdims=True) @ values).swapaxes(0, 1).reshape(9, -1)
    assert distance(np.concatenate(found), expected) < EXACT


def test_attention_without_its_keys_is_refused(device: OpenVinoDevice, model: Model) -> None:
    ops = tuple(op for op in ops_of(model.spec, "blk.0") if isinstance(op, Attention))
    with pytest.raises(UnsupportedModel, match="does not store its keys"):
        device.compile_fragment(part(model.spec, ops, ("query",), ("attended",)), model.file, LIMITS)


def test_steps_run_in_the_background(device: OpenVinoDevice, model: Model) -> None:
    assert device.capabilities.fragments is device
    lane = device.compile_fragment(Fragment(model.spec, (), ("logits",)), model.file, LIMITS)
    with pytest.raises(DeviceFailed, match="never started"):
        lane.wait()
    lane.submit(chain(np.arange(20)), {})
    logits = lane.wait()["logits"]
    began, ended = lane.ran
    assert 0 < began < ended
    assert logits.shape == (20, model.spec.n_vocab)
    lane.close()
    with pytest.raises(EngineClosed):
        lane.submit(chain(np.arange(20)), {})


def test_closing_ends_a_step_that_runs(device: OpenVinoDevice, model: Model) -> None:
    for _ in range(5):
        lane = device.compile_fragment(Fragment(model.spec, (), ("logits",)), model.file, LIMITS)
        lane.submit(chain(np.arange(60)), {})
        request = lane._request
        assert request is not None
        lane.close()
        try:
            assert request.wait_for(0)
        except RuntimeError:  # cancelled
            continue


class Endless:
    """A request that heeds nothing and ends when it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def cancel(self) -> None: ...

    def wait_for(self, milliseconds: int) -> bool:
        return self.gate.wait(milliseconds / 1e3)

    def wait(self) -> None:
        assert self.gate.wait(30)


def test_a_step_that_does_not_end_keeps_what_it_uses(
    device: OpenVinoDevice, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = device.compile_fragment(Fragment(model.spec, (), ("logits",)), model.file, LIMITS)
    lane.submit(chain(np.arange(20)), {})
    lane.wait()
    states, lent, endless, closed = lane._states, lane._lent, Endless(), threading.Event()
    close = type(states).close

    def note(each: object) -> None:
        close(each)  # type: ignore[arg-type]
        closed.set()

    monkeypatch.setattr(type(states), "close", note)
    monkeypatch.setattr(lane, "_request", endless)
    lane._runs, lane.closing_s = True, 0.01
    lane.close()
    assert lent
    assert not closed.is_set()
    endless.gate.set()
    assert closed.wait(30)
    assert not lent
    lane.close()


def test_a_crowded_cache_is_compacted(device: OpenVinoDevice) -> None:
    """Rejected drafts leave dead rows; dropping them changes nothing that is seen."""
    golden = Golden.read("llama-f32")
    with Player(device, golden) as player, Player(device, golden) as plain:
        player.feed(golden.tokens[:20])
        for _ in range(12):
            player.look(golden.tokens[20:32], [-1, 0, 1, 0, 3, 2, -1, 6, 7, 7, 4, 5])
        n_rows = player.lane._states._holders[0].rows.n_rows  # type: ignore[attr-defined]
        assert n_rows < 20 + 12 * 12
        plain.feed(golden.tokens[:20])
        assert distance(player.feed(golden.tokens[20:]), plain.feed(golden.tokens[20:])) < 1e-4


def test_long_prompts_get_states_of_their_own_and_still_meet(device: OpenVinoDevice) -> None:
    """Two long sequences are kept by two requests until one pass needs both."""
    golden = Golden.read("llama-f32")
    prompt, rest = golden.tokens[:70], golden.tokens[70:]
    with Player(device, golden, n_sequences=2) as player, Player(device, golden) as plain:
        player.feed(prompt, 0)
        player.feed(prompt, 1)
        assert [holder.rows.n_rows for holder in player.lane._states._holders] == [70, 70]  # type: ignore[attr-defined]
        together = player.feed_together({0: rest, 1: rest})
        plain.feed(prompt)
        alone = plain.feed(rest)
        pages = player.lane.read_pages(np.arange(PAGES, dtype=np.int32))
    assert distance(together, np.concatenate([alone, alone])) < EXACT
    assert (pages.any(axis=1)).sum() == 2 * -(-len(golden.tokens) // PAGE)


def test_parts_of_a_prompt_are_joined(device: OpenVinoDevice, model: Model) -> None:
    """Passes of which no logits are wanted run with the next one, or when their pages are read."""
    tokens = Golden.read("llama-f32").tokens[:60]
    lane, plain = (each.compile(model.spec, model.file, LIMITS) for each in (device, ReferenceDevice()))
    for start in (0, 20):
        step = chain(tokens[start : start + 20], start)
        silent = replace(step, batch=replace(step.batch, outputs=np.zeros(0, np.int32)))
        assert lane.run(silent).shape == (0, model.spec.n_vocab)
        plain.run(step)
    last = chain(tokens[40:], 40)
    assert distance(lane.run(last), plain.run(last)) < EXACT
    again = device.compile(model.spec, model.file, LIMITS)
    step = chain(tokens[:20])
    again.run(replace(step, batch=replace(step.batch, outputs=np.zeros(0, np.int32))))
    assert again.read_pages(np.zeros(1, np.int32)).any()


def test_the_second_start_compiles_nothing(tmp_path: Path) -> None:
    golden = Golden.read("llama-k")
    logits = []
    for n_compiled in (1, 0, 1):
        device = OpenVinoDevice(DeviceOptions(n_workers=2), tmp_path)
        with Player(device, golden) as player:
            logits.append(player.feed(golden.tokens[:30]))
        assert device.n_compiled == n_compiled
        if n_compiled == 0:
            (kept,) = tmp_path.glob("*.graph")
            damaged = bytearray(kept.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            kept.write_bytes(damaged)
    assert logits[0].tobytes() == logits[1].tobytes() == logits[2].tobytes()


def test_kept_graphs_do_not_depend_on_threads_but_on_kv(tmp_path: Path) -> None:
    golden, counts = Golden.read("llama-q8_0"), []
    for n_workers, kv in ((1, "f16"), (2, "f16"), (2, "q8")):
        device = OpenVinoDevice(DeviceOptions(n_workers=n_workers), tmp_path)
        with Player(device, golden, kv=kv) as player:  # type: ignore[arg-type]
            assert golden.error(player.feed(golden.tokens)) < 0.1
        counts.append(device.n_compiled)
    assert counts == [1, 0, 1]


def test_a_kept_graph_is_of_one_model(tmp_path: Path) -> None:
    device = OpenVinoDevice(DeviceOptions(n_workers=2), tmp_path)
    for name in ("llama-q8_0", "llama-linear-q8_0"):
        golden = Golden.read(name)
        with Player(device, golden) as player:
            assert golden.error(player.feed(golden.tokens)) < 0.1
    assert device.n_compiled == 2


@pytest.mark.parametrize("name", ["llama-k", "gemma2-q4_0", "phi3-f16", "qwen2-q8_0"])
def test_footprints_count_the_constants_of_the_graph(name: str) -> None:
    """All but shapes and single numbers, of which no op has many."""
    with open_model(Golden.read(name).model, 128) as model:
        graph = OpenVinoLowering(whole(model.spec), model.file).model(no_progress)
        n_ops = sum(1 for _ in model.spec.ops())
        given = sum(op.get_byte_size() for op in graph.get_ops() if op.get_type_name() == "Constant")
        counted = footprint(model.spec, model.file.tensors, LIMITS).weight_bytes
    assert counted <= given < counted + 128 * n_ops


def test_targets_that_are_not_there_are_named() -> None:
    with pytest.raises(DeviceUnavailable, match=r"no 'abacus'.*openvino:cpu.*openvino:auto"):
        open_device("openvino:abacus")
    assert open_device("openvino:cpu").name == "openvino:cpu"


@pytest.mark.skipif(sys.platform != "linux", reason="threads can be placed on Linux only")
def test_threads_stay_on_chosen_cores() -> None:
    """In a process of its own, as OpenVINO shares threads between graphs."""
    code = """
import openvino, os, sys
sys.path.insert(0, os.getcwd())
from edgeinfer.backends.base import DeviceOptions, open_device
from tests.golden.goldens import Golden, Player
from tests.waiting import until

def is_there(thread):
    try:
        return os.sched_getaffinity(thread) == {cpu}
    except ProcessLookupError:  # it has ended
        return True

golden = Golden.read("llama-f32")
cpu, before = max(os.sched_getaffinity(0)), set(os.listdir("/proc/self/task"))
device = open_device("openvino", DeviceOptions(n_workers=1, cores=(cpu,)))
with Player(device, golden) as player:
    player.feed(golden.tokens[:20])
    player.feed(golden.tokens[20:])
    started = set(os.listdir("/proc/self/task")) - before
    for thread in started:  # each goes there itself once it runs
        until(lambda: is_there(int(thread)))
print(len(started) > 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True"]


def test_cores_that_are_not_there_are_refused() -> None:
    with pytest.raises(BadSetting, match="core 9999"):
        open_device("openvino", DeviceOptions(cores=(9999,)))


def test_without_the_package_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    for name in [name for name in sys.modules if name.startswith("edgeinfer.backends.openvino.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(DeviceUnavailable, match=r"pip install 'edgeinfer\[openvino\]'"):
        open_device("openvino")


def test_the_entry_imports_no_runtime() -> None:
    code = "import sys, edgeinfer.backends.base as b; b.DEVICES.get('openvino'); sys.exit('openvino' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
