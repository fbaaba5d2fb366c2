"""Tiny random models that hear, as published: how each is made, and what transformers gives.

In: nothing. Out: `CASES`. Ultravox is not in transformers: its encoder is Whisper's there, its projector is written out
from its published code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    PretrainedConfig,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import GPT4O, Kind, byte_level
from goldens.weights import randomise

TEXT = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48)
RATE, HOP = 16000, 160
Samples = NDArray[np.float32]
Made = tuple[list[torch.Tensor], dict[str, Any]]
"""Rows of each chunk, and `ids` and `last` if prompts are judged."""


@dataclass(frozen=True, slots=True)
class SoundCase:
    """A family. `write` writes a checkpoint and returns the model; `judged` makes rows of a sound and answers with it.

    `lengths`: samples of the sounds. `prompt`: as chat templates write it; "": prompts are not judged.
    """

    name: str
    tokenizer: Kind
    write: Callable[[Path, int], Any]
    judged: Callable[[Any, Path, Samples], Made]
    lengths: tuple[int, ...]
    prompt: str = ""
    options: tuple[str, ...] = ()


def extractor(n_mels: int) -> WhisperFeatureExtractor:
    """A feature extractor of chunks of a second."""
    return WhisperFeatureExtractor(feature_size=n_mels, chunk_length=1)


def encoder(ffn_width: int, n_positions: int, n_mels: int) -> dict[str, Any]:
    """The sizes of an encoder."""
    sizes = {"d_model": 32, "encoder_layers": 3, "encoder_attention_heads": 2, "encoder_ffn_dim": ffn_width}
    return sizes | {"num_mel_bins": n_mels, "max_source_positions": n_positions}


def saved(model: Any, folder: Path, seed: int) -> Any:
    """Fill a model and save it as bfloat16; returns it as it is read from there."""
    randomise(model, seed, 0.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    return type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").float().eval()


def projected(model: Any, **inputs: Any) -> tuple[torch.Tensor, NDArray[np.float32]]:
    """All rows that a model's projector makes, and the logits after the prompt."""
    rows: list[torch.Tensor] = []
    projector = model.model.multi_modal_projector
    hook = projector.register_forward_hook(lambda *given: rows.append(given[2]))
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0, -1].float().numpy()
    hook.remove()
    return rows[0].reshape(-1, rows[0].shape[-1]), logits


QWEN_MARKS = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
QWEN_PROMPT = "the cat <|audio_bos|><|AUDIO|><|audio_eos|> sat on the mat"
QWEN_POSITIONS = 50


def write_qwen(folder: Path, seed: int) -> Any:
    """A tiny Qwen2-Audio."""
    sound: PretrainedConfig = Qwen2AudioConfig(
        audio_config=encoder(48, QWEN_POSITIONS, 128) | {"model_type": "qwen2_audio_encoder"},
        text_config=cases.qwen2(TEXT, **BYTE_IDS).to_dict(),
        audio_token_index=AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|AUDIO|>"),
    )
    model = Qwen2AudioForConditionalGeneration._from_config(sound, attn_implementation="eager", dtype=torch.float32)
    return saved(model, folder, seed)


def judged_qwen(model: Any, folder: Path, samples: Samples) -> Made:
    """Rows of each piece of a second as a sound of its own; answers about sounds of one piece."""
    processor = Qwen2AudioProcessor(extractor(128), AutoTokenizer.from_pretrained(folder))
    size, rows = 2 * HOP * QWEN_POSITIONS, []
    for first in range(0, len(samples), size):
        inputs = processor(
            text=QWEN_PROMPT, audio=samples[first : first + size], return_tensors="pt", sampling_rate=RATE
        )
        inputs.pop("num_audio_tokens", None)
        found, last = projected(model, **inputs)
        ids = inputs["input_ids"][0].numpy().astype(np.int32)
        ids[ids == model.config.audio_token_id] = -1
        rows.append(found[: int((ids == -1).sum())])
    return rows, {"ids": ids, "last": last} if len(rows) == 1 else {}


