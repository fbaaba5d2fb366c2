"""Model files with a trained head of random weights, written by gguf from files without one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

GUESSING = "nextn_predict_layers"
ROUTED = "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "exp_probs_b"
"""Tensors of a mixture, in place of which blocks of MiMo-V2 have dense networks."""
HEADS = {
    "qwen35": ("qwen35-f32.gguf", False),
    "qwen35-own": ("qwen35-f32.gguf", True),
    "qwen35moe": ("qwen35moe-f32.gguf", False),
    "qwen3next": ("qwen3next-f32.gguf", False),
    "glm4moe": ("glm4moe-f32.gguf", False),
    "deepseek2": ("deepseek2-f32.gguf", False),
    "hy_v3": ("converted/hy-v3-bf16.gguf", False),
}
"""The file in `tests/golden/data` that each golden head is added to, and whether the head has its own output."""
CHAINS, N_BLOCKS = {"chain": "converted/hy-v3-bf16.gguf", "chain-mimo2": "peer/mimo2.gguf"}, 3
"""The file that each golden chain of blocks is added to, and how many: llama.cpp runs several in these families."""


def write_with_head(model: Path, path: Path, *, seed: int = 0, own_output: bool = False, n_blocks: int = 1) -> Path:
    """Copy a model and add blocks that guess tokens after the next; their shapes are those of an attending layer.

    `own_output`: each block has an output product of its own.
    """
    reader, rng = gguf.GGUFReader(model), np.random.default_rng(seed)
    kind = reader.fields["general.architecture"].contents()
    held = reader.fields.get(f"{kind}.{GUESSING}")
    n_layers = reader.fields[f"{kind}.block_count"].contents() - (held.contents() if held else 0)
    writer = gguf.GGUFWriter(path, kind)
    _copy_fields(reader, writer, kind, n_layers, n_blocks)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for tensor in reader.tensors:
        if tensor.name.startswith(f"blk.{n_layers}."):
            continue
        if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:  # as llama.cpp rounds what it multiplies by such
            writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    like = max(n for n in range(n_layers) if f"blk.{n}.attn_output.weight" in tensors)
    vocabulary, width = (int(size) for size in reversed(tensors["token_embd.weight"].shape))
    shapes = {"eh_proj": (width, 2 * width), "enorm": (width,), "hnorm": (width,), "shared_head_norm": (width,)}
    if own_output:
        shapes["shared_head_head"] = vocabulary, width
    ffn = reader.fields[f"{kind}.feed_forward_length"].contents() if kind == "mimo2" else 0
    for block in range(n_layers, n_layers + n_blocks):
        for name, tensor in tensors.items():
            start, found, rest = name.partition(f"blk.{like}.")
            if found and not start and not (ffn and rest.startswith(ROUTED)):
                shape = tuple(int(size) for size in reversed(tensor.shape))
                writer.add_tensor(f"blk.{block}.{rest}", _values(rng, shape))
        for name, own in {"gate": (ffn, width), "up": (ffn, width), "down": (width, ffn)}.items() if ffn else ():
            writer.add_tensor(f"blk.{block}.ffn_{name}.weight", _values(rng, own))
        for name, own in shapes.items():
            writer.add_tensor(f"blk.{block}.nextn.{name}.weight", _values(rng, own))
    _write(writer)
    return path


EAGLES = {"eagle3": {}, "eagle3-norms": {"norm_before_residual": True, "norm_before_fc": True}}
"""Golden EAGLE-3 heads, by what their files say."""


def write_eagle(
    path: Path,
    *,
    target: int = 32,
    layers: tuple[int, ...] = (0, 1, 1),
    vocabulary: int = 264,
    own: int = 200,
    embeds: bool = True,
    seed: int = 0,
    **flags: bool,
) -> Path:
    """An EAGLE-3 head of random weights for a model of width `target`, with `own` of its tokens."""
    rng, width, heads, kv_heads, head_width, ffn = np.random.default_rng(seed), 32, 2, 1, 16, 64
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", target)
    for name, value in flags.items():
        writer.add_bool(f"eagle3.{name}", value)
    writer.add_tokenizer_model("none")
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (width, 3 * target),
        "output_norm": (width,),
        "output": (own, width),
        "blk.0.attn_norm": (width,),
        "blk.0.attn_norm_2": (width,),
        "blk.0.attn_q": (heads * head_width, 2 * width),
        "blk.0.attn_k": (kv_heads * head_width, 2 * width),
        "blk.0.attn_v": (kv_heads * head_width, 2 * width),
        "blk.0.attn_output": (width, heads * head_width),
        "blk.0.ffn_norm": (width,),
        "blk.0.ffn_gate": (ffn, width),
        "blk.0.ffn_up": (ffn, width),
        "blk.0.ffn_down": (width, ffn),
    }
    if embeds:
        shapes["token_embd"] = vocabulary, width
    if flags.get("norm_before_fc"):
        shapes["enc.output_norm"] = (3 * target,)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", _values(rng, shape))
    writer.add_tensor("d2t", np.sort(rng.permutation(vocabulary)[:own]).astype(np.int64))
    _write(writer)
    return path


ASSISTANTS = {"assistant": ("gemma4-f32.gguf", 2), "assistant-small": ("gemma4-small-f32.gguf", 1)}
"""The model in `tests/golden/data` of each golden assistant, and the seed of its weights."""


def write_assistant(
    model: Path, path: Path, *, seed: int = 0, width: int = 48, window: int = 0, given: int = 0, n_groups: int = 0
) -> Path:
    """An assistant of random weights for a Gemma 4: two layers with a window and one without, as wide as `width`.

    `window`, `given`: another window, or wider rows, than the model's. `n_groups`: of tokens, as in small assistants.
    """
    reader, rng, kind, ffn = gguf.GGUFReader(model), np.random.default_rng(seed), "gemma4-assistant", 64
    keys = {name.removeprefix("gemma4."): field.contents() for name, field in reader.fields.items()}
    vocabulary, own = (int(size) for size in reversed(_shape(reader, "token_embd.weight")))
    given, heads = given or own, 4
    windowed, pattern = [True, False, True], keys["attention.sliding_window_pattern"]
    counts = np.broadcast_to(keys["attention.head_count_kv"], len(pattern)).tolist()
    of_kind = {flag: counts[len(pattern) - 1 - pattern[::-1].index(flag)] for flag in (True, False)}
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(keys["context_length"])
    writer.add_embedding_length(width)
    writer.add_embedding_length_out(given)
    writer.add_block_count(len(windowed))
    writer.add_nextn_predict_layers(len(windowed))
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv([of_kind[flag] for flag in windowed])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(window or keys["attention.sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_shared_kv_layers(len(windowed))
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        for suffix in ("", "_swa"):
            writer.add_uint32(f"{kind}.{name}{suffix}", keys[f"{name}{suffix}"])
    for name in ("rope.freq_base", "rope.freq_base_swa"):
        writer.add_float32(f"{kind}.{name}", keys[name])
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (vocabulary, width),
        "output_norm": (width,),
        "nextn.pre_projection": (width, 2 * given),
        "nextn.post_projection": (given, width),
    }
    for number, flag in enumerate(windowed):
        head_width, prefix = keys["attention.key_length_swa" if flag else "attention.key_length"], f"blk.{number}."
        norms = "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"
        shapes |= {f"{prefix}{name}": (width,) for name in norms}
        shapes |= {f"{prefix}attn_q_norm": (head_width,), f"{prefix}layer_output_scale": (1,)}
        shapes |= {f"{prefix}attn_q": (heads * head_width, width), f"{prefix}attn_output": (width, heads * head_width)}
        shapes |= {f"{prefix}ffn_{name}": (ffn, width) for name in ("gate", "up")} | {f"{prefix}ffn_down": (width, ffn)}
    for name, shape in shapes.items():
        tame = 0.25 if name.endswith("attn_q_norm") else 1.0  # scores are not scaled, so that they would be extreme
        writer.add_tensor(f"{name}.weight", _values(rng, shape) * np.float32(tame))
    factors = next(tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight")
    writer.add_tensor("rope_freqs.weight", np.array(factors.data))
    if n_groups:
        writer.add_tensor("masked_embd_centroids.weight", _values(rng, (n_groups, width)))
        writer.add_tensor("masked_embd_ordering", rng.permutation(vocabulary).astype(np.int64))
    _write(writer)
    return path


def _shape(reader: gguf.GGUFReader, name: str) -> list[int]:
    return next(list(tensor.shape) for tensor in reader.tensors if tensor.name == name)


def write_sure_assistant(model: Path, folder: Path) -> tuple[Path, Path]:
    """A Gemma 4 and an assistant, neither of which looks back: both give for a token what its embedding alone says."""
    reader, paths = gguf.GGUFReader(model), (folder / "sure.gguf", folder / "assistant-of-sure.gguf")
    known = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    width = known["token_embd.weight"].shape[1]
    head = gguf.GGUFReader(write_assistant(model, folder / "random.gguf", width=width))
    for path, each in zip(paths, (reader, head), strict=True):
        writer = gguf.GGUFWriter(path, each.fields["general.architecture"].contents())
        _copy_fields(each, writer, "", -1)
        for tensor in each.tensors:
            values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
            if tensor.name.endswith(("attn_output.weight", "ffn_down.weight")):
                values[:] = 0
            elif tensor.name == "nextn.pre_projection.weight":
                values = np.eye(*values.shape, dtype=np.float32)
            elif tensor.name in ("token_embd.weight", "output_norm.weight"):
                values = known[tensor.name]
            writer.add_tensor(tensor.name, values)
        _write(writer)
    return paths


def write_apart(model: Path, path: Path, n_blocks: int = 1) -> Path:
    """The head of a file that has one, in a file of its own, as llama.cpp's converter writes it with `--mtp`."""
    reader = gguf.GGUFReader(model)
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, kind)
    _copy_fields(reader, writer, kind, -1)
    n_layers = reader.fields[f"{kind}.block_count"].contents() - n_blocks
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) >= n_layers:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    _write(writer)
    return path


