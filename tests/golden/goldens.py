"""The golden files, and running token sequences and trees on any device by hand-built steps.

In: a device and a golden file. Out: logits. Made by `scripts/make_goldens.py`, which says what the files hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.backends.base import Device, Lane, Limits
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import PAGE, Batch, StateStep, Step
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind

DATA = Path(__file__).parent / "data"
RESULTS = sorted(DATA.glob("*.npz"))
LOST: Mapping[KVKind, float] = {"f16": 0.1, "q8": 0.15, "q8q4": 0.5, "q4": 1.0}
"""Most distance from exact logits on models of random weights, where nothing is more likely than anything else."""
PAGES = 12
BRANCHING = [-1, 0, 1, 0, 3, 2, -1, 6, 7, 7, 4, 5]
"""Parents of the nodes of a tree;"""
PATHS = [0, 1, 2, 5, 11], [0, 3, 4, 10], [6, 7, 8], [6, 7, 9]
"""those of its leaves, in which every node is."""
ONE_BY_ONE = [*range(1, 16), *range(56, 70)]
"""Passes of one token each where a text begins, up to the shortest windows, and on both sides of a page's end."""
CPU_ONLY = (
    *("afmoe", "apertus", "bailingmoe2", "deepseek2", "gemma3n", "gemma4", "glm4moe", "gpt-oss", "granitemoe"),
    *("hunyuan-moe", "lfm2", "mixtral", "olmoe", "qwen2moe", "qwen3moe", "qwen3next", "qwen35", "refact"),
    *("stablelm-heads", "llama4", "mistral4"),
)
"""Families with ops that only these devices have:"""
ALL_OPS = ("cpu", "null", "reference")


def is_cpu_only(name: str) -> bool:
    """Whether a golden model has ops that only the devices `ALL_OPS` have."""
    return name.startswith(CPU_ONLY)


class Known:
    """What transformers computes for a text: some columns of all logits, and the last row whole."""

    __slots__ = ()

    columns: NDArray[np.int32]
    logits: NDArray[np.float32]
    last: NDArray[np.float32]

    def error(self, logits: NDArray[np.float32]) -> float:
        """Distance of float32[T, V] from transformers, relative to the size of the logits; the worse of both parts."""
        return max(distance(logits[:, self.columns], self.logits), distance(logits[-1], self.last))


@dataclass(frozen=True, slots=True)
class Golden(Known):
    """A model file and what transformers computes for `tokens`."""

    name: str
    model: Path
    n_context: int
    tokens: NDArray[np.int32]
    columns: NDArray[np.int32]
    logits: NDArray[np.float32]
    last: NDArray[np.float32]

    @classmethod
    def read(cls, name: str) -> Golden:
        with np.load(DATA / f"{name}.npz") as held:
            model = DATA / f"{name.partition('@')[0]}.gguf"
            arrays = (held[key] for key in ("tokens", "columns", "logits", "last"))
            return cls(name, model, int(held["n_context"]), *arrays)


