"""Makes the golden files of `tests/golden/data/rows`: texts with embedding rows between tokens, and 3-axis positions.

Run from the repository root: `python scripts/make_row_goldens.py [NAME …]`. Needs torch, transformers and gguf. The
text parts of Qwen2-VL and Qwen3-VL, with and without parts of rows for later layers (deepstack), are written as tiny
random models, as is that of Gemma 4; for Qwen 3.5 and Gemma 3 those of `tests/golden/data` are regenerated, byte for
byte. transformers is given embeddings (`inputs_embeds`), positions int64[3, 1, T] if it takes them, and for rows that
see each other the masks that it makes of their images. NAME.npz has model, the file's path from `tests/golden/data`;
tokens int32[T], -1 at rows; rows float32[N, D] or, with n further parts, [N, (1 + n) * D]; axes int32[T, 3] (for models
without several axes: [0, 3]); images int32[I, 2], the first row of each image that sees itself and the token after it;
columns int32[C] and logits float32[T, C]; last float32[V].
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from goldens.cases import CASES, SIZES, VOCABULARY, Sizes
from goldens.conversion import convert, load_back
from goldens.gemma4 import dense
from goldens.weights import randomise
from make_goldens import COLUMN_STEP, DATA, seed_of
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

ROWS = DATA / "rows"
SECTIONS = [4, 2, 2]
"""Rotary pairs of heads of width 16."""
IMAGES = {10: (1, 4, 6), 45: (2, 3, 2)}
"""Where images begin in the text of N_TOKENS tokens, and their frames, height and width in rows."""
N_TOKENS = 80
SQUARE = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48)
FOUR = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48, layers=4)
N_DEEP = 2
"""Parts of rows for later layers."""
MASKS = {"gemma3_text": modeling_gemma3, "gemma4_text": modeling_gemma4}
"""Where transformers makes the masks of models whose rows see each other."""


class Tied(torch.nn.Module):
    """A text model with its embedding as head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, **given: Any) -> torch.Tensor:
        """Logits for embeddings."""
        hidden: torch.Tensor = self.model(use_cache=False, **given).last_hidden_state
        return hidden @ self.model.embed_tokens.weight.T


def qwen2vl() -> torch.nn.Module:
    """The text part of Qwen2-VL: pairs rotate by the three positions in consecutive sections."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(SECTIONS)}
    config = Qwen2VLTextConfig(**SQUARE.common(), rope_parameters=rope, tie_word_embeddings=True)
    return Tied(Qwen2VLTextModel(config))


def qwen3vl(sizes: Sizes = SQUARE, n_deep: int = 0) -> torch.nn.Module:
    """The text part of Qwen3-VL: pairs rotate by the three positions in alternation. `n_deep`: parts for layers."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(SECTIONS)}
    common = sizes.common() | {"head_dim": sizes.head_width}
    config = Qwen3VLTextConfig(**common, rope_parameters=rope, tie_word_embeddings=True)
    config.n_deepstack_layers = n_deep
    return Tied(Qwen3VLTextModel(config))


def gemma4_dense() -> torch.nn.Module:
    """The text part of Gemma 4 without embeddings per layer."""
    config = dense(FOUR, use_bidirectional_attention="vision")
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return model


def layout() -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """Which tokens are rows, bool[T], and the positions of all tokens, int32[T, 3], counted as in Qwen2-VL."""
    is_row, axes = np.zeros(N_TOKENS, bool), np.zeros((N_TOKENS, 3), np.int32)
    token = following = 0
    while token < N_TOKENS:
        grid = IMAGES.get(token)
        if grid is None:
            axes[token], token, following = following, token + 1, following + 1
            continue
        n_rows = int(np.prod(grid))
        is_row[token : token + n_rows] = True
        axes[token : token + n_rows] = following + np.indices(grid).reshape(3, -1).T
        token, following = token + n_rows, following + max(grid)
    return is_row, axes


def masks(config: Any, embedded: torch.Tensor) -> dict[str, torch.Tensor]:
    """transformers' masks for rows that see the others of their image."""
    module, is_row = MASKS[config.model_type], torch.from_numpy(layout()[0])[None]
    given = {"config": config, "inputs_embeds": embedded, "attention_mask": None, "cache": None}
    positions, blocks = torch.arange(N_TOKENS)[None], module.get_block_sequence_ids_for_mask(is_row.long(), "cpu")
    found: dict[str, torch.Tensor] = module.create_masks_for_vision_model(
        **given, position_ids=positions, block_sequence_ids=blocks
    )
    return found


