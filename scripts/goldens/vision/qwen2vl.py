"""Qwen2-VL, and Qwen2.5-VL with windows that are smaller at the edges."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig, Qwen2_5_VLConfig, Qwen2VLConfig, Qwen2VLVideoProcessor
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48)
MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IDS = {"image_token_id": 270, "video_token_id": 271, "vision_start_token_id": 269, "vision_end_token_id": 272}
PROMPT = "the cat <|vision_start|><|image_pad|><|vision_end|> sat on the mat"
WINDOWED = 28
"""Pixels along the edge of a patch of Qwen2.5-VL: a window has 2 x 2 blocks of 2 x 2 patches."""


def text() -> dict[str, Any]:
    """The language model."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
    return TEXT.common() | BYTE_IDS | {"rope_parameters": rope}


def qwen2vl() -> PretrainedConfig:
    """A tiny Qwen2-VL."""
    vision = {"depth": 3, "embed_dim": 48, "hidden_size": TEXT.width, "mlp_ratio": 2, "num_heads": 4, "patch_size": 8}
    return Qwen2VLConfig(text_config=text(), vision_config=vision, **IDS)


def qwen25vl() -> PretrainedConfig:
    """A tiny Qwen2.5-VL, one of whose two layers has windows."""
    vision = {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": WINDOWED}
    own = {"out_hidden_size": TEXT.width, "fullatt_block_indexes": [1, 3]}
    return Qwen2_5_VLConfig(text_config=text(), vision_config=vision | own, **IDS)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of the image."""
    pixels = torch.as_tensor(inputs["pixel_values"]).float()
    return list(model.get_image_features(pixels, torch.as_tensor(inputs["image_grid_thw"])).pooler_output)


def processor(patch: int) -> tuple[str, dict[str, Any]]:
    """The image processor with the limits of its class, in rows."""
    per_row = (2 * patch) ** 2
    return "Qwen2VLImageProcessor", {
        "patch_size": patch,
        "size": {"shortest_edge": 4 * per_row, "longest_edge": 1280 * per_row},
    }


CASES = (
    Case(
        "qwen2vl",
        qwen2vl,
        byte_level(QWEN2, "qwen2", marks=MARKS),
        processor(8),
        features,
        sizes=((90, 150), (13, 17), (100, 44)),
        model="Qwen2VLForConditionalGeneration",
        speaker=("Qwen2VLProcessor", {"video_processor": Qwen2VLVideoProcessor()}),
        image_token="<|image_pad|>",
        prompt=PROMPT,
    ),
    Case(
        "qwen25vl",
        qwen25vl,
        byte_level(QWEN2, "qwen2", marks=MARKS),
        processor(WINDOWED),
        features,
        sizes=((190, 280), (90, 60), (170, 340)),
        model="Qwen2_5_VLForConditionalGeneration",
        speaker=("Qwen2_5_VLProcessor", {"video_processor": Qwen2VLVideoProcessor()}),
        image_token="<|image_pad|>",
        prompt=PROMPT,
    ),
)