VOXTRAL_MARKS = ("[AUDIO]", "[BEGIN_AUDIO]")
VOXTRAL_PROMPT = "the cat [BEGIN_AUDIO][AUDIO] sat on the mat"
VOXTRAL_POSITIONS = 52


def write_voxtral(folder: Path, seed: int) -> Any:
    """A tiny Voxtral."""
    config = VoxtralConfig(
        audio_config=encoder(128, VOXTRAL_POSITIONS, 128) | {"model_type": "voxtral_encoder"},
        text_config=cases.llama(TEXT, **BYTE_IDS).to_dict(),
        audio_token_id=AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("[AUDIO]"),
    )
    model = VoxtralForConditionalGeneration._from_config(config, attn_implementation="eager", dtype=torch.float32)
    return saved(model, folder, seed)


def judged_voxtral(model: Any, folder: Path, samples: Samples) -> Made:
    """Rows of all chunks of a sound that is filled up, and answers; the processor needs a tokenizer of Mistral's."""
    size = 2 * HOP * VOXTRAL_POSITIONS
    options = {"padding": True, "truncation": False, "pad_to_multiple_of": size, "sampling_rate": RATE}
    features = extractor(128)(samples, **options, return_tensors="pt").input_features
    features = features.reshape(128, -1, 2 * VOXTRAL_POSITIONS).transpose(0, 1)
    n_rows, encode = VOXTRAL_POSITIONS // 4, AutoTokenizer.from_pretrained(folder).encode
    marked = VOXTRAL_PROMPT.replace("[AUDIO]", "[AUDIO]" * n_rows * len(features))
    ids = torch.tensor([encode(marked)])
    rows, last = projected(model, input_ids=ids, input_features=features, attention_mask=torch.ones_like(ids))
    told = ids[0].numpy().astype(np.int32)
    told[told == model.config.audio_token_id] = -1
    return list(rows.reshape(len(features), n_rows, -1)), {"ids": told, "last": last}


ULTRAVOX_POSITIONS, STACKED = 50, 8


