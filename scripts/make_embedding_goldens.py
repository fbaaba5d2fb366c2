"""Makes the golden files of `tests/golden/data/embedding`: tiny random embedding models and transformers' results.

Run from the repository root: `python scripts/make_embedding_goldens.py [FAMILY …]`. Needs torch, transformers and gguf.
The files have the layout that llama.cpp's converter writes; transformers computes the results in float32 from the
files' own numbers, dequantised. For NAME.gguf there is NAME.npz with tokens int32[T]; hidden float32[T, D], the last
hidden rows; and embedding float32[D]: their mean, after the products that follow pooling if there are any, scaled to
length 1. For rerankers it has tokens and score float32[1].
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from block_formats import Type, quantise
from goldens.small_tokenizers import add_tokenizer
from goldens.weights import UNIFORM
from numpy.typing import NDArray
from transformers import (
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    JinaEmbeddingsV3Config,
    JinaEmbeddingsV3Model,
    NomicBertConfig,
    NomicBertModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data" / "embedding"
VOCABULARY, N_TOKENS, CONTEXT, WIDTH, FFN, INNER = 264, 90, 96, 64, 96, 96
WINDOW, PAD = 24, 1
Array = NDArray[np.float32]
COMMON = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_attention_heads": 4, "vocab_size": VOCABULARY}
NEWER = ("nomic-bert", "jina-bert-v3")
"""Families whose parameters transformers names in its newer way."""
BASES = {"nomic-bert": 1000.0, "jina-bert-v3": 20000.0}
PARTS = {
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A family: GGUF's key, a model, and how it is written."""

    architecture: str
    model: Callable[[], torch.nn.Module]
    layers: int
    has_dense: bool = False
    ranks: bool = False


def xlm_roberta() -> torch.nn.Module:
    """XLM-RoBERTa with a head of one score, like bge-reranker."""
    config = XLMRobertaConfig(
        **COMMON,
        num_hidden_layers=2,
        max_position_embeddings=CONTEXT + PAD + 1,
        layer_norm_eps=1e-5,
        type_vocab_size=1,
        num_labels=1,
        pad_token_id=PAD,
    )
    return XLMRobertaForSequenceClassification(config)


def bert() -> torch.nn.Module:
    """BERT with two token types, of which the first is used."""
    config = BertConfig(**COMMON, num_hidden_layers=2, max_position_embeddings=CONTEXT, layer_norm_eps=1e-12)
    return BertModel(config, add_pooling_layer=False)


def nomic() -> torch.nn.Module:
    """Nomic's BERT."""
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    return NomicBertModel(
        NomicBertConfig(**COMMON, num_hidden_layers=2, head_dim=WIDTH // 4, rope_parameters=rope, layer_norm_eps=1e-12)
    )


def jina3() -> torch.nn.Module:
    """Jina Embeddings v3 without adapters."""
    rope = {"rope_type": "default", "rope_theta": 20000.0}
    ids = {"bos_token_id": 0, "pad_token_id": PAD, "eos_token_id": 2}
    config = JinaEmbeddingsV3Config(
        **COMMON, **ids, num_hidden_layers=2, rope_parameters=rope, max_position_embeddings=258, layer_norm_eps=1e-5
    )
    return JinaEmbeddingsV3Model(config, add_pooling_layer=False)


def gemma() -> torch.nn.Module:
    """EmbeddingGemma: windows shorter than the text in all layers but the sixth."""
    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = Gemma3TextConfig(
        **COMMON,
        num_hidden_layers=7,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        use_bidirectional_attention=True,
        rope_parameters=rope,
        max_position_embeddings=256,
    )
    return Gemma3TextModel(config)


CASES = (
    Case("bert", bert, 2),
    Case("bert", xlm_roberta, 2, ranks=True),
    Case("nomic-bert", nomic, 2),
    Case("gemma-embedding", gemma, 7, has_dense=True),
    Case("jina-bert-v3", jina3, 2),
)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Fill a model so that every part matters."""
    draw = np.random.default_rng(seed)
    is_gemma = "Gemma" in type(model).__name__
    for name, parameter in model.named_parameters():
        noise = draw.standard_normal(tuple(parameter.shape)).astype(np.float32)
        if parameter.ndim == 1:
            noise = 0.3 * noise + (1.0 if name.lower().endswith("norm.weight") and not is_gemma else 0.0)
        elif "embed" not in name:
            noise = noise * np.float32(1.2 * parameter.shape[-1] ** -0.5)
        parameter.data = torch.from_numpy(noise.astype(np.float32))


def tensors(model: torch.nn.Module, case: Case) -> Iterator[tuple[str, list[str]]]:
    """GGUF's name of each tensor, and the parameters that it holds, stacked by rows."""
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture), case.layers
    )
    for key, _ in model.named_parameters():
        if case.ranks and key.startswith("classifier"):
            yield f"{'cls.output' if 'out_proj' in key else 'cls'}.{key.rpartition('.')[2]}", [key]
            continue
        if case.architecture in NEWER and "self_attn." in key and "o_proj" not in key:
            prefix, found, part = key.partition("q_proj.")
            if found:
                layer = key.split(".")[1]
                yield f"blk.{layer}.attn_qkv.{part}", [f"{prefix}{letter}_proj.{part}" for letter in "qkv"]
            continue
        own = next((name for part, name in PARTS.items() if part in key), None)
        if case.architecture in NEWER and own is not None:
            yield f"blk.{key.split('.')[1]}.{own}.{key.rpartition('.')[2]}", [key]
        else:
            full = f"model.{key}" if case.architecture == "gemma-embedding" else key.removeprefix("roberta.")
            yield names.get_name(full, try_suffixes=(".weight", ".bias")), [key]


