"""The inputs of a fragment's graph at each step, and its states: names and shapes, from its ops alone.

In: a fragment. Out: its `Signature`. Independent of OpenVINO, so that a cached graph can be fed without being built.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.operands import Rows
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.rotary import RopeTable

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
