"""dots.ocr. transformers has no class of it, but that of its successor's encoder, which is the same with head norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Dots3NoteVisionConfig, PretrainedConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2VLVideoProcessor
from transformers.models.dots3_note.modeling_dots3_note import Dots3NoteVisionModel
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=8, ffn_width=32)
PATCH, PER_ROW = 8, 16 * 16
LEAST, MOST = 4 * PER_ROW, 60 * PER_ROW
MARKS = ("<|img|>", "<|endofimg|>", "<|imgpad|>", "<|video_pad|>")
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
VISION |= {"patch_size": PATCH, "spatial_merge_size": 2, "rms_norm_eps": 1e-5}
RENAMED = {"patch_embed.": "patch_embed.patchifier.", "adapter.": "merger."}
RENAMED |= {f"blocks.{number}.norm_{norm}": f"blocks.{number}.norm{norm}" for number in range(3) for norm in (1, 2)}
"""Beginnings of names of tensors in checkpoints of the successor, and in those of dots.ocr."""


class DotsOCRConfig(Qwen2Config):
    """The text model's configuration, with that of the vision model inside."""

    model_type = "dots_ocr"
    vision_config: dict[str, Any] | None = None
    image_token_id: int | None = None


class DotsOCRForCausalLM(Qwen2ForCausalLM):
    """The text model with the encoder beside it."""

    config_class = DotsOCRConfig

    def __init__(self, config: DotsOCRConfig) -> None:
        super().__init__(config)
        own = config.vision_config or {}
        sizes = {"adapter_in_dim": own["hidden_size"], "adapter_out_dim": config.hidden_size}
        dense = {"mlp_layer_types": ["dense"] * own["num_hidden_layers"]}
        vision = Dots3NoteVisionConfig(**own, **sizes, **dense)
        vision._attn_implementation = "eager"
        self.vision_tower = Dots3NoteVisionModel(vision)
        for block in self.vision_tower.blocks:
            block.attn.q_norm, block.attn.k_norm = nn.Identity(), nn.Identity()
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor, **_: Any
    ) -> Any:
        """The logits of a prompt with images."""
        embedded = self.get_input_embeddings()(input_ids)
        rows = self.vision_tower(pixel_values, image_grid_thw).pooler_output
        embedded[input_ids == self.config.image_token_id] = rows
        return super().forward(inputs_embeds=embedded, use_cache=False)


def config() -> PretrainedConfig:
    """A tiny dots.ocr."""
    return DotsOCRConfig(**TEXT.common() | BYTE_IDS, vision_config=VISION, image_token_id=270)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of the image."""
    return [model.vision_tower(inputs["pixel_values"].float(), inputs["image_grid_thw"]).pooler_output]


OPTIONS = {"patch_size": PATCH, "temporal_patch_size": 1, "size": {"shortest_edge": LEAST, "longest_edge": MOST}}
CASES = (
    Case(
        "dots_ocr",
        config,
        byte_level(QWEN2, "qwen2", marks=MARKS),
        ("Qwen2VLImageProcessor", OPTIONS),
        features,
        sizes=((90, 150), (31, 17), (200, 104)),
        model=DotsOCRForCausalLM,
        architecture="DotsOCRForCausalLM",
        renamed=tuple((f"vision_tower.{old}", f"vision_tower.{new}") for old, new in RENAMED.items()),
        files={
            "preprocessor_config.json": {"min_pixels": LEAST, "max_pixels": MOST},
            "tokenizer_config.json": {"extra_special_tokens": {"image_token": MARKS[2], "video_token": MARKS[3]}},
        },
        options=("--as-written",),
        speaker=("Qwen2VLProcessor", {"video_processor": Qwen2VLVideoProcessor()}),
        image_token=MARKS[2],
        prompt="the cat <|img|><|imgpad|><|endofimg|> sat on the mat",
    ),
)
