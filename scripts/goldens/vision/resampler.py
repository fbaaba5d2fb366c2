"""MiniCPM-V 2.6: SigLIP, then learned queries that attend to its rows.

transformers has no class of it. Its trunk is that of Idefics 2, which transformers has; the resampler is written down
here from its paper (arXiv 2408.01800) with torch's own attention, and so is what stands around images in a prompt.
llama.cpp's script for these files (`legacy-models`) writes the projector file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import nn
from transformers import Idefics2VisionConfig, PretrainedConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from goldens import cases
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import byte_level
from goldens.vision.case import Case

PATCH, TABLE, SIDE, QUERIES = 8, 7, 64, 5
VERSION = 3
HEAD_WIDTH = 128
MARKS = ("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<unk>")
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
VISION |= {"patch_size": PATCH, "image_size": TABLE * PATCH}
SCRIPT = "tools/mtmd/legacy-models/minicpmv-convert-image-encoder-to-gguf.py"
FIXED_POSITIONS = "resampler.pos_embed_k"
"""A table of 70 x 70 sines and cosines, which no reader uses."""


class MiniCPMVConfig(Qwen3Config):
    """The text model's configuration, with that of the vision model inside."""

    model_type = "minicpmv"
    vision_config: dict[str, Any] | None = None
    image_token_id: int | None = None
    query_num: int = QUERIES
    image_size: int = SIDE


def sines_and_cosines(width: int, down: int, across: int) -> torch.Tensor:
    """The fixed positions of a grid, first by column, then by row: float32[down * across, width]."""
    frequencies = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    places = torch.cartesian_prod(torch.arange(down), torch.arange(across)).double()
    turns = [places[:, axis : axis + 1] * frequencies for axis in (1, 0)]
    return torch.cat([wave(turn) for turn in turns for wave in (torch.sin, torch.cos)], dim=1).float()


class Resampler(nn.Module):
    """Learned queries attend once to the rows of an image."""

    def __init__(self, width: int, own: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(QUERIES, width))
        self.kv_proj = nn.Linear(own, width, bias=False)
        self.attn = nn.MultiheadAttention(width, width // HEAD_WIDTH)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(width, eps=1e-6) for _ in range(3))
        self.proj = nn.Parameter(torch.zeros(width, width))

    def forward(self, rows: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Rows of the language model, float32[queries, width], of float32[N, own]."""
        values = self.ln_kv(self.kv_proj(rows))
        keys = values + sines_and_cosines(values.shape[-1], *grid)
        found, _ = self.attn(self.ln_q(self.query), keys, values, need_weights=False)
        return self.ln_post(found) @ self.proj


class MiniCPMV(PreTrainedModel):
    """The text model, the encoder and what is between them, by their names in published checkpoints."""

    config_class = MiniCPMVConfig
    _supports_sdpa = False

    def __init__(self, config: MiniCPMVConfig) -> None:
        super().__init__(config)
        vision = Idefics2VisionConfig(**(config.vision_config or {}))
        vision._attn_implementation = "eager"
        self.llm, self.vpm = Qwen3ForCausalLM(config), Idefics2VisionTransformer(vision)
        self.resampler = Resampler(config.hidden_size, vision.hidden_size)
        self.post_init()

    def tiles(self, pixel_values: torch.Tensor, target_sizes: torch.Tensor) -> list[torch.Tensor]:
        """The rows of each tile, of pixels in squares half as wide as patches."""
        first, found = 0, []
        for down, across in target_sizes.tolist():
            half = PATCH // 2
            own = pixel_values[0, :, :, first : first + down * across * half]
            image = own.reshape(3, half, down, across, half).permute(0, 2, 1, 3, 4)
            image = image.reshape(1, 3, down * half, across * half)
            rows = self.vpm(image).last_hidden_state[0]
            found.append(self.resampler(rows, (down // 2, across // 2)))
            first += down * across * half
        return found

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor, target_sizes: torch.Tensor, **_: Any) -> Any:
        """The logits of a prompt with images."""
        embedded = self.llm.get_input_embeddings()(input_ids)
        rows = torch.cat(self.tiles(pixel_values, target_sizes))
        embedded[input_ids == self.config.image_token_id] = rows
        return self.llm(inputs_embeds=embedded, use_cache=False)


class Speaker:
    """Makes prompts with images as MiniCPM-V 2.6 has them."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self._processor, self._tokenizer = image_processor, tokenizer

    def __call__(self, text: list[str], images: list[Any], return_tensors: str) -> dict[str, torch.Tensor]:
        """The tokens of one text with its images, and what the encoder reads."""
        found = self._processor(images=images, return_tensors=return_tensors)
        rows, number = "<unk>" * QUERIES, iter(range(len(images)))

        def placed(_: re.Match[str]) -> str:
            own = next(number)
            down, across = found["grids"][own]
            slices = "\n".join(f"<slice>{rows}</slice>" * across for _ in range(down))
            return f"<image_id>{own}</image_id><image>{rows}</image>{slices}"

        told = re.sub(re.escape("(<image>./</image>)"), placed, text[0])
        ids = self._tokenizer(told, return_tensors=return_tensors)["input_ids"]
        return {"input_ids": ids, "pixel_values": found["pixel_values"], "target_sizes": found["target_sizes"]}


def config() -> PretrainedConfig:
    """A tiny MiniCPM-V."""
    text = cases.qwen3(cases.WIDE, **BYTE_IDS).to_dict()
    drop = ("model_type", "vision_config", "architectures")
    kept = {key: value for key, value in text.items() if key not in drop}
    return MiniCPMVConfig(**kept, vision_config=VISION)


def features(model: Any, inputs: Any) -> list[torch.Tensor]:
    """The rows of each tile."""
    rows: list[torch.Tensor] = model.tiles(inputs["pixel_values"].float(), inputs["target_sizes"])
    return rows


def write_projector(model: Any, path: Path, sources: Path) -> None:
    """Write the projector file as the scripts of llama.cpp do, without the positions that no reader uses."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torch.save(model.vpm.state_dict(), folder / "minicpmv.clip")
        held = {f"resampler.{name}": value for name, value in model.resampler.state_dict().items()}
        torch.save(held, folder / "minicpmv.projector")
        told = model.config.to_dict() | {"vision_config": VISION | {"model_type": "siglip_vision_model"}}
        (folder / "config.json").write_text(json.dumps(told))
        options = ["-m", str(folder), "--minicpmv_version", str(VERSION)]
        subprocess.run([sys.executable, str(sources / SCRIPT), *options], check=True, capture_output=True)
        _write_without(FIXED_POSITIONS, folder / "mmproj-model-f16.gguf", path)


def _write_without(left_out: str, source: Path, path: Path) -> None:
    """Write a GGUF file again without one of its tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "clip")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        if tensor.name != left_out:
            writer.add_tensor(tensor.name, tensor.data, tensor.data.shape, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


CASES = (
    Case(
        "resampler",
        config,
        byte_level(QWEN2, "qwen2", marks=MARKS),
        ("MiniCPMV4_6ImageProcessor", {"patch_size": PATCH // 2, "scale_resolution": SIDE, "downsample_mode": "4x"}),
        features,
        model=MiniCPMV,
        architecture="Qwen3ForCausalLM",
        sizes=((200, 230), (31, 57), (90, 150)),
        renamed=(("llm.", ""),),
        text_options=("--as-written",),
        speaker=(Speaker, {}),
        image_token="<unk>",
        prompt="the cat (<image>./</image>) sat on the mat",
        projector=write_projector,
    ),
)
