"""Files that Ollama published under names of its own: the same headers with llama.cpp's names of keys and tensors.

In: a parsed header. Out: the header as llama.cpp's converter would write it; the same object for files that need
nothing. Only names and single values change: bytes of tensors stay where they are. Parts that answers do without
(images of families other than Gemma 3, sound, MTP) keep their names. Source: the list of transformations in Ollama's
`llama/compat`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from edgeinfer.models.gguf.header import Header, TensorInfo
from edgeinfer.models.gguf.inner_projectors import gemma3_projector
from edgeinfer.models.gguf.metadata import Metadata
from edgeinfer.models.gguf.values import MetadataValue

ARCHITECTURE, PRE, EOS, EOT = (
    "general.architecture",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
)
EMBEDDING, LAYER_ROWS = "token_embd.weight", "per_layer_token_embd.weight"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
VOCABULARY = ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
LONG_GEMMA3 = 131072
"""Gemma 3 of this context, or more, was trained with positions divided by 8."""
LLAMA3_ENDS = {128001: "<|end_of_text|>", 128009: "<|eot_id|>"}


@dataclass(slots=True)
class _Changes:
    """What a file needs. `prefix`: the architecture its keys get; `keys`: new names; `values`: added or replaced.

    `tensors`, `ends`, `whole`: parts, ends and whole names of tensors, and what replaces them. `dropped`: keys that go.
    `n_tokens`: tokens, and rows of the embedding, that are kept; None for all.
    """

    prefix: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    values: dict[str, MetadataValue] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    n_tokens: int | None = None


def with_usual_names(header: Header) -> Header:
    """The header with llama.cpp's names."""
    architecture = header.metadata.get(ARCHITECTURE)
    reader = _READERS.get(architecture) if isinstance(architecture, str) else None
    if reader is None or (changes := reader(header.metadata, header.tensors)) is None:
        return header
    keys = {key: new for key, new in changes.keys.items() if key in header.metadata and new not in header.metadata}
    values = dict(changes.values)
    if changes.prefix:
        old = f"{architecture}."
        values[ARCHITECTURE] = changes.prefix
        own = (key for key in header.metadata if key.startswith(old))
        keys = {key: keys.get(key, key).replace(old, f"{changes.prefix}.", 1) for key in own}
    tensors = {}
    for info in header.tensors.values():
        name = _renamed(info.name, changes)
        tensors[name] = info if name == info.name else replace(info, name=name)
    most = dict.fromkeys(VOCABULARY, changes.n_tokens) if changes.n_tokens is not None else {}
    metadata = header.metadata.changed(keys, values, changes.dropped, most)
    if changes.n_tokens is not None:
        tensors[EMBEDDING] = _first_rows(tensors[EMBEDDING], changes.n_tokens)
    return replace(header, metadata=metadata, tensors=tensors)


