"""Gemma 3: SigLIP on a square, average pooling."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Gemma3Config, PretrainedConfig

from goldens import cases
from goldens.published import PIECE_IDS
from goldens.small_tokenizers import pieces
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=32, layers=7)
SIDE, ROWS = 64, 16
MARKS = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")
TOKENS = {
    "tokenizer_class": "GemmaTokenizer",
    "add_bos_token": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<unk>",
    "extra_special_tokens": {"boi_token": MARKS[2], "eoi_token": MARKS[3], "image_token": MARKS[4]},
}


def config() -> PretrainedConfig:
    """A tiny Gemma 3."""
    vision = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision |= {"image_size": SIDE, "patch_size": 8, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": False}
    return Gemma3Config(
        text_config=cases.gemma3(TEXT, **PIECE_IDS),
        vision_config=vision,
        mm_tokens_per_image=ROWS,
        boi_token_index=6,
        eoi_token_index=7,
        image_token_index=8,
    )


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each image."""
    return list(model.get_image_features(inputs["pixel_values"]).pooler_output)


CASES = (
    Case(
        "gemma3",
        config,
        pieces(prefix=False, marks=MARKS),
        ("Gemma3ImageProcessor", {"size": {"height": SIDE, "width": SIDE}}),
        features,
        model="Gemma3ForConditionalGeneration",
        renamed=(("vision_tower.", "vision_tower.vision_model."),),
        files={"processor_config.json": {"image_seq_length": ROWS}, "tokenizer_config.json": TOKENS},
        speaker=("Gemma3Processor", {"image_seq_length": ROWS}),
        image_token=MARKS[-1],
        prompt=f"the cat {MARKS[2]} sat on the mat",
    ),
)
