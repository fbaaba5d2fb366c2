"""Kimi-VL. transformers has no class of it, but that of Kimi K2.5, whose encoder is the same for images."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Kimi_K25Config, PretrainedConfig
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=8, ffn_width=32, layers=1)
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
LATENT |= {"first_k_dense_replace": 1, "num_key_value_heads": 4}
PATCH = 8
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
VISION |= {"patch_size": PATCH, "pos_emb_height": 6, "pos_emb_width": 6}


def config() -> PretrainedConfig:
    """A tiny Kimi K2.5, of which only the encoder is of use here."""
    text = TEXT.common() | BYTE_IDS | LATENT | {"model_type": "deepseek_v3"}
    return Kimi_K25Config(text_config=text, vision_config=VISION, projection_hidden_size=VISION["hidden_size"])


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of the image."""
    return list(model.model.get_image_features(inputs["pixel_values"].float(), inputs["image_grid_thw"]).pooler_output)


PATCHES = "vision_tower.encoder.patch_embed."
RENAMED = {f"{PATCHES}pos_emb.position_embeddings": "vision_tower.patch_embed.pos_emb.weight"}
RENAMED |= {PATCHES: "vision_tower.patch_embed.", "model.mm_projector.pre_norm": "multi_modal_projector.pre_norm"}
RENAMED |= {f"mm_projector.proj.{old}": f"multi_modal_projector.linear_{new}" for old, new in ((0, 1), (2, 2))}
CASES = (
    Case(
        "kimivl",
        config,
        byte_level(QWEN2, "qwen2", marks=("<|media_start|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")),
        ("Kimi_K25ImageProcessor", {"patch_size": PATCH, "max_patches": 4096}),
        features,
        sizes=((90, 150), (31, 17), (200, 104), (6, 40)),
        model="Kimi_K25ForConditionalGeneration",
        architecture="KimiVLForConditionalGeneration",
        renamed=tuple(RENAMED.items()),
        options=("--as-written",),
        has_text=False,
    ),
)