def add_keys(writer: gguf.GGUFWriter, case: Case, config: Any) -> None:
    """Add sizes and settings."""
    writer.add_type("model")
    writer.add_name(case.architecture)
    writer.add_context_length(CONTEXT if case.architecture == "bert" else 256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(case.layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(4)
    writer.add_pooling_type(gguf.PoolingType.RANK if case.ranks else gguf.PoolingType.MEAN)
    if case.architecture == "gemma-embedding":
        writer.add_head_count_kv(2)
        writer.add_key_length(16)
        writer.add_value_length(16)
        writer.add_sliding_window(WINDOW)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(1e6)
        writer.add_uint32(f"{case.architecture}.dense_2_feat_out", INNER)
        writer.add_uint32(f"{case.architecture}.dense_3_feat_in", INNER)
    else:
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_causal_attention(False)
        writer.add_token_type_count(1 if case.ranks or case.architecture == "jina-bert-v3" else 2)
        if case.architecture in BASES:
            writer.add_rope_freq_base(BASES[case.architecture])
    if case.ranks:
        add_unigram(writer)
    else:
        add_tokenizer(writer)


def add_unigram(writer: gguf.GGUFWriter) -> None:
    """XLM-RoBERTa's kind of vocabulary: control tokens, letters and a few words."""
    control = ["<s>", "<pad>", "</s>", "<unk>"]
    words = [f"▁{word}" for word in ("the", "a", "cat", "sat", "dog", "moon")]
    letters = ["▁", *map(chr, range(33, 127))]
    fill = [f"<{number}>" for number in range(VOCABULARY - len(control) - len(words) - len(letters))]
    tokens = [*control, *words, *letters, *fill]
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 4 + [-2.0] * len(words) + [-6.0] * (len(letters) + len(fill)))
    writer.add_token_types([3, 3, 3, 2] + [1] * (len(tokens) - 4))
    for add, token in (
        (writer.add_bos_token_id, 0),
        (writer.add_pad_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_unk_token_id, 3),
        (writer.add_sep_token_id, 2),
    ):
        add(token)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(True)


def write(model: Any, case: Case, form: str, path: Path, seed: int) -> list[Array]:
    """Write a model and load the file's numbers into it; returns the products that follow pooling."""
    writer = gguf.GGUFWriter(path, case.architecture)
    add_keys(writer, case, model.config)
    parameters = dict(model.named_parameters())
    is_gemma = case.architecture == "gemma-embedding"
    for target, keys in tensors(model, case):
        values = np.concatenate([parameters[key].detach().numpy() for key in keys])
        first = PAD + 1 if case.ranks and target.startswith("position") else 0  # positions start there
        before, values = values[:first], values[first:]
        is_norm = is_gemma and target.endswith("norm.weight")
        held = _add(writer, target, values + np.float32(1) if is_norm else values, form)
        held = np.concatenate([before, held - np.float32(1) if is_norm else held])
        for key, part in zip(keys, np.split(held, len(keys)), strict=True):
            parameters[key].data = torch.from_numpy(np.ascontiguousarray(part))
    dense: list[Array] = []
    if case.has_dense:
        draw = np.random.default_rng(seed + 1)
        for number, shape in ((2, (INNER, WIDTH)), (3, (WIDTH, INNER))):
            values = (draw.standard_normal(shape) * shape[1] ** -0.5).astype(np.float32)
            dense.append(_add(writer, f"dense_{number}.weight", values, form))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dense


def _add(writer: gguf.GGUFWriter, target: str, values: Array, form: str) -> Array:
    kind = UNIFORM[form] if values.ndim > 1 and "position" not in target and "types" not in target else Type.F32
    if kind == Type.F32:
        writer.add_tensor(target, values)
        return values
    stored = quantise(values, kind)
    writer.add_tensor(target, stored, raw_dtype=kind)
    held: Array = gguf.quants.dequantize(stored, kind).reshape(values.shape)
    return held


def make(case: Case, form: str, seed: int) -> None:
    """Write one file and transformers' results for some tokens."""
    model = case.model().eval()
    randomise(model, seed)
    path = DATA / f"{'reranker' if case.ranks else case.architecture}-{form}.gguf"
    dense = write(model, case, form, path, seed)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY - 8, N_TOKENS).astype(np.int32)
    if case.ranks:
        tokens = np.array([0, 4, 6, 7, 2, 2, 5, 8, 10, 30, 40, 50, 9, 2], np.int32)
        with torch.no_grad():
            score = model(torch.from_numpy(tokens).long()[None]).logits[0].sigmoid().numpy()
        np.savez(path.with_suffix(".npz"), tokens=tokens, score=score)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, score {score}")
        return
    with torch.no_grad():
        hidden = model(torch.from_numpy(tokens).long()[None]).last_hidden_state[0].numpy()
    pooled = hidden.mean(axis=0)
    for weight in dense:
        pooled = weight @ pooled
    np.savez(path.with_suffix(".npz"), tokens=tokens, hidden=hidden, embedding=pooled / np.linalg.norm(pooled))
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, spread {hidden.std():.2f}")


def main() -> int:
    torch.set_num_threads(1)
    DATA.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(CASES):
        if sys.argv[1:] and case.architecture not in sys.argv[1:]:
            continue
        for index, form in enumerate(("f32", "q8_0")):
            make(case, form, 10 * number + index)
    return 0


if __name__ == "__main__":
    sys.exit(main())
