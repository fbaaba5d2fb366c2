"""MiniCPM-V 4.6: SigLIP with a merge between its layers and one at the end, or with that at the end alone."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MiniCPMV4_6Config, MiniCPMV4_6VideoProcessor, PretrainedConfig
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as QWEN35

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

PATCH = 8
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
VISION |= {"patch_size": PATCH, "image_size": 7 * PATCH, "hidden_act": "gelu_pytorch_tanh"}
NAMES = ("image_start", "image_end", "slice_start", "slice_end", "image_id_start", "image_id_end", "image", "video")
MARKS = ("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<|image_pad|>", "<|video_pad|>")
TOKENS = {f"{name}_token": mark for name, mark in zip(NAMES, MARKS, strict=True)}


def config(mode: str = "16x") -> PretrainedConfig:
    """A tiny MiniCPM-V 4.6."""
    return MiniCPMV4_6Config(
        text_config=cases.qwen35(cases.DELTA, **BYTE_IDS).to_dict(),
        vision_config=VISION,
        insert_layer_id=1,
        downsample_mode=mode,
        image_token_id=268 + 6,
    )


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each tile."""
    pixels, sizes = (torch.as_tensor(inputs[name]) for name in ("pixel_values", "target_sizes"))
    return list(model.get_image_features(pixels.float(), sizes).pooler_output)


def case(name: str, mode: str, sizes: tuple[tuple[int, int], ...]) -> Case:
    """A case with tiles of 64 x 64 pixels; the same model reads the rows of both modes."""
    options = {"patch_size": PATCH, "scale_resolution": 64, "downsample_mode": mode}
    is_usual = mode == "16x"
    return Case(
        name,
        lambda: config(mode),
        byte_level(QWEN35, "qwen35", marks=MARKS),
        ("MiniCPMV4_6ImageProcessor", options),
        features,
        sizes=sizes,
        model="MiniCPMV4_6ForConditionalGeneration",
        text_options=("--no-mtp",),
        files={"tokenizer_config.json": {"extra_special_tokens": TOKENS}},
        speaker=("MiniCPMV4_6Processor", {"video_processor": MiniCPMV4_6VideoProcessor()}) if is_usual else None,
        image_token="<|image_pad|>",
        prompt="the cat <|image_pad|> sat on the mat",
        has_text=is_usual,
    )


CASES = (
    case("minicpmv4_6", "16x", ((200, 230), (31, 57), (90, 150))),
    case("minicpmv4_6-4x", "4x", ((90, 150), (31, 57))),
)