def distance(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Norm of the difference over the norm of `expected`; infinite if anything is not a number."""
    ratio = float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))
    return ratio if np.isfinite(ratio) else float("inf")


class Player:
    """A lane with sequences whose pages lie in no order; evaluates tokens and keeps them."""

    def __init__(
        self,
        device: Device,
        golden: Golden,
        spec: ModelSpec | None = None,
        n_sequences: int = 1,
        kv: KVKind = "f16",
        adapters: Sequence[AdapterChoice] = (),
    ) -> None:
        self._model = open_model(golden.model, golden.n_context, adapters=adapters)
        limits = Limits(golden.n_context, PAGES, max_tokens=256, max_outputs=256, kv=kv)
        self._spec = spec or self._model.spec
        self.lane: Lane = device.compile(self._spec, self._model.file, limits)
        self.scales: dict[int, tuple[float, ...]] = {}
        """Scales of LoRA adapters by sequence; empty: passes state none."""
        self.begin(n_sequences)

    @property
    def has_states(self) -> bool:
        """Whether the model has states besides keys and values."""
        return bool(self._spec.states)

    def begin(self, n_sequences: int = 1) -> None:
        """Begin anew with empty sequences that share all pages; what is in the pages stays, and nobody may see it."""
        order = np.random.default_rng(7).permutation(PAGES).astype(np.int32)
        self._tables = order[: PAGES // n_sequences * n_sequences].reshape(n_sequences, -1)
        self._cached, self._loads = [0] * n_sequences, [-1] * n_sequences

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *error: object) -> None:
        self.lane.close()
        self._model.close()

    def feed(self, tokens: NDArray[np.int32], sequence: int = 0) -> NDArray[np.float32]:
        """Logits float32[T, V] of the next tokens of a sequence, which are kept."""
        return self.feed_together({sequence: tokens})

    def feed_together(self, parts: dict[int, NDArray[np.int32]]) -> NDArray[np.float32]:
        """Logits of the next tokens of several sequences, interleaved in one pass, in the order of `parts`."""
        parents = {sequence: np.arange(-1, len(tokens) - 1) for sequence, tokens in parts.items()}
        if self._spec.states:
            return self._feed_states(parts, parents)
        logits = self._run(parts, parents)
        for sequence, tokens in parts.items():
            self._cached[sequence] += len(tokens)
        return logits

    def _feed_states(
        self, parts: dict[int, NDArray[np.int32]], parents: dict[int, NDArray[np.int64]]
    ) -> NDArray[np.float32]:
        """The same with states, which go on by the first half of the tokens in the pass, then by the others."""
        settled = {sequence: (len(tokens) + 1) // 2 for sequence, tokens in parts.items()}
        logits = self._run(parts, parents, settled)
        first = 0
        for sequence, tokens in parts.items():
            self._loads[sequence] = target = self._target(sequence)
            others = range(first + settled[sequence], first + len(tokens))
            if others:
                states = self.lane.capabilities.states
                assert states is not None
                states.advance(target, target, others)
            self._cached[sequence] += len(tokens)
            first += len(tokens)
        return logits

    def _target(self, sequence: int) -> int:
        """The slot of a sequence that does not hold its state now."""
        return 2 * sequence + (self._loads[sequence] == 2 * sequence)

    def _states(self, parts: dict[int, NDArray[np.int32]], settled: dict[int, int]) -> StateStep:
        counts = [len(tokens) for tokens in parts.values()]
        saves = [(row, settled[s], self._target(s)) for row, s in enumerate(parts) if settled.get(s)]
        return StateStep(
            firsts=_int32(np.cumsum(counts) - counts),
            loads=_int32(self._loads[s] for s in parts),
            settled=_int32(settled.get(s, 0) for s in parts),
            saves=np.array(saves, np.int32).reshape(-1, 3),
        )

    def look(self, tokens: NDArray[np.int32], parents: list[int], sequence: int = 0) -> NDArray[np.float32]:
        """Logits float32[T, V] of a tree of tokens after a sequence, which is not changed."""
        return self._run({sequence: tokens}, {sequence: np.array(parents)})

    def _run(
        self,
        parts: dict[int, NDArray[np.int32]],
        parents: dict[int, NDArray[np.int64]],
        settled: dict[int, int] | None = None,
    ) -> NDArray[np.float32]:
        longest = max(len(tokens) for tokens in parts.values())
        order = [(s, i) for i in range(longest) for s, tokens in parts.items() if i < len(tokens)]
        if self._spec.states:  # tokens of a sequence follow one another
            order = [(s, i) for s, tokens in parts.items() for i in range(len(tokens))]
        index = {place: number for number, place in enumerate(order)}
        above = [index.get((s, int(parents[s][i])), -1) for s, i in order]
        positions: list[int] = []
        for (s, _), parent in zip(order, above, strict=True):
            positions.append(self._cached[s] if parent < 0 else positions[parent] + 1)
        slots = [self._slot(s, self._cached[s] + i) for s, i in order]
        rows = _int32([s for s, _ in order])
        batch = Batch(
            tokens=_int32([parts[s][i] for s, i in order]),
            sequences=rows,
            positions=_int32(positions),
            parents=_int32(above),
            outputs=_int32(range(len(order))),
            scales=np.array([self.scales[s] for s, _ in order], np.float32) if self.scales else None,
        )
        starts = _int32([self._cached[s] for s, _ in order])
        states = self._states(parts, settled or {}) if self._spec.states else None
        logits = self.lane.run(Step(batch, rows, _int32(slots), starts, self._tables, states)).copy()
        return np.concatenate([logits[[index[s, i] for i in range(len(parts[s]))]] for s in parts])

    def _slot(self, sequence: int, place: int) -> int:
        return int(self._tables[sequence, place // PAGE]) * PAGE + place % PAGE


def fed(device: Device, golden: Golden, spec: ModelSpec, cuts: list[int], kv: KVKind = "f16") -> NDArray[np.float32]:
    """Logits of the golden tokens, cut into passes."""
    with Player(device, golden, spec, kv=kv) as player:
        return np.concatenate([player.feed(chunk) for chunk in np.split(golden.tokens, cuts)])


def _int32(values: object) -> NDArray[np.int32]:
    return np.array(list(values), np.int32)  # type: ignore[call-overload]
