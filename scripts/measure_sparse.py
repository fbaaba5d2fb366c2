"""Measures sparse models from disk: bytes per token with single neurons against dense streaming with the same memory.

Run: `python scripts/measure_sparse.py --tokenizer MODEL [--folder FOLDER] [--ram 40] [--gen 24] [--common 0,60]
[--group 0] [--layers 8]`. Makes ReLU llamas (2048 wide, 8 layers, FFN 8192, Q4_0) with 90 % zeros and embeddings that
share the given percentage among all tokens (0: tokens have little in common, as with random weights; more: a window has
something to find), and evaluates random tokens one at a time, with weights limited to --ram percent of what a pass
reads. The ways, in turn: dense streaming (no neurons), neurons without a window, neurons with one, one with memory
divided according to the neurons seen to fire, and both in an order found from other random tokens (--group: neurons of
such groups, scattered in a layer, tend to fire together; synthetic). Counting starts after a prompt that causes all
runs to be checked. Answers are compared with those of the model in memory. Page caches do not matter, as reads bypass
them. The reads are chosen to take the least time on this disk, as measured; with --fewest-bytes they are those for a
disk whose small reads cost no more than their bytes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from sparse_model import SparseShape, write_sparse

from edgeinfer.backends.base import DeviceOptions, Lane, Limits
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.bundles.writing import pack_bundles
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.backends.cpu.lanes.streamed import StreamedLane
from edgeinfer.backends.cpu.neurons.layers import sparse_layers
from edgeinfer.backends.cpu.neurons.order import Orders, order_bytes
from edgeinfer.backends.cpu.neurons.reading import NeuronReading
from edgeinfer.backends.cpu.neurons.watching import watch_firing
from edgeinfer.backends.cpu.offload import sizes_of
from edgeinfer.engine.offload.neurons.firing import seen
from edgeinfer.engine.offload.neurons.order import firing_limits, order_of
from edgeinfer.engine.offload.neurons.plans import neuron_loads
from edgeinfer.engine.offload.weight_placement import known_disk, placement_of
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model
from edgeinfer.offload.weights import OffloadedWeights, WeightReads
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.offload.neurons.firing import Firing
from edgeinfer.scheduling.offload.neurons.placement import USUAL
from edgeinfer.scheduling.offload.reads import SMALL_READERS, read_times
from edgeinfer.steps import no_progress

CONTEXT, PROMPT_TOKENS = 512, 64
SHAPE = SparseShape(2048, 8, 8192, 32, 8, 8192)
WAYS = ("dense", "no window", "window", "seen", "seen, ordered", "no window, ordered")
CALIBRATION_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Found:
    """Results of one way: the tokens, seconds per token, and what was read for the tokens after the prompt."""

    tokens: list[int]
    token_s: float
    reading: WeightReads
    n_tokens: int

    @property
    def bytes_per_token(self) -> float:
        return self.reading.n_bytes / self.n_tokens


def step_of(tokens: np.ndarray, start: int) -> Step:
    """A step of one sequence whose pages are in order, with the logits of its last token."""
    places = np.arange(start, start + len(tokens), dtype=np.int32)
    zeros, parents = np.zeros(len(tokens), np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32)
    outputs = np.array([len(tokens) - 1], np.int32)
    batch = Batch(tokens.astype(np.int32), zeros, places, parents, outputs)
    pages = np.arange(CONTEXT // PAGE, dtype=np.int32)[None]
    return Step(batch, zeros, places, np.full(len(tokens), start, np.int32), pages)


def answer(lane: Lane, n_tokens: int) -> Found:
    """Predictions after each of some random tokens, which are evaluated one by one after a random prompt.

    The model's own answers would loop, and a window finds everything in a loop.
    """
    given = np.random.default_rng(1).integers(0, SHAPE.vocabulary, PROMPT_TOKENS + n_tokens)
    lane.run(step_of(given[:PROMPT_TOKENS], 0))
    tokens, before, started = [], reading_of(lane), time.perf_counter()
    for place in range(PROMPT_TOKENS, len(given)):
        tokens.append(int(lane.run(step_of(given[place : place + 1], place))[0].argmax()))
    seconds, after = time.perf_counter() - started, reading_of(lane)
    return Found(tokens, seconds / n_tokens, difference(after, before), n_tokens)


def reading_of(lane: Lane) -> WeightReads:
    return lane.reading if isinstance(lane, StreamedLane) else WeightReads()


def difference(after: WeightReads, before: WeightReads) -> WeightReads:
    """What was read between two readings, with the sizes whose counts changed."""
    names = ("n_bytes", "waited_s", "n_wanted", "n_found", "n_records_read", "record_dense_bytes")
    names += ("record_token_bytes", "record_pass_bytes", "record_read_bytes")
    sizes = {size: count - before.sizes.get(size, 0) for size, count in after.sizes.items()}
    return WeightReads(sizes=sizes, **{name: getattr(after, name) - getattr(before, name) for name in names})


@contextmanager
def opened(
    model: Model, folder: Path, way: str | None, share: float, firing: Firing = USUAL, disk: Disk | None = None
) -> Iterator[CpuLane]:
    """The model in memory (way None), or with a share of its weights in memory."""
    device, limits = CpuDevice(DeviceOptions()), Limits(CONTEXT, CONTEXT // PAGE, max_tokens=PROMPT_TOKENS)
    no_layers = patch.object(contents, "record_layers", lambda *_: None)
    with no_layers if way == "dense" else patch.object(contents, "BUNDLES", contents.BUNDLES):
        if way is not None:
            limits = replace(limits, stored=stored(model, device, folder, way, share, firing, disk))
        lane = device.compile(model.spec, model.file, limits)
    try:
        if isinstance(lane, StreamedLane) and isinstance(lane._records, NeuronReading):
            lane._records._window._keeps = way is not None and not way.startswith("no window")
        yield lane
    finally:
        lane.close()


def disk_of(fewest_bytes: bool) -> Disk | None:
    """The disk as measured, or an ideal one on which only the number of bytes counts."""
    sizes = (4096, 1 << 20)
    free = Curve(sizes, (2e9, 2e9))
    return Disk({4: free, SMALL_READERS: free}) if fewest_bytes else known_disk()


def stored(
    model: Model, device: CpuDevice, folder: Path, way: str, share: float, firing: Firing, disk: Disk | None
) -> OffloadedWeights:
    held_in, identity = contents.contents_of(model.spec, model.file.tensors), fingerprint(model.file)
    is_ordered = way.endswith("ordered")
    path = folder / f"{'dense' if way == 'dense' else 'ordered' if is_ordered else 'neurons'}.bundles"
    if not path.exists():
        table = order_bytes(orders_of(model)) if is_ordered else None
        pack_bundles(path, model.file, held_in, identity, device.library, 2, no_progress, table)
    budget = int(share * pass_bytes(model))
    sizes = sizes_of(held_in)
    loads = None if sizes.records is None else replace(neuron_loads(sizes.records, model.spec), firing=firing)
    found = placement_of(sizes, model.spec, budget, disk, "it", loads)
    held = sum(held_in.bundles[number].padded_bytes for number in found.pinned)
    parts = held, found.window_bytes, found.n_readers, 0, found.record_bytes
    gap_bytes = read_times(disk, SMALL_READERS).gap_bytes
    return OffloadedWeights(path, identity, found.pinned, *parts, SMALL_READERS, gap_bytes)


def orders_of(model: Model) -> Orders:
    """Orders of neurons, found from other random tokens than those of the measurement."""
    tokens = np.random.default_rng(2).integers(0, SHAPE.vocabulary, CALIBRATION_TOKENS).astype(np.int32)
    started = time.perf_counter()
    layers = sparse_layers(list(model.spec.ops()), model.file.tensors)
    fired = watch_firing(CpuDevice(DeviceOptions()), model, layers, firing_limits(CONTEXT), tokens, no_progress)
    orders = tuple(order_of(table) for table in fired)
    print(f"  orders of {len(orders)} layers from {len(tokens)} tokens: {time.perf_counter() - started:.0f} s")
    return orders


def pass_bytes(model: Model) -> int:
    """Bytes that a pass reads, packed as matrices."""
    with patch.object(contents, "record_layers", lambda *_: None):
        return contents.contents_of(model.spec, model.file.tensors).data_bytes


def show(way: str, found: Found, dense: Found, same: bool) -> None:
    """Format the line of one way."""
    reading, n = found.reading, found.n_tokens
    text = f"  {way}: {found.bytes_per_token / 1e6:.1f} MB a token, "
    text += f"{100 * found.bytes_per_token / dense.bytes_per_token:.0f} % of dense; {1 / found.token_s:.2f} tok/s, "
    text += f"{reading.waited_s / n:.3f} s of {found.token_s:.3f} s waiting, {'same' if same else 'OTHER'} tokens"
    if reading.n_wanted:
        text += f"\n    neurons: {reading.record_dense_bytes / n / 1e6:.1f} MB all, "
        text += f"{reading.record_pass_bytes / n / 1e6:.1f} MB fire, {100 * reading.n_found / reading.n_wanted:.0f} % "
        text += f"of them found, {reading.record_read_bytes / n / 1e6:.1f} MB read in pages, "
        text += f"{sum(reading.sizes.values()) / n:.0f} reads of {reading.n_bytes / sum(reading.sizes.values()):.0f}"
    print(text, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--folder", type=Path, help="where models are kept; else they are made anew")
    parser.add_argument("--ram", default="40", help="percent of what a pass reads; several with commas")
    parser.add_argument("--gen", type=int, default=24)
    parser.add_argument("--common", default="0,60", help="percent of the power of embeddings")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--group", type=int, default=0, help="neurons that tend to fire together, scattered")
    parser.add_argument("--fewest-bytes", action="store_true", help="as if reads took as long as their bytes")
    parser.add_argument("--layers", type=int, default=SHAPE.layers)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for common in map(int, options.common.split(",")):
            name = f"sparse-{common}-{options.group}-{options.layers}"
            path, bundles = folder / f"{name}.gguf", folder / name
            if not path.exists():
                shape = replace(SHAPE, common=common / 100, group=options.group, layers=options.layers)
                write_sparse(shape, options.tokenizer, path)
            bundles.mkdir(exist_ok=True)
            with open_model(path, CONTEXT) as model:
                measure(model, bundles, [int(share) for share in options.ram.split(",")], options, common)


def measure(model: Model, folder: Path, shares: list[int], options: argparse.Namespace, common: int) -> None:
    """All ways for one model."""
    with opened(model, folder, None, 1.0) as lane:
        whole = answer(lane, options.gen)
    print(f"{common} % of embeddings in common: {1 / whole.token_s:.1f} tok/s in memory")
    print(f"  {len(set(whole.tokens))} different answers of {len(whole.tokens)}")
    for share in shares:
        print(f" {share} % of {pass_bytes(model) / 1e6:.0f} MB in memory")
        for _ in range(options.rounds):
            dense: Found | None = None
            firing = USUAL
            for way in WAYS:
                known, disk = firing if way.startswith("seen") else USUAL, disk_of(options.fewest_bytes)
                with opened(model, folder, way, share / 100, known, disk) as lane:
                    found = answer(lane, options.gen)
                    fired = lane.record_use if isinstance(lane, StreamedLane) else None
                    firing = seen(fired) if fired is not None else firing
                dense = dense or found
                show(way, found, dense, found.tokens == whole.tokens)


if __name__ == "__main__":
    main()
