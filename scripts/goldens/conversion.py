"""Converts a tiny transformers model to GGUF, by the conventions of llama.cpp's converter, and back.

In: a model and a format. Out: the file, and the weights it holds (after quantisation) in transformers' layout. The
conventions: Llama's query and key rows are permuted so that rotary pairs are adjacent, Gemma's norms hold 1 + weight,
Llama 3's scaling is a tensor of factors, LongRoPE's magnitude is `attn_factor`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from block_formats import Type, dequantise, quantise
from numpy.typing import NDArray

from goldens import further, gemma3n, gemma4, gpt_oss, latent, lfm2, llama4, minicpm3, opt, qwen35
from goldens.small_tokenizers import add_tokenizer
from goldens.weights import Types, learned

Arrays = dict[str, NDArray[np.float32]]
DELTA_NETS = ("qwen35", "qwen3next")
ONE_PLUS = ("gemma", "gemma2", "gemma3", "nemotron")
"""Families whose files hold 1 + weight of norms."""
EXACT = ("ffn_gate_inp", "altup")
"""Parts of the names of tensors that stay exact in all files."""
LARGEST_NVFP4 = 6 * 448
"""The largest weight of the format: that of its codes times that of its groups' scales."""
ARCHITECTURES = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
NAMED_LIKE: dict[str, str] = {}
"""Families that the gguf package lacks, and the family of its whose tensors are named alike."""


def convert(model: Any, architecture: str, form: str, name: str, path: Path, turn: int) -> Arrays:
    """Write the model to `path` and return the weights the file holds, in transformers' layout.

    `turn` shifts the types that a "k" file gives to its matrices.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("model")
    writer.add_name(name)
    if architecture == "opt":
        opt.add_sizes(writer, config)
    else:
        _add_sizes(writer, config, architecture)
        _add_rope(writer, config, architecture)
    add_tokenizer(writer)
    held: Arrays = {}
    types = Types(form, turn)
    exact_of = {key: parameter.detach().numpy() for key, parameter in learned(model)}
    if architecture == "gemma3n":
        exact_of = gemma3n.stacked(exact_of)
    for key, exact in (further.joined(exact_of) if architecture in further.JOINED else exact_of).items():
        parts = []
        for target, part in _parts(exact, key, config, architecture):
            values = _to_file(part, key, config, architecture)
            parts.append(_from_file(_add(writer, target, values, types), key, config, architecture))
        if architecture == "gpt-oss" and gpt_oss.parts(key, exact) is not None:
            held[key] = gpt_oss.parameter(key, parts)
        elif architecture == "llama4" and llama4.parts(key, exact) is not None:
            held[key] = llama4.parameter(parts)
        elif architecture == "deepseek2" and key.endswith(latent.BOTH):
            held[key] = latent.parameter(parts)
        elif architecture.startswith(DELTA_NETS) and key.endswith(qwen35.QKVZ):
            held[key] = qwen35.joined(key, parts, config)
        else:
            held[key] = np.concatenate(parts, axis=-2) if len(parts) > 1 else parts[0].reshape(exact.shape)
    for target, factors in ({} if architecture == "opt" else _rope_tensors(config)).items():
        writer.add_tensor(target, factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if architecture == "gemma3n":
        return gemma3n.apart(held)
    return further.apart(held, config) if architecture in further.JOINED else held


def _parts(values: NDArray[np.float32], key: str, config: Any, architecture: str) -> Iterator[tuple[str, Any]]:
    """GGUF's name and the values of each tensor that a parameter becomes: gate and up of experts become two."""
    if architecture == "gpt-oss" and (special := gpt_oss.parts(key, values)) is not None:
        yield from special
        return
    if architecture == "deepseek2" and (both := latent.parts(key, values, config)) is not None:
        yield from both
        return
    if architecture == "llama4" and (turned := llama4.parts(key, values)) is not None:
        yield from turned
        return
    own_parts = {"lfm2": lfm2.part, "lfm2moe": lfm2.part, "gemma3n": gemma3n.part, "gemma4": gemma4.part}
    special_part = own_parts.get(architecture)
    if special_part is not None and (own := special_part(key, values)) is not None:
        yield own
        return
    if architecture.startswith(DELTA_NETS) and (found := qwen35.parts(key, values, config)) is not None:
        yield from found
        return
    if (own := further.parts(key, values)) is not None:
        yield from own
        return
    if key.endswith(".experts.gate_up_proj"):
        layer = key.split(".")[2]
        for name, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
            yield f"blk.{layer}.ffn_{name}_exps.weight", half
        return
    target = _name(key, config, architecture)
    is_single = key.endswith("shared_expert_gate.weight")
    yield f"{target}.weight" if target.endswith("_exps") else target, values[0] if is_single else values


def _add(writer: gguf.GGUFWriter, target: str, values: NDArray[np.float32], types: Types) -> NDArray[np.float32]:
    """Write a tensor and return what the file then holds. Matrices use the next type, except some."""
    is_exact = (
        values.ndim < 2
        or any(part in target for part in EXACT)
        or target.endswith((".bias", *lfm2.EXACT, *qwen35.EXACT))
    )
    kind = Type.F32 if is_exact else types.next(values.shape[-1])
    rows = values.reshape(-1, values.shape[-1])
    if kind == Type.F32:
        writer.add_tensor(target, values)
        return values
    if kind == Type.NVFP4:
        return _add_scaled(writer, target, values)
    stored = quantise(rows, kind)
    if kind == Type.F16:
        halves = stored.view(np.float16).reshape(values.shape)
        writer.add_tensor(target, halves)
        return halves.astype(np.float32)
    writer.add_tensor(target, stored.reshape(*values.shape[:-1], -1), raw_dtype=kind)
    return dequantise(stored, kind).reshape(values.shape)


