"""LLaVA 1.5 and 1.6: an inner layer of CLIP, two products.

llama.cpp's converter writes no projector files of these; they are written here as the script that published ones came
from wrote them (`legacy-models/convert_image_encoder_to_gguf.py`), which no longer runs: with one layer less than CLIP
has, `ffn_down` before `ffn_up`, kernels as float16, and CLIP's own projection width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlavaConfig, PretrainedConfig

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import LLAMA3, byte_level
from goldens.vision.case import Case

TEXT = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=8, ffn_width=32)
SIDE, PATCH = 32, 8
CANVASES = [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_down",
    "mlp.fc2": "ffn_up",
}


def config() -> PretrainedConfig:
    """A tiny LLaVA."""
    vision = {"model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4}
    vision |= {"num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH, "hidden_act": "quick_gelu"}
    text = cases.llama(TEXT, **BYTE_IDS)
    return LlavaConfig(vision_config=vision, text_config=text, image_token_index=266 + 3, image_seq_length=16)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each image, or of each tile of one."""
    pixels = inputs["pixel_values"]
    return list(model.get_image_features(pixels.reshape(-1, *pixels.shape[-3:])).pooler_output)


def write_projector(model: Any, path: Path, canvases: list[list[int]]) -> None:
    """Write a projector file as of LLaVA's time."""
    vision = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in (("has_text_encoder", False), ("has_vision_encoder", True), ("has_llava_projector", True)):
        writer.add_bool(f"clip.{key}", value)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", False)
    sizes = {"image_size": SIDE, "patch_size": PATCH, "embedding_length": vision.hidden_size}
    sizes |= {"feed_forward_length": vision.intermediate_size, "projection_dim": vision.projection_dim}
    sizes |= {"attention.head_count": vision.num_attention_heads, "block_count": vision.num_hidden_layers - 1}
    for key, size in sizes.items():
        writer.add_uint32(f"clip.vision.{key}", size)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision.layer_norm_eps)
    writer.add_array("clip.vision.image_mean", [0.48145466, 0.4578275, 0.40821073])
    writer.add_array("clip.vision.image_std", [0.26862954, 0.26130258, 0.27577711])
    if canvases:
        writer.add_array("clip.vision.image_grid_pinpoints", [side for canvas in canvases for side in canvas])
        writer.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
        writer.add_tensor("model.image_newline", np.zeros(model.config.text_config.hidden_size, np.float32))
    for name, tensor in model.state_dict().items():
        new = _renamed(name.removeprefix("model."), vision.num_hidden_layers - 1)
        if new:
            held = tensor.float().numpy()
            writer.add_tensor(new, held.astype(np.float16) if held.ndim == 4 else held)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(name: str, n_layers: int) -> str:
    """The name of a tensor in projector files; "" for what they have not."""
    if name.startswith("multi_modal_projector.linear_"):
        return name.replace("multi_modal_projector.linear_1", "mm.0").replace("multi_modal_projector.linear_2", "mm.2")
    rest = name.removeprefix("vision_tower.").removeprefix("vision_model.")
    single = {"embeddings.class_embedding": "v.class_embd", "embeddings.patch_embedding.weight": "v.patch_embd.weight"}
    single["embeddings.position_embedding.weight"] = "v.position_embd.weight"
    if rest in single:
        return single[rest]
    if rest.startswith("pre_layrnorm."):
        return rest.replace("pre_layrnorm", "v.pre_ln")
    if not rest.startswith("encoder.layers."):
        return ""
    number, part = rest.removeprefix("encoder.layers.").split(".", 1)
    part, end = part.rsplit(".", 1)
    return f"v.blk.{number}.{NAMES[part]}.{end}" if int(number) < n_layers else ""


PROCESSOR = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
SPEAKER = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
TOKENIZER = byte_level(LLAMA3, "smollm", marks=("<image>",))
CASES = (
    Case(
        "llava",
        config,
        TOKENIZER,
        ("LlavaImageProcessor", PROCESSOR | {"do_pad": True}),
        features,
        model="LlavaForConditionalGeneration",
        projector=lambda model, path, _: write_projector(model, path, []),
        speaker=("LlavaProcessor", SPEAKER),
    ),
    Case(
        "llava-tiles",
        config,
        TOKENIZER,
        ("LlavaNextImageProcessor", PROCESSOR | {"image_grid_pinpoints": CANVASES}),
        features,
        model="LlavaForConditionalGeneration",
        projector=lambda model, path, _: write_projector(model, path, CANVASES),
        sizes=((40, 56), (23, 61), (90, 33), (20, 20)),
    ),
)