class Ultravox(torch.nn.Module):
    """Ultravox 0.5 without its language model."""

    def __init__(self) -> None:
        super().__init__()
        self.config = WhisperConfig(**encoder(48, ULTRAVOX_POSITIONS, 80), attn_implementation="eager")
        self.audio_tower = WhisperEncoder(self.config)
        self.multi_modal_projector = torch.nn.ModuleDict(
            {
                "ln_pre": torch.nn.RMSNorm(32 * STACKED, 1e-6),
                "linear_1": torch.nn.Linear(32 * STACKED, 96, bias=False),
                "ln_mid": torch.nn.RMSNorm(48, 1e-6),
                "linear_2": torch.nn.Linear(48, TEXT.width, bias=False),
            }
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Rows of a chunk of at most a second: float32[M, D] of float32[1, mels, frames]."""
        tower, parts = self.audio_tower, self.multi_modal_projector
        hidden = torch.nn.functional.gelu(tower.conv1(features))
        hidden = torch.nn.functional.gelu(tower.conv2(hidden)).permute(0, 2, 1)
        hidden = hidden + tower.embed_positions.weight[: hidden.shape[1]]
        for layer in tower.layers:
            found = layer(hidden, None)
            hidden = found[0] if isinstance(found, tuple) else found
        hidden = tower.layer_norm(hidden)[0]
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, -len(hidden) % STACKED))
        hidden = parts["linear_1"](parts["ln_pre"](hidden.reshape(-1, 32 * STACKED)))
        value, gate = hidden.chunk(2, dim=-1)
        rows: torch.Tensor = parts["linear_2"](parts["ln_mid"](torch.nn.functional.silu(gate) * value))
        return rows


def write_ultravox(folder: Path, seed: int) -> Any:
    """A tiny Ultravox."""
    model = Ultravox().float().eval()
    randomise(model, seed, 0.0)
    held = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    sizes = encoder(48, ULTRAVOX_POSITIONS, 80) | {"model_type": "whisper"}
    config = {"architectures": ["UltravoxModel"], "model_type": "ultravox", "stack_factor": STACKED}
    config |= {"audio_config": sizes, "text_config": {"hidden_size": TEXT.width}, "hidden_size": TEXT.width}
    (folder / "config.json").write_text(json.dumps(config))
    model.load_state_dict({name: tensor.float() for name, tensor in held.items()})
    return model


def judged_ultravox(model: Any, folder: Path, samples: Samples) -> Made:
    """Rows of each chunk of a second, of one spectrum."""
    features = extractor(80)(samples, padding="longest", truncation=False, sampling_rate=RATE, return_tensors="pt")
    frames = features.input_features
    with torch.no_grad():
        return [model(each) for each in frames.split(2 * ULTRAVOX_POSITIONS, dim=-1)], {}


def write_omni(folder: Path, seed: int) -> Any:
    """A tiny thinker of Qwen2.5-Omni, and its image processor."""
    sound = encoder(48, 1500, 128) | {"output_dim": TEXT.width, "model_type": "qwen2_5_omni_audio_encoder"}
    sight = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 8}
    sight |= {"out_hidden_size": TEXT.width, "fullatt_block_indexes": [1]}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
    text = TEXT.common() | BYTE_IDS | {"rope_parameters": rope}
    text.pop("attn_implementation")
    config = Qwen2_5OmniThinkerConfig(audio_config=sound, vision_config=sight, text_config=text)
    model = Qwen2_5OmniThinkerForConditionalGeneration._from_config(config, attn_implementation="eager")
    model = model.float().eval()
    randomise(model, seed, 0.0)
    parts = ("model.visual.", "model.audio_tower.", "visual.", "audio_tower.")
    held = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items() if name.startswith(parts)}
    model.load_state_dict({name: value.float() for name, value in held.items()}, strict=False)
    named = {f"thinker.{name.removeprefix('model.')}": value.contiguous() for name, value in held.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    thinker = {"audio_config": sound, "vision_config": sight, "text_config": text}
    top = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "hidden_size": TEXT.width}
    (folder / "config.json").write_text(json.dumps(top | {"thinker_config": thinker, "text_config": text}))
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(colours))
    return model


def judged_omni(model: Any, folder: Path, samples: Samples) -> Made:
    """Rows of a sound, 50 of each window of two seconds."""
    made = WhisperFeatureExtractor(feature_size=128, chunk_length=6)
    options = {"padding": "max_length", "return_attention_mask": True, "sampling_rate": RATE, "return_tensors": "pt"}
    found = made(samples, **options)
    with torch.no_grad():
        rows = model.get_audio_features(found.input_features, found.attention_mask).last_hidden_state
    return list(rows.split(50)), {}


CASES = (
    SoundCase(
        "qwen25o",
        byte_level(QWEN2, "qwen2"),
        write_omni,
        judged_omni,
        (4801, 32000, 41300),
        options=("--as-written",),
    ),
    SoundCase(
        "qwen2a",
        byte_level(QWEN2, "qwen2", marks=QWEN_MARKS),
        write_qwen,
        judged_qwen,
        (4801, 16000, 11111, 20700),
        QWEN_PROMPT,
    ),
    SoundCase(
        "voxtral",
        byte_level(GPT4O, "tekken", begin="<|endoftext|>", marks=VOXTRAL_MARKS),
        write_voxtral,
        judged_voxtral,
        (4801, 16640, 20700),
        VOXTRAL_PROMPT,
    ),
    SoundCase(
        "ultravox",
        byte_level(GPT4O, "pixtral"),
        write_ultravox,
        judged_ultravox,
        (4801, 16000, 11111, 20700),
        options=("--as-written",),
    ),
)
