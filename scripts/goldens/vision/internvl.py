"""InternVL 3: a vision transformer with layer scale on tiles, pixel shuffle; with RMSNorm as in its largest encoder."""

from __future__ import annotations

from typing import Any

import torch
from transformers import InternVLConfig, InternVLVideoProcessor, PretrainedConfig
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=8, ffn_width=32)
SIDE = 32
MARKS = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
TOKENS = dict(zip(("start_image_token", "end_image_token", "context_image_token", "video_token"), MARKS, strict=True))


def config(**changes: object) -> PretrainedConfig:
    """A tiny InternVL."""
    vision = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    vision |= {"image_size": [SIDE, SIDE], "patch_size": [8, 8], "architectures": ["InternVisionModel"]}
    vision |= {"attention_bias": True, "layer_scale_init_value": 0.7}
    text = cases.qwen2(TEXT, **BYTE_IDS).to_dict() | {"architectures": ["Qwen2ForCausalLM"]}
    return InternVLConfig(
        vision_config=vision | changes,
        text_config=text,
        image_token_id=268 + 2,
        image_seq_length=4,
        min_dynamic_patch=1,
        max_dynamic_patch=6,
    )


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each tile."""
    return list(model.get_image_features(inputs["pixel_values"]).pooler_output)


RENAMED = tuple((f"{part}.", f"model.{part}.") for part in ("vision_tower", "multi_modal_projector"))
OPTIONS = {"size": {"height": SIDE, "width": SIDE}, "crop_to_patches": True, "max_patches": 6}
CASES = (
    Case(
        "internvl",
        config,
        byte_level(QWEN2, "qwen2", marks=MARKS),
        ("GotOcr2ImageProcessor", OPTIONS),
        features,
        model="InternVLForConditionalGeneration",
        image_token="<IMG_CONTEXT>",
        renamed=RENAMED,
        sizes=((40, 56), (23, 61), (90, 33), (30, 31)),
        files={"tokenizer_config.json": {"extra_special_tokens": TOKENS}},
        speaker=("InternVLProcessor", {"image_seq_length": 4, "video_processor": InternVLVideoProcessor()}),
        prompt="the cat <IMG_CONTEXT> sat on the mat",
    ),
    Case(
        "internvl-rms",
        lambda: config(norm_type="rms_norm", use_qk_norm=True, attention_bias=False),
        byte_level(QWEN2, "qwen2", marks=MARKS),
        ("GotOcr2ImageProcessor", OPTIONS),
        features,
        model="InternVLForConditionalGeneration",
        image_token="<IMG_CONTEXT>",
        renamed=RENAMED,
        sizes=((40, 56),),
    ),
)
