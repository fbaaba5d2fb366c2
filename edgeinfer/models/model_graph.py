"""A model under construction: its ops stage by stage, and the buffers, caches and states that they use.

In: what an architecture adds, layer by layer. Out: a ModelSpec. Independent of families and of the blocks they share
(those are in `blocks`). Buffer names are few: each layer reuses those of the previous one.
"""

from __future__ import annotations

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec, RankHead, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, LayerState, PagedKV, Rows, Weight
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.sizes import Sizes


class ModelGraph:
    """`hp` is what the file says; `sizes` are those of the current layer, or, between layers, the largest of all.

    `prefix` begins the tensor names of the current layer, `number` is its own.
    """

    def __init__(self, hp: Hyperparameters, sizes: Sizes) -> None:
        self.hp, self.sizes, self._whole = hp, sizes, sizes
        self.prefix, self.number = "", -1
        self._stages: list[tuple[str, list[Op]]] = []
        self._buffers: dict[str, Buffer] = {}
        self._shapes: dict[str, tuple[int, int]] = {}
        self._kv: list[PagedKV] = []
        self._states: list[LayerState] = []
        self._dense: list[Weight] = []
        self._rank: RankHead | None = None

    def stage(self, name: str, prefix: str = "") -> None:
        """Begin a stage ("embed", "blk.0" … or "head"): ops that are placed together. `prefix`: if not the name's."""
        self.prefix = prefix or f"{name}."
        kind, _, number = name.partition(".")
        self.number = int(number) if kind == "blk" else -1
        self.sizes = self._whole.of_layer(self.number) if kind == "blk" else self._whole
        self._stages.append((name, []))

    def add(self, *ops: Op) -> None:
        """Add ops to the current stage."""
        self._stages[-1][1].extend(ops)

    def buffer(self, name: str, width: int, rows: Rows = Rows.TOKENS, heads: int = 1) -> str:
        """The buffer with that name, of rows divided into this many heads. Returns its name, longer if sizes differ.

        Buffers of one name serve layers of different sizes, because no layer needs another layer's contents.
        """
        first = self._shapes.setdefault(name, (heads, width))
        full = name if first == (heads, width) else f"{name} {heads} x {width // heads}"
        self._buffers.setdefault(full, Buffer(full, width, rows, "" if full == name else name))
        return full

    def width_of(self, buffer: str) -> int:
        """The width of a buffer's rows."""
        return self._buffers[buffer].width

    def cache(self, layer: PagedKV) -> int:
        """Add a KV cache for a layer; returns its number."""
        self._kv.append(layer)
        return len(self._kv) - 1

    def kept(self, layer: int) -> PagedKV:
        """The KV cache with that number."""
        return self._kv[layer]

    def state(self, state: LayerState) -> int:
        """Add a state for a layer; returns its number. Raises UnsupportedModel if tokens also attend to later ones."""
        if not self.hp.flag("attention.causal", default=True):
            raise UnsupportedModel(
                f"this {self.hp.architecture} reads texts as a whole (attention.causal is false), and what edgeinfer "
                "has for its other layers goes from the first token to the last"
            )
        self._states.append(state)
        return len(self._states) - 1

    def dense(self, weight: Weight) -> None:
        """Add a matrix to apply to a pooled row, after the earlier ones."""
        self._dense.append(weight)

    def rank(self, head: RankHead) -> None:
        """Set the ranking head, which turns a hidden row into scores."""
        self._rank = head

    def spec(self, logits: str = "logits") -> ModelSpec:
        """The model; its last op must have written `logits`."""
        sizes = self._whole
        return ModelSpec(
            architecture=self.hp.architecture,
            name=self.hp.name,
            n_layers=sizes.n_layers,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_width=sizes.head_width,
            ffn_width=sizes.ffn_width,
            n_vocab=sizes.n_vocab,
            n_context_trained=sizes.n_context_trained,
            buffers=tuple(self._buffers.values()),
            stages=tuple(Stage(name, tuple(ops)) for name, ops in self._stages),
            kv=tuple(self._kv),
            states=tuple(self._states),
            dense=tuple(self._dense),
            rank=self._rank,
            logits=logits,
        )