def _first_rows(info: TensorInfo, n_rows: int) -> TensorInfo:
    """A matrix without its last rows."""
    n_rows = min(n_rows, info.shape[0])
    return replace(info, shape=(n_rows, *info.shape[1:]), nbytes=info.nbytes // info.shape[0] * n_rows)


def _renamed(name: str, changes: _Changes) -> str:
    if name in changes.whole:
        return changes.whole[name]
    for old, new in changes.ends.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    for old, new in changes.tensors.items():
        if old in name:
            return name.replace(old, new, 1)
    return name


def _gpt_oss(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes:
    changes = _Changes("gpt-oss", values={PRE: "gpt-4o"})
    experts = tensors.get("blk.0.ffn_gate_exps.weight")
    if experts is not None and "gptoss.expert_feed_forward_length" not in metadata:
        changes.values["gpt-oss.expert_feed_forward_length"] = experts.shape[-2]
    if "gptoss.rope.scaling.type" not in metadata and "gptoss.rope.scaling.factor" in metadata:
        changes.values["gpt-oss.rope.scaling.type"] = "yarn"
    changes.ends = {".attn_sinks": ".attn_sinks.weight"}
    changes.tensors = {".attn_out.": ".attn_output.", ".ffn_norm.": ".post_attention_norm."}
    return changes


def _gemma3(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    marks = ("mm.tokens_per_image", "rope.global.freq_base", "rope.local.freq_base")
    epsilon = "gemma3.attention.layer_norm_rms_epsilon"
    embeds = "dense.0.weight" in tensors
    if not embeds and epsilon in metadata and not any(f"gemma3.{mark}" in metadata for mark in marks):
        return None
    changes = _Changes("gemma-embedding" if embeds else "")
    own = changes.prefix or "gemma3"
    changes.n_tokens = _rows(tensors, EMBEDDING)
    changes.keys = {
        "gemma3.rope.global.freq_base": "gemma3.rope.freq_base",
        "gemma3.rope.local.freq_base": "gemma3.rope.freq_base_swa",
    }
    if (inner := gemma3_projector(metadata, tensors)) is not None:
        changes.keys |= inner.keys
        changes.values |= inner.values
        changes.whole = inner.tensors
    if epsilon not in metadata:
        changes.values[f"{own}.attention.layer_norm_rms_epsilon"] = 1e-6
    context = metadata.get("gemma3.context_length")
    if isinstance(context, int) and context >= LONG_GEMMA3 and "gemma3.rope.scaling.factor" not in metadata:
        changes.values |= {f"{own}.rope.scaling.type": "linear", f"{own}.rope.scaling.factor": 8.0}
    if embeds:
        changes.whole = {
            "dense.0.weight": "dense_2.weight",
            "dense.1.weight": "dense_3.weight",
            "norm.weight": "output_norm.weight",
        }
        changes.dropped = ("gemma3.attention.causal", "gemma3.attention.sliding_window_pattern")
    return changes


def _gemma3n(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    """Gemma 3n with tokens of images and sounds, for which layers have no rows."""
    n_tokens = _rows(tensors, LAYER_ROWS)
    if n_tokens is None or n_tokens == _rows(tensors, EMBEDDING):
        return None
    return _Changes(values={"tokenizer.ggml.model": "llama"}, n_tokens=n_tokens)


def _glm4_moe_lite(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes:
    """GLM-4.7-Flash: widths of heads as they are multiplied, in place of those of cached latent rows."""
    changes = _Changes("deepseek2", values={PRE: "glm4", "deepseek2.attention.head_count_kv": 1})
    width, rank, rotary = (
        metadata.get(f"glm4moelite.{key}")
        for key in ("attention.key_length", "attention.kv_lora_rank", "rope.dimension_count")
    )
    if isinstance(width, int) and isinstance(rank, int) and isinstance(rotary, int):
        own = "deepseek2.attention"
        changes.values |= {f"{own}.key_length": rank + rotary, f"{own}.value_length": rank}
        changes.values |= {f"{own}.key_length_mla": width, f"{own}.value_length_mla": width}
    return changes


def _bert(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    """Snowflake Arctic Embed 2, whose map of characters is in base64, a character in each entry of an array."""
    written = metadata.get(CHARSMAP)
    if not isinstance(written, list) or not all(isinstance(each, str) and len(each) == 1 for each in written):
        return None
    try:
        decoded = base64.b64decode("".join(map(str, written)), validate=True)
    except ValueError:
        return None
    return _Changes(values={CHARSMAP: np.frombuffer(decoded, np.uint8)})


def _lfm2(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    if "output_norm.weight" not in tensors or "token_embd_norm.weight" in tensors:
        return None
    changes = _Changes(values={PRE: "lfm2"}, tensors={"output_norm.": "token_embd_norm."})
    gate = tensors.get("blk.0.ffn_gate.weight")
    if gate is not None:
        changes.values["lfm2.feed_forward_length"] = gate.shape[0]  # some files state another number
    return changes


def _olmo3(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes:
    return _Changes("olmo2")


def _qwen25_vl(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes:
    return _Changes("qwen2vl")


def _mistral3(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    names = {
        "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
        "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
        "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
        "rope.scaling_beta": "attention.temperature_scale",
    }
    keys = {f"mistral3.{old}": f"mistral3.{new}" for old, new in names.items()}
    if not any(key in metadata for key in keys):
        return None
    return _Changes(keys=keys, values={PRE: "tekken"} if _lacks_pre(metadata) else {})


def _delta_nets(architecture: str) -> Callable[[Metadata, Mapping[str, TensorInfo]], _Changes | None]:
    """Qwen 3.5 and Qwen3-Next: one number of kv heads for all layers, and the name of a bias."""

    def read(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
        key = f"{architecture}.attention.head_count_kv"
        counts = metadata.get(key)
        if not any(name.endswith(".ssm_dt") for name in tensors) and not isinstance(counts, np.ndarray):
            return None
        changes = _Changes(ends={".ssm_dt": ".ssm_dt.bias"})
        if isinstance(counts, np.ndarray) and np.issubdtype(counts.dtype, np.integer) and len(counts):
            changes.values[key] = int(counts.max())
        return changes

    return read


def _llama3(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    """Llama 3 without the name of its pre-tokenizer, or with the end of a text as the end of a turn."""
    if not _is(metadata, "tokenizer.ggml.model", "gpt2") or not (_lacks_pre(metadata) or _is(metadata, EOS, 128001)):
        return None
    template = metadata.get("tokenizer.chat_template")
    tokens = metadata.get("tokenizer.ggml.tokens")
    is_llama3 = isinstance(tokens, list) and all(
        place < len(tokens) and tokens[place] == token for place, token in LLAMA3_ENDS.items()
    )
    if not is_llama3 or not isinstance(template, str) or LLAMA3_ENDS[128009] not in template:
        return None
    values: dict[str, MetadataValue] = {EOS: 128009, EOT: 128009}
    return _Changes(values=values | ({PRE: "llama-bpe"} if _lacks_pre(metadata) else {}))


def _rows(tensors: Mapping[str, TensorInfo], name: str) -> int | None:
    """The number of rows of a matrix; None if there is none."""
    info = tensors.get(name)
    return info.shape[0] if info is not None and len(info.shape) == 2 and info.shape[0] else None


def _lacks_pre(metadata: Metadata) -> bool:
    return PRE not in metadata or _is(metadata, PRE, "") or _is(metadata, PRE, "default")


def _is(metadata: Metadata, key: str, expected: str | int) -> bool:
    """Whether a key has this value; of an array nothing is."""
    value = metadata.get(key)
    return isinstance(value, str | int) and value == expected


def _gemma4(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    changes = _Changes(ends={".ffn_gate_inp.per_expert_scale": ".ffn_down_exps.scale"})
    if _is(metadata, "tokenizer.ggml.model", "llama"):
        changes.values["tokenizer.ggml.model"] = "gemma4"
    elif not any(name.endswith(".per_expert_scale") for name in tensors):
        return None
    return changes


def _nemotron_h_moe(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> _Changes | None:
    latent = next((info for name, info in tensors.items() if name.endswith(".ffn_latent_in.weight")), None)
    if latent is None:
        return None
    key = "nemotron_h_moe.moe_latent_size"
    return _Changes(
        values={} if key in metadata else {key: latent.shape[0]},
        tensors={".ffn_latent_in.": ".ffn_latent_down.", ".ffn_latent_out.": ".ffn_latent_up."},
    )


_READERS: Mapping[str, Callable[[Metadata, Mapping[str, TensorInfo]], _Changes | None]] = MappingProxyType(
    {
        "gptoss": _gpt_oss,
        "bert": _bert,
        "gemma3": _gemma3,
        "gemma3n": _gemma3n,
        "gemma4": _gemma4,
        "glm4moelite": _glm4_moe_lite,
        "lfm2": _lfm2,
        "llama": _llama3,
        "mistral3": _mistral3,
        "nemotron_h_moe": _nemotron_h_moe,
        "olmo3": _olmo3,
        "qwen25vl": _qwen25_vl,
        **{name: _delta_nets(name) for name in ("qwen35", "qwen35moe", "qwen3next")},
    }
)
"""By the architecture that the file states."""
