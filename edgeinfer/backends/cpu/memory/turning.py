"""Moving cached tokens of a lane to other positions: its layers' pages and rotary tables as the kernel reads them.

In: slots and a distance. Out: one call of `kernels.attention.turning`, run by the worker pool. What keys mean is
`graph.key_turns`. The kernel is loaded at the first use.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.attention_records import COPY_SLOTS, TURN_KEYS, TURNED_LAYER
from edgeinfer.backends.cpu.layout.padding import WIDEST_TURNED
from edgeinfer.backends.cpu.layout.pages import slot_copying
from edgeinfer.backends.cpu.memory.sequences import CpuKV
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call, Tape
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.key_turns import KeyTurn, key_turns
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile


class CpuKeyTurner:
    """As `KeyTurner`, for one lane. `launch` runs a tape on the lane's worker pool."""

    def __init__(
        self,
        turns: tuple[KeyTurn, ...],
        file: GGUFFile,
        kv: CpuKV,
        library: KernelLibrary,
        launch: Callable[[Tape], None],
    ) -> None:
        self._turns, self._file, self._limited = turns, file, kv.limited
        self._library, self._launch = library, launch
        self._kind = kv.pools[0].layout.kind
        self._layers = np.zeros(len(turns), TURNED_LAYER)
        copied = slot_copying(kv.pools)
        for name in COPY_SLOTS.names or ():
            self._layers[name] = copied[name]
        self._arguments = np.zeros(1, TURN_KEYS)
        self._arguments["layers"], self._arguments["n_layers"] = address(self._layers), len(turns)
        self._arguments["n_heads"] = self._layers["kv_heads"].sum()
        self._factors: dict[RopeTable, Floats | None] = {}
        self._tape: Tape | None = None

    @classmethod
    def of(
        cls, spec: ModelSpec, file: GGUFFile, kv: CpuKV, library: KernelLibrary, launch: Callable[[Tape], None]
    ) -> CpuKeyTurner | None:
        """The turner of a lane; None if keys of its model cannot be moved."""
        if not kv.pools or any(layer.key_width > WIDEST_TURNED for layer in spec.kv):
            return None
        try:
            return cls(key_turns(spec), file, kv, library, launch)
        except UnsupportedModel:
            return None

    def turn_slots(
        self, sources: Int32s, targets: Int32s, distance: int, n_unseen: int = 0, scale: float = 1.0
    ) -> None:
        """As `KeyTurner.turn_slots`."""
        sources, targets = np.ascontiguousarray(sources, np.int32), np.ascontiguousarray(targets, np.int32)
        tables = {turn.table for turn in self._turns if turn.table is not None}
        rotations = {table: self._rotation(table, distance, scale) for table in tables}
        for layer, turn, is_limited in zip(self._layers, self._turns, self._limited, strict=True):
            layer["start"] = n_unseen if is_limited else 0
            layer["first"], layer["half"] = turn.first, 0
            if (distance or scale != 1) and turn.table is not None:
                cosines, sines = rotations[turn.table]
                layer["half"], layer["cosines"], layer["sines"] = len(cosines), address(cosines), address(sines)
        arguments = self._arguments
        arguments["sources"], arguments["targets"] = address(sources), address(targets)
        arguments["count"] = len(sources)
        if self._tape is None:
            call = Call(catalogue.turn_keys(self._kind), arguments, NOTHING, NOTHING, "by heads of all layers")
            self._tape = Tape([call], self._library)
        self._launch(self._tape)

    def _rotation(self, table: RopeTable, distance: int, scale: float) -> tuple[Floats, Floats]:
        if table not in self._factors:
            self._factors[table] = weights.rope_factors(self._file, table)
        return rope.turns(table, distance, self._factors[table], scale)
