"""Measures experts read from disk: the cache's hit rate, bytes and time per token, beside an LRU cache.

Run: `python scripts/measure_experts.py OUT.gguf [--share 40] [--tokens 256]`. OUT is created if it does not exist:
random weights, 64 experts of which 8 are active, and a router with the properties of trained ones (as reported for
Mixtral and OLMoE): some experts are chosen more often than others, adjacent tokens choose alike, and a layer changes
the state so little that the next layer's choice can be guessed. The text is tokens of one topic after another; what the
router then does is measured and printed. Weights may take `--share` percent of the model; logits are compared bit by
bit with those of the model in memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from make_model import write_random
from numpy.typing import NDArray
from shapes.shape import Shape

from edgeinfer.app.opening.model_choice import choose_model
from edgeinfer.backends.base import DeviceOptions, Lane, Limits
from edgeinfer.backends.cpu.bundles.contents import contents_of
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.bundles.writing import pack_bundles
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes import streamed as streamed
from edgeinfer.backends.cpu.lanes.streamed import StreamedLane
from edgeinfer.backends.cpu.offload import sizes_of
from edgeinfer.engine.measure.idle import idle_share
from edgeinfer.engine.offload.weight_placement import known_disk, placement_of
from edgeinfer.errors import BadBundle
from edgeinfer.graph.step import Batch, Step
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model
from edgeinfer.offload.expert_cache import ExpertCache
from edgeinfer.offload.weights import OffloadedWeights, WeightReads
from edgeinfer.settings import load_settings

SHAPE = Shape(1024, 12, 512, 16, 4, 4096, experts=64, active=8, arch="qwen3moe")
TOPICS, TOPIC_TOKENS = 16, 48
TRUNK_GAIN = 100.0
"""Size of the embedding relative to what a layer adds to the state."""
TOPIC_SHARE = 0.3
"""The share of an embedding that tokens of a topic have in common."""
POPULARITY = 0.1
"""Spread of the logarithm of the size of an expert's scores."""
WARM = 64
PAGES = 32


@dataclass(frozen=True, slots=True)
class Policy:
    """What the cache does."""

    name: str
    guesses: bool
    lru: bool


POLICIES = (
    Policy("lru", guesses=False, lru=True),
    Policy("recency and frequency", guesses=False, lru=False),
    Policy("recency and frequency, guesses", guesses=True, lru=False),
)


