"""What a fragment's graph takes at each step: names and shapes from its ops alone, and the arrays of a step.

In: a fragment; steps, and the rows of keys and values. Out: its `Signature`; embedding rows, rotations, masks and the
rows whose logits are requested, by input name. Independent of OpenVINO, so that a cached graph can be fed without being
built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cache_rows import CacheRows
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.operands import Rows
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import Floats, Int32s, Step
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import decode_rows, format_of

Input = tuple[str, tuple[int, ...], bool]
"""Name, shape with -1 for dynamic dimensions, and whether it is int32 (else float32)."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs of a graph.

    given    the fragment's input buffers: float32[1, T or O, W]
    embeds   lookups whose rows are inputs "embed.<buffer>": float32[1, T, D]
    learned  learned positions, which are added to those rows outside the graph
    tables   rotary tables, each with inputs "cos.<n>" and "sin.<n>": float32[1, 1, T, rotary width]
    windows  distinct windows (None: none), each with an input "mask.<window>": float32[1, 1, T, cached rows + T]
    takes    whether there is an input "outputs": int32[O]
    layers   layers with a KV cache; if there are any, there is an input "beam": int32[1], always 0
    """

    given: tuple[tuple[str, int], ...]
    embeds: tuple[Embed, ...]
    learned: tuple[PositionEmbed, ...]
    tables: tuple[RopeTable, ...]
    windows: tuple[int | None, ...]
    takes: bool
    layers: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs."""
        found: list[Input] = [(name, (1, -1, width), False) for name, width in self.given]
        found += [(f"embed.{embed.out}", (1, -1, embed.weight.columns), False) for embed in self.embeds]
        for number, table in enumerate(self.tables):
            found += [(rope_name(number, part), (1, 1, -1, table.rotary_width), False) for part in ("cos", "sin")]
        found += [(mask_name(window), (1, 1, -1, -1), False) for window in self.windows]
        if self.takes:
            found.append(("outputs", (-1,), True))
        if self.layers:
            found.append(("beam", (1,), True))
        return tuple(found)


def rope_name(number: int, part: str) -> str:
    """The input of a rotary table."""
    return f"{part}.{number}"


def mask_name(window: int | None) -> str:
    """The input that says which rows are seen."""
    return f"mask.{0 if window is None else window}"


def signature_of(fragment: Fragment) -> Signature:
    """The inputs that the ops of a fragment need."""
    ops = list(fragment.spec.ops())
    return Signature(
        given=tuple((name, fragment.spec.buffer(name).width) for name in fragment.inputs),
        embeds=tuple(op for op in ops if isinstance(op, Embed)),
        learned=tuple(op for op in ops if isinstance(op, PositionEmbed)),
        tables=tuple(dict.fromkeys(op.table for op in ops if isinstance(op, Rope))),
        windows=tuple(dict.fromkeys(op.window for op in ops if isinstance(op, Attention))),
        takes=any(isinstance(op, TakeOutputs) for op in ops),
        layers=tuple(dict.fromkeys(op.layer for op in ops if isinstance(op, StoreKV))),
    )


def has_tokens(fragment: Fragment, name: str) -> bool:
    """Whether a buffer has one row per token, not per output."""
    return fragment.spec.buffer(name).rows is Rows.TOKENS


UNSEEN = np.float32(-65504.0)
"""Added to the scores of unseen rows: their softmax weight becomes zero, in float16 too."""

Arrays = dict[str, NDArray[np.generic]]


class GraphFeed:
    """The inputs of a graph with one signature."""

    def __init__(self, signature: Signature, file: GGUFFile) -> None:
        self._signature, self._file = signature, file
        self._rows = {}  # raw rows of each embedding: views of the file, valid as long as they are held
        for embed in signature.embeds:
            info = file.tensors[embed.weight.tensor]
            raw = file.raw(embed.weight.tensor).reshape(info.shape[0], -1)
            self._rows[embed.out] = raw[embed.weight.start :], format_of(info.ggml_type)
        self._learned = {
            op.out: (weights.raw_rows(file, op.weight), format_of(file.tensors[op.weight.tensor].ggml_type))
            for op in signature.learned
        }
        self._frequencies = [
            (rope.frequencies(table, weights.rope_factors(file, table)), table) for table in signature.tables
        ]
        self._beam = np.zeros(1, np.int32)

    def arrays(self, step: Step, rows: CacheRows, inputs: Mapping[str, Floats]) -> Arrays:
        """The inputs of a step whose own rows are not yet appended."""
        batch, found = step.batch, Arrays()
        for name, width in self._signature.given:
            found[name] = np.ascontiguousarray(inputs[name], np.float32).reshape(1, -1, width)
        for embed in self._signature.embeds:
            embedded = self._embedded(embed, batch.tokens)
            if embed.out in self._learned:
                raw, form = self._learned[embed.out]
                embedded = embedded + decode_rows(raw[batch.positions], form)
            found[f"embed.{embed.out}"] = embedded[None]
        for number, (frequencies, table) in enumerate(self._frequencies):
            angles = batch.positions[:, None] * frequencies[None, :]
            angles = np.concatenate([angles, angles], axis=1)[None, None]
            magnitude = rope.magnitudes(table, batch.positions)
            found[rope_name(number, "cos")] = (np.cos(angles) * magnitude).astype(np.float32)
            found[rope_name(number, "sin")] = (np.sin(angles) * magnitude).astype(np.float32)
        for window in self._signature.windows:
            found[mask_name(window)] = np.where(rows.visible(step, window), np.float32(0), UNSEEN)[None, None]
        if self._signature.takes:
            found["outputs"] = np.ascontiguousarray(batch.outputs, np.int32)
        if self._signature.layers:
            found["beam"] = self._beam
        return found

    def joined(self, parts: Sequence[Arrays]) -> Arrays:
        """The inputs of several steps joined into one; each may see the rows of those before it.

        Only the last step's outputs are computed.
        """
        found, n_tokens = dict(parts[-1]), 0
        for name in found:
            if name.startswith("mask."):
                found[name] = _joined_masks([part[name] for part in parts])
                n_tokens = found[name].shape[2] - parts[-1][name].shape[2]
            elif name.startswith(("cos.", "sin.")):
                found[name] = np.concatenate([part[name] for part in parts], axis=2)
            elif name.startswith("embed."):
                found[name] = np.concatenate([part[name] for part in parts], axis=1)
        found["outputs"] = (parts[-1]["outputs"] + n_tokens).astype(np.int32)
        return found

    def _embedded(self, embed: Embed, tokens: Int32s) -> Floats:
        """Rows of the embedding, decoded from the file: float32[T, D]. Raises BadGGUF if that was cut short."""
        self._file.check_whole(embed.weight.tensor)
        raw, form = self._rows[embed.out]
        values = decode_rows(raw[tokens], form)
        return np.ascontiguousarray(values if embed.scale == 1.0 else values * np.float32(embed.scale), np.float32)


def _joined_masks(masks: Sequence[NDArray[np.generic]]) -> NDArray[np.float32]:
    """Masks stacked; earlier ones do not see the rows that are added after them."""
    joined = np.full((1, 1, sum(mask.shape[2] for mask in masks), masks[-1].shape[3]), UNSEEN, np.float32)
    start = 0
    for mask in masks:
        joined[:, :, start : start + mask.shape[2], : mask.shape[3]] = mask
        start += mask.shape[2]
    return joined
