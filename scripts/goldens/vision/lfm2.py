"""LFM2-VL: SigLIP 2 with positions for every shape, pixel unshuffle."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Lfm2VlConfig, PretrainedConfig

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.published import HYBRID
from goldens.small_tokenizers import LLAMA3, byte_level
from goldens.vision.case import Case

MARKS = (
    *("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<image>"),
    *(f"<|img_row_{row}_col_{column}|>" for row in (1, 2) for column in (1, 2)),
)
VISION = {"model_type": "siglip2_vision_model", "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 3}
VISION |= {"num_attention_heads": 2, "patch_size": 16, "num_patches": 16, "hidden_act": "gelu_pytorch_tanh"}


def config() -> PretrainedConfig:
    """A tiny LFM2-VL."""
    return Lfm2VlConfig(
        vision_config=VISION | {"vision_use_head": False},
        text_config=cases.lfm2(HYBRID, **BYTE_IDS).to_dict() | {"architectures": ["Lfm2ForCausalLM"]},
        projector_hidden_size=40,
        image_token_id=268 + 4,
    )


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each tile."""
    names = ("pixel_values", "spatial_shapes", "pixel_attention_mask")
    return list(model.get_image_features(**{name: inputs[name] for name in names}).pooler_output)


CASES = (
    Case(
        "lfm2",
        config,
        byte_level(LLAMA3, "lfm2", begin="<|endoftext|>", marks=MARKS),
        ("Lfm2VlImageProcessor", {}),
        features,
        model="Lfm2VlForConditionalGeneration",
        sizes=((200, 304), (70, 350), (512, 1040), (90, 33)),
        renamed=(("model.vision_tower.", "model.vision_tower.vision_model."),),
        repeated=8,
        speaker=("Lfm2VlProcessor", {}),
        asked={"add_special_tokens": True},  # which chat templates write otherwise
    ),
)
