"""Makes a random llama with ReLU gates and a chosen share of zero activations, for measurements and tests.

In: sizes, a file whose tokenizer to copy. Out: a GGUF file. Norms are ones and gates have unit variance, so one bias
for all gates determines how many fire. Part of every token's embedding may be common to all tokens: then many of the
neurons that fire for a token also fire for the next one, as in trained models; without it tokens have little in common.
Gates of random weights fire independently of each other. With groups, which are also made up for measurements, each
neuron belongs to a group whose members are scattered among the neurons and share part of their gate rows: they tend to
fire for the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import gguf
import numpy as np

ARCH = "llama"


@dataclass(frozen=True, slots=True)
class SparseShape:
    """Sizes; `zeros`: share of activations that are zero; `common`: share of an embedding's power common to all tokens.

    `group`: number of neurons that tend to fire together, 0 for none; `together`: share of the power of their gate rows
    that they have in common.
    """

    width: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    zeros: float = 0.9
    common: float = 0.0
    kind: str = "Q4_0"
    activation: str = "relu"
    group: int = 0
    together: float = 0.8


def write_sparse(shape: SparseShape, tokenizer: Path, out: Path, seed: int = 0) -> None:
    """Write the model; norms and biases are F32, all matrices have one type."""
    writer, draw = gguf.GGUFWriter(out, ARCH), np.random.default_rng(seed)
    writer.add_context_length(2048)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_string(f"{ARCH}.feed_forward_activation", shape.activation)
    for key, field in gguf.GGUFReader(tokenizer).fields.items():
        if key.startswith("tokenizer."):
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    kind = gguf.GGMLQuantizationType[shape.kind]

    def matrix(name: str, rows: int, columns: int) -> None:
        values = draw.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)

    def gate(name: str) -> None:
        """Write the gate rows; rows of a group's scattered neurons are similar."""
        if not shape.group:
            matrix(name, shape.ffn, shape.width)
            return
        member = draw.permutation(shape.ffn) // shape.group
        common = draw.standard_normal((member.max() + 1, shape.width), dtype=np.float32)[member]
        rows = draw.standard_normal((shape.ffn, shape.width), dtype=np.float32)
        rows = np.float32(shape.together**0.5) * common + np.float32((1 - shape.together) ** 0.5) * rows
        rows *= np.float32(shape.width**-0.5)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(rows, kind), raw_dtype=kind)

    own = draw.standard_normal((shape.vocabulary, shape.width), dtype=np.float32)
    common = draw.standard_normal(shape.width, dtype=np.float32)
    embedding = np.float32((1 - shape.common) ** 0.5) * own + np.float32(shape.common**0.5) * common
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(embedding, kind), raw_dtype=kind)
    kv_width, bias = shape.width // shape.heads * shape.kv_heads, NormalDist().inv_cdf(1 - shape.zeros)
    for layer in range(shape.layers):
        name = f"blk.{layer}"
        matrix(f"{name}.attn_q", shape.width, shape.width)
        matrix(f"{name}.attn_k", kv_width, shape.width)
        matrix(f"{name}.attn_v", kv_width, shape.width)
        matrix(f"{name}.attn_output", shape.width, shape.width)
        gate(f"{name}.ffn_gate")
        matrix(f"{name}.ffn_up", shape.ffn, shape.width)
        matrix(f"{name}.ffn_down", shape.width, shape.ffn)
        writer.add_tensor(f"{name}.ffn_gate.bias", np.full(shape.ffn, bias, np.float32))
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{name}.{norm}.weight", np.ones(shape.width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(shape.width, np.float32))
    matrix("output", shape.vocabulary, shape.width)  # a tied head would repeat a token forever
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