def write(path: Path) -> None:
    """Write the model."""
    draw = np.random.default_rng(5)
    topics = draw.standard_normal((TOPICS, SHAPE.width)).astype(np.float32) * np.float32(SHAPE.width**-0.5)

    def adjust(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if name == "token_embd":
            own = topics[np.arange(len(values)) % TOPICS]
            mixed = np.sqrt(TOPIC_SHARE) * own + np.sqrt(1 - TOPIC_SHARE) * values
            return (TRUNK_GAIN * mixed).astype(np.float32)
        if name.endswith("ffn_gate_inp"):
            return (values * np.exp(POPULARITY * draw.standard_normal((len(values), 1)))).astype(np.float32)
        return values

    write_random(SHAPE, "Q4_0", choose_model(load_settings()).path, path, 1, adjust=adjust)


def text(n_tokens: int, n_vocab: int) -> list[int]:
    """Tokens of one topic after another."""
    draw = np.random.default_rng(9)
    found: list[int] = []
    while len(found) < n_tokens:
        topic = int(draw.integers(TOPICS))
        found += (draw.integers(n_vocab // TOPICS, size=TOPIC_TOKENS) * TOPICS + topic).tolist()
    return found[:n_tokens]


def step_of(token: int, position: int) -> Step:
    """A pass over one token."""
    one = np.zeros(1, np.int32)
    batch = Batch(np.array([token], np.int32), one, one + position, one - 1, one)
    return Step(batch, one, one + position, one + position, np.arange(PAGES, dtype=np.int32)[None])


@contextmanager
def opened(model: Model, bundles: Path | None, share: float, policy: Policy | None) -> Iterator[Lane]:
    """The model in memory, or with a share of its weights in memory and a cache with that policy."""
    device = CpuDevice(DeviceOptions())
    limits = Limits(PAGES * 64, PAGES, max_tokens=64)
    if bundles is not None and policy is not None:
        contents, identity = contents_of(model.spec, model.file.tensors), fingerprint(model.file)
        found = placement_of(
            sizes_of(contents), model.spec, int(share * contents.data_bytes), known_disk(), model.spec.name
        )
        held = sum(contents.bundles[number].padded_bytes for number in found.pinned)
        slot = max(bundle.padded_bytes for bundle in contents.experts)
        places = found.pinned, held, found.window_bytes, found.n_readers, found.n_experts * slot
        limits = replace(limits, stored=OffloadedWeights(bundles, identity, *places))

        class Cache(ExpertCache):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments, guesses=policy.guesses, lru=policy.lru)  # type: ignore[arg-type]

        streamed.ExpertCache = Cache  # type: ignore[misc]
    lane = device.compile(model.spec, model.file, limits)
    streamed.ExpertCache = ExpertCache  # type: ignore[misc]
    try:
        yield lane
    finally:
        lane.close()


@dataclass(frozen=True, slots=True)
class Found:
    """Results of the tokens after the first WARM: seconds, and what was read."""

    logits: list[NDArray[np.float32]]
    seconds: list[float]
    reading: WeightReads
    chosen: list[list[list[int]]]


def run(lane: Lane, tokens: list[int]) -> Found:
    """Evaluate tokens one by one."""
    logits, seconds, before, chosen = [], [], WeightReads(), []
    for position, token in enumerate(tokens):
        if position == WARM and isinstance(lane, StreamedLane):
            before = lane.reading
        started = time.perf_counter()
        logits.append(lane.run(step_of(token, position)).copy())
        seconds.append(time.perf_counter() - started)
    after = lane.reading if isinstance(lane, StreamedLane) else WeightReads()
    negative = replace(
        before,
        n_bytes=-before.n_bytes,
        waited_s=-before.waited_s,
        n_wanted=-before.n_wanted,
        n_found=-before.n_found,
        n_guessed=-before.n_guessed,
        n_proved=-before.n_proved,
        read_s=-before.read_s,
    )
    return Found(logits, seconds[WARM:], after + negative, chosen)


def statistics_of(lane: StreamedLane, tokens: list[int]) -> str:
    """How often adjacent tokens choose the same expert, and how often the most popular eighth is chosen."""
    mixtures = lane._mixtures
    assert mixtures is not None
    repeats, counts, before = [], np.zeros((len(mixtures.ops), SHAPE.experts)), {}
    ask = mixtures._cache.ask

    def watched(layer: int, experts: list[int]) -> None:
        if layer in before:
            repeats.append(len(before[layer] & set(experts)) / len(experts))
        before[layer] = set(experts)
        counts[layer, experts] += 1
        ask(layer, experts)

    mixtures._cache.ask = watched  # type: ignore[method-assign, assignment]
    run(lane, tokens)
    popular = np.sort(counts, axis=1)[:, -SHAPE.experts // 8 :].sum() / counts.sum()
    return (
        f"router: {100 * statistics.mean(repeats):.0f} % of a token's experts were the last token's too (12.5 % by "
        f"chance), the most popular eighth of a layer is chosen {100 * popular:.0f} % of the time"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--share", type=float, default=40, help="of the weights that may be in memory, in percent")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if not options.model.exists():
        write(options.model)
    bundles = options.model.with_suffix(".bundles")
    print(f"idle {idle_share():.2f}")
    with open_model(options.model, PAGES * 64) as model:
        contents, identity = contents_of(model.spec, model.file.tensors), fingerprint(model.file)
        try:
            BundleFile.open(bundles, contents, identity).close()
        except BadBundle:
            pack_bundles(
                bundles, model.file, contents, identity, CpuDevice(DeviceOptions()).library, 2, lambda *_: None
            )
        tokens, share = text(options.tokens, model.spec.n_vocab), options.share / 100
        with opened(model, None, 1.0, None) as lane:
            whole = run(lane, tokens)
        with opened(model, bundles, share, POLICIES[-1]) as lane:
            assert isinstance(lane, StreamedLane)
            print(statistics_of(lane, tokens))
        used = sum(op.active for op in model.spec.ops() if type(op).__name__ == "Experts")
        experts = used * max(bundle.padded_bytes for bundle in contents.experts)
        print(
            f"{contents.data_bytes / 1e6:.0f} MB, {100 * share:.0f} % in memory; a token uses {experts / 1e6:.1f} MB "
            f"of experts; in memory {1 / statistics.median(whole.seconds):.1f} tok/s"
        )
        for _ in range(options.rounds):
            for policy in POLICIES:
                with opened(model, bundles, share, policy) as lane:
                    show(policy, run(lane, tokens), whole)
    print(f"idle {idle_share():.2f}")


def show(policy: Policy, found: Found, whole: Found) -> None:
    """Format one line."""
    n_tokens, reading = len(found.seconds), found.reading
    same = all(np.array_equal(one, other) for one, other in zip(found.logits, whole.logits, strict=True))
    print(
        f"  {policy.name:32s} {100 * reading.n_found / reading.n_wanted:5.1f} % found, "
        f"{reading.n_bytes / n_tokens / 1e6:6.2f} MB a token, {n_tokens / sum(found.seconds):6.2f} tok/s, "
        f"{reading.n_guessed / n_tokens:5.1f} guesses a token of which {reading.n_proved / n_tokens:5.1f} were used, "
        f"reading {100 * reading.read_s / sum(found.seconds):.0f} % of the time, "
        f"{'same bits' if same else 'OTHER BITS'}"
    )


if __name__ == "__main__":
    main()