def judge(model: Any, seed: int, *, has_axes: bool, whole: bool = False) -> dict[str, object]:
    """A text with rows and transformers' results for it. `whole`: rows see the others of their image."""
    random = np.random.default_rng(seed)
    is_row, axes = layout()
    tokens = random.integers(0, VOCABULARY, N_TOKENS).astype(np.int32)
    with torch.no_grad():
        embedded = model.model.embed_tokens(torch.from_numpy(tokens).long())[None]
        spread = float(embedded.std())
        n_deep, width = getattr(model.config, "n_deepstack_layers", 0), embedded.shape[-1]
        rows = (spread * random.standard_normal((int(is_row.sum()), (1 + n_deep) * width))).astype(np.float32)
        first, *others = torch.from_numpy(rows).split(width, dim=1)
        embedded[0, torch.from_numpy(is_row)] = first
        further: dict[str, object] = {}
        if has_axes:
            further["position_ids"] = torch.from_numpy(axes.T[:, None].astype(np.int64))
        if others:
            further |= {"visual_pos_masks": torch.from_numpy(is_row)[None], "deepstack_visual_embeds": others}
        if whole:
            further["attention_mask"] = masks(model.config, embedded)
        given = model(inputs_embeds=embedded, **further)
    logits = (given if isinstance(given, torch.Tensor) else given.logits)[0].float().numpy()
    columns = np.arange(0, VOCABULARY, COLUMN_STEP, dtype=np.int32)
    return {
        "tokens": np.where(is_row, -1, tokens).astype(np.int32),
        "rows": rows,
        "axes": axes if has_axes else axes[:0],
        "images": np.array([(first, first + np.prod(grid)) for first, grid in IMAGES.items()][: 2 * whole], np.int32),
        "columns": columns,
        "logits": logits[:, columns],
        "last": logits[-1],
    }


def own(name: str, model: Any, architecture: str, form: str, seed: int, *, whole: bool = False) -> None:
    """Write a model and its results."""
    model.eval()
    model.config._attn_implementation = "eager"
    randomise(model, seed, 0.0)
    path = ROWS / f"{name}-{form}.gguf"
    load_back(model, convert(model, architecture, form, name, path, 0))
    save(path, model, seed, has_axes=not whole, whole=whole)


def existing(name: str, form: str, *, has_axes: bool, whole: bool = False) -> None:
    """Results of an existing model, which is regenerated to compute them."""
    case = next(case for case in CASES if case.name == name and form in case.formats)
    seed = seed_of(case, form)
    config = case.config(case.sizes or SIZES[form])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    randomise(model, seed, case.quiet)
    path = DATA / f"{name}-{form}.gguf"
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / path.name
        load_back(model, convert(model, case.architecture, form, f"{name}-{form}", again, case.turn))
        if again.read_bytes() != path.read_bytes():
            raise RuntimeError(f"{path.name} cannot be made again as it is")
    save(path, model, seed, has_axes=has_axes, whole=whole)


def save(path: Path, model: Any, seed: int, *, has_axes: bool, whole: bool = False) -> None:
    """Write the results of a model to a file."""
    results, name = judge(model, seed, has_axes=has_axes, whole=whole), f"{path.stem}-whole" if whole else path.stem
    np.savez(ROWS / f"{name}.npz", model=str(path.relative_to(DATA)), **results)
    print(f"{name}: logits spread {np.std(results['logits']):.2f}")


GOLDENS: dict[str, Callable[[], None]] = {
    "qwen2vl": lambda: own("qwen2vl", qwen2vl(), "qwen2vl", "f32", seed=9001),
    "qwen3vl": lambda: own("qwen3vl", qwen3vl(), "qwen3vl", "f32", seed=9002),
    "qwen3vl-deep": lambda: own("qwen3vl-deep", qwen3vl(FOUR, N_DEEP), "qwen3vl", "f32", seed=9003),
    "qwen35": lambda: existing("qwen35", "f32", has_axes=True),
    "gemma3": lambda: existing("gemma3", "f32", has_axes=False),
    "gemma3-whole": lambda: existing("gemma3", "f32", has_axes=False, whole=True),
    "gemma4-whole": lambda: own("gemma4", gemma4_dense(), "gemma4", "f32", seed=9004, whole=True),
}


def main(chosen: list[str]) -> int:
    torch.set_num_threads(1)
    ROWS.mkdir(parents=True, exist_ok=True)
    for name, make in GOLDENS.items():
        if not chosen or name in chosen:
            make()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
