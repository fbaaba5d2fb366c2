"""Gemma 4: a vision transformer that rotates by two axes, average pooling; with and without clipped products."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4VideoProcessor,
    PretrainedConfig,
)

from goldens import gemma4
from goldens.published import FOUR, PIECE_IDS
from goldens.small_tokenizers import spaced
from goldens.vision.case import Case

MARKS = ("<|image>", "<image|>", "<|image|>", "<|video|>", "<|audio|>", "<|audio>", "<audio|>")
NAMES = ("boi_token", "eoi_token", "image_token", "video_token", "audio_token", "boa_token", "eoa_token")
TOKENS = dict(zip(NAMES, MARKS, strict=True))
LIMITS = {"input_min": -1.3, "input_max": 0.9, "output_min": -0.8, "output_max": 1.1}


def config(**changes: object) -> PretrainedConfig:
    """A tiny Gemma 4 whose rows of images see each other."""
    vision = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"num_key_value_heads": 2, "head_dim": 24, "position_embedding_size": 320, "patch_size": 4}
    return Gemma4Config(
        text_config=gemma4.dense(FOUR, **PIECE_IDS, use_bidirectional_attention="vision"),
        vision_config=vision | changes,
        audio_config=None,
        boi_token_id=4,
        eoi_token_id=5,
        image_token_id=6,
        video_token_id=7,
    )


def prepare(model: Any) -> None:
    """Set limits, and what rows are standardised by."""
    random = torch.Generator().manual_seed(4)
    for name, values in model.named_buffers():
        end = name.rsplit(".", 1)[-1]
        if end in LIMITS:
            values.fill_(LIMITS[end])
        elif end in ("std_bias", "std_scale"):
            values.copy_(torch.randn(values.shape, generator=random) * 0.3 + (end == "std_scale"))


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each image."""
    found = model.get_image_features(inputs["pixel_values"], inputs["image_position_ids"])
    return list(found.pooler_output)


PROCESSOR = ("Gemma4ImageProcessor", {"patch_size": 4, "max_soft_tokens": 70})
KEYS = {"clip.vision.image_max_pixels": 70 * (3 * 4) ** 2}
"""Fewer rows than published models have."""
CASES = (
    Case(
        "gemma4v",
        lambda: config(standardize=True),
        spaced(MARKS),
        PROCESSOR,
        features,
        keys=KEYS,
        model="Gemma4ForConditionalGeneration",
        sizes=((40, 56), (90, 33), (23, 61)),
        prepare=prepare,
        files={"tokenizer_config.json": {"extra_special_tokens": TOKENS}},
        speaker=(
            "Gemma4Processor",
            {"feature_extractor": Gemma4AudioFeatureExtractor(), "video_processor": Gemma4VideoProcessor()},
        ),
        image_token="<|image|>",
        prompt="the cat <|image|> sat on the mat",
    ),
    Case(
        "gemma4v-clipped",
        lambda: config(use_clipped_linears=True),
        spaced(MARKS),
        PROCESSOR,
        features,
        keys=KEYS,
        model="Gemma4ForConditionalGeneration",
        sizes=((6, 300),),
        prepare=prepare,
        image_token="<|image|>",
    ),
)
