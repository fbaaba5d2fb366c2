"""Pixtral, Mistral 3, which joins blocks of patches, and LightOnOCR, whose rows have no marks."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LightOnOcrConfig,
    LlavaConfig,
    Mistral3Config,
    MistralConfig,
    PixtralVisionConfig,
    PretrainedConfig,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import GPT4O, byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48)
PATCH, LONGEST = 8, 96
MARKS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
SIZES = ((60, 90), (13, 17), (150, 100))


def vision() -> PretrainedConfig:
    """The encoder."""
    own = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    return PixtralVisionConfig(**own, image_size=LONGEST, patch_size=PATCH, hidden_act="silu")


def text() -> PretrainedConfig:
    """The language model of Pixtral."""
    own = {"head_dim": TEXT.head_width, "sliding_window": None, "rms_norm_eps": 1e-5}
    return MistralConfig(**TEXT.common() | own | BYTE_IDS)


def pixtral() -> PretrainedConfig:
    """A tiny Pixtral."""
    own = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "image_token_index": 269}
    return LlavaConfig(vision_config=vision(), text_config=text(), **own)


def mistral3() -> PretrainedConfig:
    """A tiny Mistral Small 3.1."""
    return Mistral3Config(vision_config=vision(), text_config=text(), image_token_index=269)


def lightonocr() -> PretrainedConfig:
    """A tiny LightOnOCR."""
    return LightOnOcrConfig(
        vision_config=vision(), text_config=cases.qwen3(TEXT, **BYTE_IDS), image_token_id=269, spatial_merge_size=2
    )


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of the image."""
    pixels = torch.as_tensor(inputs["pixel_values"]).float()
    return list(model.get_image_features(pixels, image_sizes=torch.as_tensor(inputs["image_sizes"])).pooler_output)


def processor(block: int) -> tuple[str, dict[str, Any]]:
    """The image processor, whose sizes are multiples of blocks."""
    edge = PATCH * block
    return "PixtralImageProcessor", {
        "size": {"longest_edge": LONGEST},
        "patch_size": {"height": edge, "width": edge},
    }


CASES = (
    Case(
        "pixtral",
        pixtral,
        byte_level(GPT4O, "pixtral", begin="<|endoftext|>", marks=MARKS),
        processor(1),
        features,
        sizes=SIZES,
        model="LlavaForConditionalGeneration",
        speaker=("PixtralProcessor", {"patch_size": PATCH}),
        image_token="[IMG]",
        prompt="the cat [IMG] sat on the mat",
    ),
    Case(
        "mistral3",
        mistral3,
        byte_level(GPT4O, "pixtral", begin="<|endoftext|>", marks=MARKS),
        processor(2),
        features,
        sizes=SIZES,
        model="Mistral3ForConditionalGeneration",
        speaker=("PixtralProcessor", {"patch_size": PATCH, "spatial_merge_size": 2}),
        image_token="[IMG]",
        prompt="the cat [IMG] sat on the mat",
    ),
    Case(
        "lightonocr",
        lightonocr,
        byte_level(QWEN2, "qwen2", marks=("<|image_pad|>", "<|vision_pad|>", "<|vision_end|>")),
        processor(2),
        features,
        sizes=SIZES,
        model="LightOnOcrForConditionalGeneration",
        architecture="LightOnOCRForConditionalGeneration",
        has_text=False,
        image_token="<|image_pad|>",
    ),
)
