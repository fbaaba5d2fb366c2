"""Memory traffic per token: bytes of weights in the device's format, and of cached keys and values.

In: a header, a device, a case. Out: bytes per token, computed from sizes: each weight and each cached key and value is
counted once per pass. What a pass reads again, or keeps in caches, is not considered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.backends.base import Footprint, Limits, kind_of
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.work import pass_work, unread_bytes
from edgeinfer.settings import KVKind

HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class TrafficBench:
    """A model on one device."""

    spec: ModelSpec
    tensors: Mapping[str, TensorInfo]
    footprint: Footprint
    limits: Limits

    @classmethod
    def of(
        cls, device: str, spec: ModelSpec, tensors: Mapping[str, TensorInfo], n_context: int, kv: KVKind = "f16"
    ) -> TrafficBench:
        """The traffic of a device; for several devices, that of the first. Raises UnknownKey."""
        limits, first = limits_for(n_context, kv=kv), device.split(",")[0]
        return cls(spec, tensors, kind_of(first).footprint(spec, tensors, limits), limits)

    def bytes_per_token(self, test: str, n: int, depth: int) -> float | None:
        """Bytes read per token in a run of n tokens after `depth` cached ones; None if a whole program is run."""
        if test == "decode":
            passes = [(1, depth + place) for place in range(n)]
        elif test == "verify":
            passes = [(n, depth)]
        elif test == "prefill":
            most = self.limits.max_tokens
            passes = [(min(most, n - start), depth + start) for start in range(0, n, most)]
        else:
            return None
        return sum(self._pass_bytes(count, cached) for count, cached in passes) / n

    def _pass_bytes(self, count: int, cached: int) -> float:
        """Bytes of one pass in the device's formats.

        Weights count once, without experts that no token uses, plus the part of the cache that attention reads.
        """
        reached = pass_work(self.spec, self.tensors, count, cached).kv_bytes
        stored = self.footprint.kv_bytes_per_token / max(1, self.spec.kv_bytes_per_token(HALF_BYTES))
        in_file = sum(info.nbytes for info in self.tensors.values())
        unread = unread_bytes(self.spec, self.tensors, count) / in_file
        return self.footprint.weight_bytes * (1.0 - unread) + reached * stored
