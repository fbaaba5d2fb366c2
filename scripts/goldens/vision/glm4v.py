"""GLM-4.1V."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Glm4vConfig, Glm4vVideoProcessor, PretrainedConfig

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import LLAMA3, byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48)
PATCH, PER_ROW = 8, 16 * 16
MARKS = ("[gMASK]", "<|user|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|image|>", "<|video|>")


def config() -> PretrainedConfig:
    """A tiny GLM-4.1V."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    text = TEXT.common() | BYTE_IDS | {"rope_parameters": rope}
    vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": PATCH}
    own = {"out_hidden_size": TEXT.width, "image_size": 7 * PATCH}
    ids = {"image_token_id": 274, "video_token_id": 275, "image_start_token_id": 272, "image_end_token_id": 273}
    return Glm4vConfig(text_config=text, vision_config=vision | own, **ids)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of the image."""
    pixels = torch.as_tensor(inputs["pixel_values"]).float()
    return list(model.get_image_features(pixels, torch.as_tensor(inputs["image_grid_thw"])).pooler_output)


CASES = (
    Case(
        "glm4v",
        config,
        byte_level(LLAMA3, "glm4", marks=MARKS),
        (
            "Glm4vImageProcessor",
            {
                "patch_size": PATCH,
                "size": {"shortest_edge": 2 * 8 * PER_ROW, "longest_edge": 2 * 1280 * PER_ROW},
            },
        ),
        features,
        sizes=((90, 150), (13, 17), (100, 44)),
        model="Glm4vForConditionalGeneration",
        speaker=("Glm4vProcessor", {"video_processor": Glm4vVideoProcessor()}),
        image_token="<|image|>",
        prompt="the cat <|begin_of_image|><|image|><|end_of_image|> sat on the mat",
    ),
)
