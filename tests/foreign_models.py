"""Small random models that edgeinfer has no architecture or tokenizer for, written by the gguf package.

mpt: learnt positions and LayerNorm, as GPT-2 has them, and divided activations. mamba: a state instead of a cache.
unigram: a llama with T5's kind of tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.conftest import CHATML, SPECIAL, byte_characters

WIDTH, HEADS, LAYERS, FFN, CONTEXT = 64, 4, 2, 128, 512
EPSILON = 1e-5
INNER, STATE, KERNEL, RANK = 128, 16, 4, 4

Arrays = Mapping[str, NDArray[np.float32]]


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[np.float32]]:
    """Matrices and biases around 0, norms around 1."""
    draw = np.random.Generator(np.random.PCG64(seed))
    found = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            values = draw.normal(0, 2 * shape[-1] ** -0.5, shape)
        else:
            values = draw.uniform(0.5, 1.5, shape) if name.endswith("norm.weight") else draw.normal(0, 0.2, shape)
        found[name] = values.astype(np.float32)
    return found


def _write(writer: gguf.GGUFWriter, arrays: Arrays) -> None:
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _begin(path: Path, architecture: str, name: str) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_chat_template(CHATML)
    return writer


def _add_bytes(writer: gguf.GGUFWriter) -> int:
    """A byte-level vocabulary; how many tokens it has."""
    tokens = [*SPECIAL, *byte_characters(), "th"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    return len(tokens)


def write_mpt(path: Path, seed: int = 0, architecture: str = "mpt") -> Arrays:
    """An MPT that divides its activations (AWQ), by one; gives its weights."""
    writer = _begin(path, architecture, "tiny-mpt")
    writer.add_layer_norm_eps(EPSILON)
    n_tokens = _add_bytes(writer)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_tokens, WIDTH),
        "position_embd.weight": (CONTEXT, WIDTH),
        "output_norm.weight": (WIDTH,),
        "output_norm.bias": (WIDTH,),
        "output.weight": (n_tokens, WIDTH),
    }
    for layer in range(LAYERS):
        for part, rows, columns in (
            ("attn_qkv", 3 * WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", FFN, WIDTH),
            ("ffn_down", WIDTH, FFN),
        ):
            shapes |= {f"blk.{layer}.{part}.weight": (rows, columns), f"blk.{layer}.{part}.bias": (rows,)}
        for part in ("attn_norm", "ffn_norm"):
            shapes |= {f"blk.{layer}.{part}.weight": (WIDTH,), f"blk.{layer}.{part}.bias": (WIDTH,)}
    arrays = _random(shapes, seed)
    arrays["output.weight"][: len(SPECIAL)] = 0
    arrays |= {f"blk.{layer}.ffn.act.scales": np.ones(FFN, np.float32) for layer in range(LAYERS)}
    _write(writer, arrays)
    return arrays


def mpt_logits(arrays: Arrays, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits float32[T, V] of every token of a text, as the code of GPT-2's paper computes them."""

    def norm(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        centred = values - values.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
        return scaled * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]

    def linear(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        return values @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]

    n_tokens = len(tokens)
    hidden = arrays["token_embd.weight"][tokens] + arrays["position_embd.weight"][:n_tokens]
    future = np.triu(np.full((n_tokens, n_tokens), -np.inf, np.float32), 1)
    for layer in range(LAYERS):
        query, key, value = np.split(
            linear(norm(hidden, f"blk.{layer}.attn_norm"), f"blk.{layer}.attn_qkv"), 3, axis=-1
        )
        heads = []
        for head in range(HEADS):
            part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            scores = query[:, part] @ key[:, part].T / np.sqrt(WIDTH / HEADS) + future
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            heads.append(powers / powers.sum(axis=-1, keepdims=True) @ value[:, part])
        hidden = hidden + linear(np.concatenate(heads, axis=-1), f"blk.{layer}.attn_output")
        inner = linear(norm(hidden, f"blk.{layer}.ffn_norm"), f"blk.{layer}.ffn_up")
        inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        hidden = hidden + linear(inner, f"blk.{layer}.ffn_down")
    found: NDArray[np.float32] = norm(hidden, "output_norm") @ arrays["output.weight"].T
    return found


def write_mamba(path: Path, seed: int = 0) -> Path:
    """A Mamba: what it has read is a state that cannot be cut back."""
    writer = _begin(path, "mamba", "tiny-mamba")
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    n_tokens = _add_bytes(writer)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_tokens, WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (n_tokens, WIDTH),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.ssm_in.weight": (2 * INNER, WIDTH),
            f"blk.{layer}.ssm_conv1d.weight": (INNER, KERNEL),
            f"blk.{layer}.ssm_conv1d.bias": (INNER,),
            f"blk.{layer}.ssm_x.weight": (RANK + 2 * STATE, INNER),
            f"blk.{layer}.ssm_dt.weight": (INNER, RANK),
            f"blk.{layer}.ssm_dt.bias": (INNER,),
            f"blk.{layer}.ssm_a": (INNER, STATE),
            f"blk.{layer}.ssm_d": (INNER,),
            f"blk.{layer}.ssm_out.weight": (WIDTH, INNER),
        }
    arrays = _random(shapes, seed)
    for layer in range(LAYERS):
        arrays[f"blk.{layer}.ssm_a"] = -np.abs(arrays[f"blk.{layer}.ssm_a"])
    arrays["output.weight"][: len(SPECIAL)] = 0
    _write(writer, arrays)
    return path


def write_foreign_text(path: Path, seed: int = 0) -> Path:
    """A llama whose tokenizer is of a kind for text and DNA: without pieces of DNA a byte-level one."""
    writer = _begin(path, "llama", "tiny-foreign-text")
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    merges = ["t h", "th e", "Ġ c", "Ġc a", "Ġca t", "Ġ s", "Ġs a", "Ġsa t"]
    tokens = ["<s>", *byte_characters(), *(merge.replace(" ", "") for merge in merges)]
    writer.add_tokenizer_model("hybriddna")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_merges(merges)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (len(tokens), WIDTH),
    }
    for layer in range(LAYERS):
        for part, rows, columns in (
            *((part, WIDTH, WIDTH) for part in ("attn_q", "attn_k", "attn_v", "attn_output")),
            ("ffn_gate", FFN, WIDTH),
            ("ffn_up", FFN, WIDTH),
            ("ffn_down", WIDTH, FFN),
        ):
            shapes[f"blk.{layer}.{part}.weight"] = rows, columns
        shapes |= {f"blk.{layer}.{part}.weight": (WIDTH,) for part in ("attn_norm", "ffn_norm")}
    arrays = _random(shapes, seed)
    arrays["output.weight"][:1] = 0
    _write(writer, arrays)
    return path
