"""Embeddings per layer (Gemma 3n and 4): a second table gives each token a few numbers for every layer.

In: a graph whose buffer `x` holds embeddings. Out: ops that combine a token's row of that table with a projection of
its embedding, and the branch by which a layer adds its part. The table is most of such a model, but only rows of it are
read.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.gated_columns import GatedColumns
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.models.blocks import project
from edgeinfer.models.model_graph import ModelGraph

MOST = 1 << 16
"""Largest accepted number of inputs of a layer."""


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """`width` numbers per layer, all of them in the buffer `rows`."""

    rows: str
    width: int

    @classmethod
    def read(cls, g: ModelGraph) -> LayerInputs | None:
        """Add the ops after the embedding; None if the file has no such inputs."""
        hp, sizes = g.hp, g.sizes
        width = hp.integer("embedding_length_per_layer_input", 0, least=0, most=MOST)
        if not width:
            return None
        n_layers, total = sizes.n_layers, sizes.n_layers * width
        rows, projected = g.buffer("layer_inputs", total), g.buffer("gate", total)
        table = hp.matrix("per_layer_token_embd.weight", (sizes.n_vocab, total))
        projection = hp.matrix("per_layer_model_proj.weight", (total, sizes.width))
        weight = hp.vector("per_layer_proj_norm.weight", width)
        # The projection is divided by the root of the model's width; a norm of it needs only another epsilon.
        g.add(
            TokenRows(table, rows, width**0.5),
            MatMul("x", projected, projection),
            RMSNorm(projected, projected, weight, width, sizes.epsilon * sizes.width, n_layers),
            Add(projected, rows, total),
            Scale(rows, total, 2.0**-0.5),
        )
        return cls(rows, width)

    def branch(self, g: ModelGraph, number: int, source: str = "x") -> None:
        """A layer's inputs times an activated gate made from `source`, projected; written to `branch`."""
        width, total = self.width, self.width * g.sizes.n_layers
        gate, hidden = g.buffer("input_gate", width), g.buffer("layer_input", width)
        g.add(
            MatMul(source, gate, g.hp.matrix(f"{g.prefix}inp_gate.weight", (width, g.sizes.width))),
            GatedColumns(gate, self.rows, hidden, number * width, width, total, "gelu_tanh"),
        )
        project(g, hidden, "proj", width, "branch")
