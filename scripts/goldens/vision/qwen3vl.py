"""Qwen3-VL, with mergers after two inner layers, and Qwen 3.5's encoder, which has none."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig, Qwen3_5Config, Qwen3VLConfig, Qwen3VLVideoProcessor
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as QWEN35

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48, layers=3)
PATCH = 8
VISION = {"depth": 4, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": PATCH}
MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PROMPT = "the cat <|vision_start|><|image_pad|><|vision_end|> sat on the mat"


def config(deep: tuple[int, ...] = (0, 2)) -> PretrainedConfig:
    """A tiny Qwen3-VL."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
    text = TEXT.common() | {"head_dim": TEXT.head_width, "rope_parameters": rope} | BYTE_IDS
    vision = VISION | {"out_hidden_size": TEXT.width, "num_position_embeddings": 49, "deepstack_visual_indexes": deep}
    return Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=270, vision_start_token_id=271)


def qwen35() -> PretrainedConfig:
    """A tiny Qwen 3.5."""
    text = cases.qwen35(cases.DELTA, **BYTE_IDS)
    vision = VISION | {"out_hidden_size": cases.DELTA.width, "num_position_embeddings": 36}
    ids = {"image_token_id": 270, "vision_start_token_id": 271}
    return Qwen3_5Config(text_config=text.to_dict(), vision_config=vision, **ids)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of the image, with those of inner layers behind them."""
    pixels = torch.as_tensor(inputs["pixel_values"]).float()
    found = model.get_image_features(pixels, torch.as_tensor(inputs["image_grid_thw"]))
    deep = [rows for (rows,) in getattr(found, "deepstack_features", ())]
    return [torch.cat([*found.pooler_output, *deep], dim=-1)]


PROCESSOR = (
    "Qwen2VLImageProcessor",
    {
        "patch_size": PATCH,
        "size": {"shortest_edge": 64 * (2 * PATCH) ** 2, "longest_edge": 1280 * (2 * PATCH) ** 2},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    },
)
CASES = (
    Case(
        "qwen3vl",
        config,
        byte_level(QWEN2, "qwen2", marks=MARKS),
        PROCESSOR,
        features,
        sizes=((90, 150), (31, 17), (200, 104)),
        model="Qwen3VLForConditionalGeneration",
        speaker=("Qwen3VLProcessor", {"video_processor": Qwen3VLVideoProcessor()}),
        image_token="<|image_pad|>",
        prompt=PROMPT,
    ),
    Case(
        "qwen35",
        qwen35,
        byte_level(QWEN35, "qwen35", marks=MARKS),
        PROCESSOR,
        features,
        sizes=((90, 150), (33, 190)),
        model="Qwen3_5ForConditionalGeneration",
        text_options=("--no-mtp",),
        speaker=("Qwen3VLProcessor", {"video_processor": Qwen3VLVideoProcessor()}),
        image_token="<|image_pad|>",
        prompt=PROMPT,
    ),
)
