"""SmolVLM: SigLIP on tiles, pixel shuffle, Llama."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Idefics3Config, PretrainedConfig

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import LLAMA3, byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=8, ffn_width=32)
SIDE, TILES = 32, 4
MARKS = (
    *("<fake_token_around_image>", "<global-img>", "<image>", "<end_of_utterance>"),
    *(f"<row_{row + 1}_col_{column + 1}>" for row in range(TILES) for column in range(TILES)),
)


def config() -> PretrainedConfig:
    """A tiny SmolVLM."""
    text = cases.llama(TEXT, **BYTE_IDS)
    vision = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision |= {"image_size": SIDE, "patch_size": 8, "hidden_act": "gelu_pytorch_tanh"}
    held = text.to_dict() | {"architectures": ["VLlama3ForCausalLM"]}
    return Idefics3Config(vision_config=vision, text_config=held, scale_factor=2, image_token_id=261)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each tile."""
    pixels = torch.as_tensor(inputs["pixel_values"]).float()
    return list(model.get_image_features(pixels).pooler_output)


CASES = (
    Case(
        "idefics3",
        config,
        byte_level(LLAMA3, "smollm", marks=MARKS),
        (
            "Idefics3ImageProcessor",
            {"size": {"longest_edge": SIDE * TILES}, "max_image_size": {"longest_edge": SIDE}},
        ),
        features,
        model="Idefics3ForConditionalGeneration",
        speaker=("Idefics3Processor", {"image_seq_len": (SIDE // 8 // 2) ** 2}),
    ),
)