def _add_scaled(writer: gguf.GGUFWriter, target: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Write an NVFP4 matrix, or a stack of experts' ones, with a scale in a tensor of its own."""
    stack = values.reshape(-1, *values.shape[-2:])
    scales = np.array([np.abs(matrix).max() / LARGEST_NVFP4 for matrix in stack], np.float32)
    stored = quantise((stack / scales[:, None, None]).reshape(-1, values.shape[-1]), Type.NVFP4)
    writer.add_tensor(target, stored.reshape(*values.shape[:-1], -1), raw_dtype=Type.NVFP4)
    writer.add_tensor(f"{target.removesuffix('.weight')}.scale", scales)
    read = dequantise(stored, Type.NVFP4).reshape(stack.shape) * scales[:, None, None]
    return read.reshape(values.shape)


def _name(key: str, config: Any, architecture: str) -> str:
    """GGUF's name of a parameter."""
    if architecture == "opt":
        return opt.tensor_name(key)
    known = NAMED_LIKE.get(architecture, architecture)
    if known not in ARCHITECTURES:
        raise RuntimeError(f"the gguf package has no names of tensors for {known}: see docs/ADDING.md, step 4")
    names = gguf.get_tensor_name_map(ARCHITECTURES[known], config.num_hidden_layers)
    target = names.get_name(key, try_suffixes=(".weight", ".bias"))
    if target is None:
        raise RuntimeError(f"{key} has no name in GGUF")
    return str(target)


def _add_sizes(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    further.add_heads(writer, config)
    further.add_sizes(writer, config, architecture)
    if architecture.startswith("lfm2"):
        lfm2.add_sizes(writer, config)
    else:
        further.add_norms(writer, config, architecture)
    if architecture.startswith(DELTA_NETS):
        qwen35.add_sizes(writer, config)
    if architecture == "minicpm3":
        minicpm3.add_sizes(writer, config)
    if architecture == "deepseek2":
        latent.add_sizes(writer, config)
    if architecture == "llama4":
        llama4.add_sizes(writer, config)
    explicit = None if architecture in ("deepseek2", "minicpm3", "gemma4") else getattr(config, "head_dim", None)
    usual = config.hidden_size // config.num_attention_heads
    if explicit is not None and (explicit != usual or architecture == "openelm"):
        writer.add_key_length(explicit)
        writer.add_value_length(explicit)
    if getattr(config, "hidden_act", None) in ("relu", "relu2"):
        writer.add_string(f"{architecture}.feed_forward_activation", config.hidden_act)
    if architecture in ("llama", "cohere2"):
        writer.add_vocab_size(config.vocab_size)
    count = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(getattr(config, "num_experts_per_tok", None) or config.top_k_experts)
    if architecture == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if getattr(config, "moe_intermediate_size", None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if getattr(config, "sliding_window", None) or architecture == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
    if architecture in ("exaone4", "olmo2") and getattr(config, "sliding_window", None):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "gemma4":
        gemma4.add_sizes(writer, config)
    if getattr(config, "n_deepstack_layers", 0):
        writer.add_num_deepstack_layers(config.n_deepstack_layers)
    if architecture == "gemma3n":
        gemma3n.add_sizes(writer, config)


def _rope_parameters(config: Any) -> Mapping[str, Any]:
    parameters = config.rope_parameters
    return parameters.get("full_attention", parameters)


def _head_width(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _add_rope(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    rope = _rope_parameters(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if "mrope_section" in rope and not architecture.startswith(DELTA_NETS):
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if architecture in ("llama", "phi3"):
        writer.add_rope_dimension_count(int(_head_width(config) * rope.get("partial_rotary_factor", 1.0)))
    if architecture == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    match rope["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if rope.get("attention_factor") is not None:
                writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
            if rope.get("beta_fast") is not None:
                writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
                writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        case "longrope":
            original = rope["original_max_position_embeddings"]
            scale = config.max_position_embeddings / original
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _rope_tensors(config: Any) -> Arrays:
    rope = _rope_parameters(config)
    if rope["rope_type"] == "proportional":
        return gemma4.rope_tensors(config)
    if rope["rope_type"] == "longrope":
        factors = {which: np.array(rope[f"{which}_factor"], np.float32) for which in ("long", "short")}
        return {f"rope_factors_{which}.weight": values for which, values in factors.items()}
    if rope["rope_type"] != "llama3":
        return {}
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    width = _head_width(config)
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, width, 2) / width)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)}


def _to_file(values: NDArray[np.float32], key: str, config: Any, architecture: str) -> NDArray[np.float32]:
    if architecture in further.PAIRED and ("q_proj" in key or "k_proj" in key):
        heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if architecture in ONE_PLUS and key.endswith("norm.weight"):
        return values + np.float32(1)
    if architecture.startswith(DELTA_NETS):
        return qwen35.to_file(values, key, config)
    return further.to_file(values, key, config)


def _from_file(values: NDArray[np.float32], key: str, config: Any, architecture: str) -> NDArray[np.float32]:
    if architecture in further.PAIRED and ("q_proj" in key or "k_proj" in key):
        heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
        return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if architecture in ONE_PLUS and key.endswith("norm.weight"):
        return values - np.float32(1)
    if architecture.startswith(DELTA_NETS):
        return qwen35.from_file(values, key, config)
    return further.from_file(values, key, config)


def load_back(model: torch.nn.Module, held: Arrays) -> None:
    """Load the weights that the file holds into the model."""
    parameters = dict(learned(model))
    for key, values in held.items():
        parameters[key].data = torch.from_numpy(np.ascontiguousarray(values, np.float32))
