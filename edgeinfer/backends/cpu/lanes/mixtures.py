"""Mixtures whose experts are read from disk: fetches the experts that a pass chose and guesses those of the next layer.

In: the ops of a model, a cache of experts, buffers. Out: panel addresses in the tables that kernels read. A guess
applies the next layer's router to the present state, before the layers in between change it (Eliseev & Mazur, arXiv
2312.17238).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.lowering.experts import MoeLowering
from edgeinfer.backends.cpu.memory.buffers import CpuBuffers
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.router import Router
from edgeinfer.graph.step import Floats
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.bundle import Bundle, Key
from edgeinfer.offload.expert_cache import ExpertCache
from edgeinfer.offload.weights import WeightReads

AHEAD = 1
"""Layers guessed ahead: guesses two layers ahead are worse, and keep the cores busy longer than they save."""
FEW_TOKENS = 8
"""Most tokens of a pass with guesses: larger passes need most experts anyway."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How a layer's experts are chosen: scores = router @ (state / root mean square * norm)."""

    state: str
    router: Floats
    epsilon: float
    active: int

    def likely(self, state: Floats) -> list[int]:
        """The experts that rows of the state would choose, the likeliest first."""
        if len(state) == 1:  # the root mean square is omitted: it changes no order
            scores: Floats = self.router @ state[0]
        else:
            roots = np.sqrt(np.mean(state * state, axis=-1, keepdims=True) + self.epsilon)
            scores = ((state / roots) @ self.router.T).max(axis=0)
        found: list[int] = scores.argsort()[: -1 - self.active * len(state) : -1].tolist()
        return found


class Mixtures:
    """The mixtures of one model, in order. Owns the cache; close it."""

    def __init__(self, spec: ModelSpec, file: GGUFFile, contents: Contents, cache: ExpertCache) -> None:
        self._cache = cache
        ops = list(spec.ops())
        places = [place for place, op in enumerate(ops) if is_streamed(op)]
        self.ops: list[Experts] = [op for op in ops if isinstance(op, Experts) and is_streamed(op)]
        self._routings = [_routing(ops, place, file) for place in places]
        offsets: dict[Key, int] = {part.key: part.offset for bundle in contents.bundles for part in bundle.parts}
        self._offsets = [
            tuple(np.array([offsets[weight, 0] for weight in matrices], np.int64) for matrices in op.all_stacks)
            for op in self.ops
        ]

    @property
    def reading(self) -> WeightReads:
        """What the cache has read."""
        return self._cache.reading

    @property
    def cache_bytes(self) -> int:
        """Memory for experts."""
        return self._cache.nbytes

    def resize(self, n_bytes: int) -> None:
        """Resize the memory for experts, to at least what a token needs; between two passes."""
        self._cache.resize(n_bytes, max(op.active for op in self.ops))

    def rounds(self, layer: int, lowering: MoeLowering, buffers: CpuBuffers) -> Iterator[None]:
        """Fetch the chosen experts of a layer, as many at a time as fit, and run the products of each round.

        Rounds follow the order of experts, in which a token's experts are summed. Raises the error of a failed read.
        """
        op = self.ops[layer]
        chosen, tables = lowering.chosen(op), [lowering.tables[matrices] for matrices in op.all_stacks]
        most = self._cache.most_at_once
        for start in range(0, len(chosen), most):
            some = chosen[start : start + most]
            self._cache.ask(layer, some)
            if start + most >= len(chosen):
                self._guess(layer, buffers)
            addresses = self._cache.wait(layer, some)
            for table, offsets in zip(tables, self._offsets[layer], strict=True):
                table[some] = addresses + offsets[some]
            if len(chosen) > most:
                lowering.confine(some)
            yield

    def _guess(self, layer: int, buffers: CpuBuffers) -> None:
        """Request the experts that the next mixtures will probably choose."""
        if not self._cache.guesses:
            return
        likely: list[tuple[int, int]] = []
        for ahead in range(layer + 1, min(layer + 1 + AHEAD, len(self._routings))):
            routing = self._routings[ahead]
            if routing is None or buffers.n_rows(routing.state) > FEW_TOKENS:
                break
            likely += [(ahead, number) for number in routing.likely(buffers.value(routing.state))]
        self._cache.guess(likely)

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._cache.close()


def is_streamed(op: Op) -> bool:
    """Whether an op has experts of which a token uses only some."""
    return isinstance(op, Experts) and op.active < op.count


def expert_bundles(contents: Contents) -> list[list[Bundle]]:
    """The bundles of each mixture's experts, in order."""
    found: dict[str, list[Bundle]] = {}
    for bundle in contents.bundles:
        if bundle.expert is not None:
            found.setdefault(bundle.stage, []).append(bundle)
    return list(found.values())


def _routing(ops: Sequence[Op], place: int, file: GGUFFile) -> Routing | None:
    """How the experts of the op at a place are chosen; None unless their scores are a product of an RMSNorm."""
    experts = ops[place]
    assert isinstance(experts, Experts)
    router = _maker(ops, place, experts.shares)
    product = _maker(ops, place, router.scores) if isinstance(router, Router) else None
    norm = _maker(ops, place, product.source) if isinstance(product, MatMul) else None
    if not isinstance(product, MatMul) or not isinstance(norm, RMSNorm) or norm.groups != 1:
        return None
    matrix: Floats = weights.matrix(file, product.weight)
    if norm.weight is not None:
        matrix = matrix * weights.vector(file, norm.weight)
    return Routing(norm.source, matrix, norm.epsilon, experts.active)


def _maker(ops: Sequence[Op], place: int, name: str) -> Op | None:
    """The op that last wrote a buffer before a place."""
    return next((op for op in reversed(ops[:place]) if not isinstance(op, Experts) and _out(op) == name), None)


def _out(op: Op) -> str | None:
    match op:
        case Router() | MatMul() | RMSNorm():
            return op.out
        case _:
            return None