def write_deep(model: Path, path: Path, times: int) -> Path:
    """A model with all layers of another one, so many times over; the head inside it stays the last block."""
    reader = gguf.GGUFReader(model)
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, kind)
    count, held = (reader.fields.get(f"{kind}.{key}") for key in ("block_count", GUESSING))
    assert count is not None
    n_blocks = count.contents()
    n_layers = n_blocks - (held.contents() if held else 0)
    _copy_fields(reader, writer, kind, -1, repeated=(n_blocks, n_layers, times))
    for tensor in reader.tensors:
        start, number, rest = tensor.name.partition(".")[0], *tensor.name.partition(".")[2].partition(".")[::2]
        names = [tensor.name]
        if start == "blk":
            first = int(number)
            places = range(first, times * n_layers, n_layers) if first < n_layers else [first + (times - 1) * n_layers]
            names = [f"blk.{place}.{rest}" for place in places]
        for name in names:
            writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    _write(writer)
    return path


def write_sure_head(model: Path, path: Path, n_blocks: int = 1) -> Path:
    """The same, but neither the model nor its head looks back: both give for a token what its embedding alone says."""
    middle = path.with_suffix(".random.gguf")
    write_with_head(model, middle, n_blocks=n_blocks)
    reader = gguf.GGUFReader(middle)
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, kind)
    _copy_fields(reader, writer, kind, -1)
    for tensor in reader.tensors:
        values = np.array(tensor.data)
        if tensor.name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
            values[:] = 0
        elif tensor.name.endswith(("norm.weight", "enorm.weight")) and "ssm" not in tensor.name:
            values[:] = 1
        elif tensor.name.endswith("eh_proj.weight"):
            values = np.eye(*values.shape, dtype=np.float32)
        writer.add_tensor(tensor.name, values, raw_dtype=tensor.tensor_type)
    _write(writer)
    return path


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_fields(
    reader: gguf.GGUFReader,
    writer: gguf.GGUFWriter,
    kind: str,
    n_layers: int,
    n_blocks: int = 1,
    repeated: tuple[int, int, int] = (0, 0, 1),
) -> None:
    """All keys, with blocks after `n_layers`: arrays with a value for each layer get more; -1: as they are.

    `repeated`: blocks of the file, and how many of them are there how many times.
    """
    skipped = {"general.architecture"} | ({f"{kind}.block_count", f"{kind}.{GUESSING}"} if n_layers >= 0 else set())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in skipped:
            continue
        value, form = field.contents(), field.types[0]
        by_layer = field.name.startswith(f"{kind}.") and "sections" not in field.name
        if form is gguf.GGUFValueType.ARRAY and by_layer and len(value) == n_layers:
            value = [*value, *[value[-1]] * n_blocks]
        blocks, again, times = repeated
        if form is gguf.GGUFValueType.ARRAY and by_layer and len(value) == blocks:
            value = [*value[:again] * times, *value[again:]]
        if field.name == f"{kind}.block_count":
            value += again * (times - 1)
        inner = field.types[-1] if form is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, form, sub_type=inner)
    if n_layers >= 0:
        writer.add_block_count(n_layers + n_blocks)
        writer.add_uint32(f"{kind}.{GUESSING}", n_blocks)


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Random weights of a usual size: matrices keep the size of rows, vectors are near one."""
    values = rng.standard_normal(shape).astype(np.float32)
    return 1 + values / 10 if len(shape) == 1 else values / np.float32(shape[-1]) ** 0.5
