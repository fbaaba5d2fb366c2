"""PaddleOCR-VL."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PaddleOCRVLConfig, PretrainedConfig
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48)
PATCH, PER_ROW = 8, 16 * 16
LEAST, MOST = 10 * PER_ROW, 60 * PER_ROW


def config() -> PretrainedConfig:
    """A tiny PaddleOCR-VL."""
    rope = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [4, 2, 2]}
    text = TEXT.common() | BYTE_IDS | {"rope_parameters": rope, "head_dim": TEXT.head_width}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision |= {"image_size": 6 * PATCH, "patch_size": PATCH, "architectures": ["PaddleOCRVisionModel"]}
    ids = {"image_token_id": 269, "video_token_id": 270, "vision_start_token_id": 271, "vision_end_token_id": 272}
    return PaddleOCRVLConfig(text_config=text, vision_config=vision, **ids)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of the image."""
    pixels = torch.as_tensor(inputs["pixel_values"]).float()
    return list(model.model.get_image_features(pixels, torch.as_tensor(inputs["image_grid_thw"])).pooler_output)


CASES = (
    Case(
        "paddleocr",
        config,
        byte_level(QWEN2, "qwen2", marks=("<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>")),
        ("PaddleOCRVLImageProcessor", {"patch_size": PATCH, "size": {"shortest_edge": LEAST, "longest_edge": MOST}}),
        features,
        sizes=((90, 150), (13, 40), (100, 44)),
        model="PaddleOCRVLForConditionalGeneration",
        files={"processor_config.json": {"min_pixels": LEAST, "max_pixels": MOST}},
        has_text=False,
    ),
)
