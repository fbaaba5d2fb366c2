"""Makes the golden files of `tests/golden/data/rows`: texts with embedding rows between tokens, and 3-axis positions.

Run from the repository root: `python scripts/make_row_goldens.py`. Needs torch, transformers and gguf. The text parts
of Qwen2-VL and Qwen3-VL are written as tiny random models; for Qwen 3.5 and Gemma 3 those of `tests/golden/data` are
regenerated, byte for byte. transformers is given embeddings (`inputs_embeds`), and positions int64[3, 1, T] if it takes
them. NAME.npz has model, the file's path from `tests/golden/data`; tokens int32[T], -1 at rows; rows float32[N, D];
axes int32[T, 3] (for models without several axes: [0, 3]); columns int32[C] and logits float32[T, C]; last float32[V].
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from goldens.cases import CASES, SIZES, VOCABULARY, Sizes
from goldens.conversion import convert, load_back
from goldens.weights import randomise
from make_goldens import COLUMN_STEP, DATA
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM
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


class Tied(torch.nn.Module):
    """A text model with its embedding as head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, **given: torch.Tensor) -> torch.Tensor:
        """Logits for embeddings."""
        hidden: torch.Tensor = self.model(use_cache=False, **given).last_hidden_state
        return hidden @ self.model.embed_tokens.weight.T


def qwen2vl() -> torch.nn.Module:
    """The text part of Qwen2-VL: pairs rotate by the three positions in consecutive sections."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(SECTIONS)}
    config = Qwen2VLTextConfig(**SQUARE.common(), rope_parameters=rope, tie_word_embeddings=True)
    return Tied(Qwen2VLTextModel(config))


def qwen3vl() -> torch.nn.Module:
    """The text part of Qwen3-VL: pairs rotate by the three positions in alternation."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(SECTIONS)}
    common = SQUARE.common() | {"head_dim": SQUARE.head_width}
    return Tied(Qwen3VLTextModel(Qwen3VLTextConfig(**common, rope_parameters=rope, tie_word_embeddings=True)))


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


def judge(model: Any, seed: int, *, has_axes: bool) -> dict[str, object]:
    """A text with rows and transformers' results for it."""
    random = np.random.default_rng(seed)
    is_row, axes = layout()
    tokens = random.integers(0, VOCABULARY, N_TOKENS).astype(np.int32)
    with torch.no_grad():
        embedded = model.model.embed_tokens(torch.from_numpy(tokens).long())[None]
        spread = float(embedded.std())
        rows = (spread * random.standard_normal((int(is_row.sum()), embedded.shape[-1]))).astype(np.float32)
        embedded[0, torch.from_numpy(is_row)] = torch.from_numpy(rows)
        positions = {"position_ids": torch.from_numpy(axes.T[:, None].astype(np.int64))} if has_axes else {}
        given = model(inputs_embeds=embedded, **positions)
    logits = (given if isinstance(given, torch.Tensor) else given.logits)[0].float().numpy()
    columns = np.arange(0, VOCABULARY, COLUMN_STEP, dtype=np.int32)
    return {
        "tokens": np.where(is_row, -1, tokens).astype(np.int32),
        "rows": rows,
        "axes": axes if has_axes else axes[:0],
        "columns": columns,
        "logits": logits[:, columns],
        "last": logits[-1],
    }


def own(name: str, model: Any, architecture: str, form: str, seed: int) -> None:
    """Write a model and its results."""
    model.eval()
    model.config._attn_implementation = "eager"
    randomise(model, seed, 0.0)
    path = ROWS / f"{name}-{form}.gguf"
    load_back(model, convert(model, architecture, form, name, path, 0))
    save(path, model, seed, has_axes=True)


def existing(name: str, form: str, *, has_axes: bool) -> None:
    """Results of an existing model, which is regenerated to compute them."""
    number = next(number for number, case in enumerate(CASES) if case.name == name and form in case.formats)
    case = CASES[number]
    seed = 100 * number + case.formats.index(form)
    config = case.config(case.sizes or SIZES[form])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    randomise(model, seed, case.quiet)
    path = DATA / f"{name}-{form}.gguf"
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / path.name
        load_back(model, convert(model, case.architecture, form, f"{name}-{form}", again, case.turn))
        if again.read_bytes() != path.read_bytes():
            raise RuntimeError(f"{path.name} cannot be made again as it is")
    save(path, model, seed, has_axes=has_axes)


def save(path: Path, model: Any, seed: int, *, has_axes: bool) -> None:
    """Write the results of a model to a file."""
    results = judge(model, seed, has_axes=has_axes)
    np.savez(ROWS / f"{path.stem}.npz", model=str(path.relative_to(DATA)), **results)
    print(f"{path.stem}: logits spread {np.std(results['logits']):.2f}")


def main() -> int:
    torch.set_num_threads(1)
    ROWS.mkdir(parents=True, exist_ok=True)
    own("qwen2vl", qwen2vl(), "qwen2vl", "f32", seed=9001)
    own("qwen3vl", qwen3vl(), "qwen3vl", "f32", seed=9002)
    existing("qwen35", "f32", has_axes=True)
    existing("gemma3", "f32", has_axes=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
