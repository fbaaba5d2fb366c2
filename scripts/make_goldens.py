"""Makes the golden files of `tests/golden/data`: tiny random models as GGUF, and transformers' logits for them.

Run from the repository root: `python scripts/make_goldens.py [CASE | CASE-FORMAT …]`. Needs torch, transformers, gguf
and (for the formats that only ggml can write) llama-cpp-python; the tests need none of them. The weights in a file are
read back, dequantised by the gguf package, and loaded into transformers, which runs in float32 with eager attention: so
the logits are those of exactly the numbers in the file.

For each file NAME.gguf there are one or more NAME[@RUN].npz with: tokens int32[T]; n_context, the context to open the
model with; columns int32[C] and logits float32[T, C], every eighth token's logit at every position; last float32[V],
all logits of the last position; frequencies and local_frequencies, float32[pairs], and magnitude: the rotary tables.
approx/NAME@THRESHOLD.npz has the same for a model whose activations below a threshold (float64) are set to zero, plus
zeros, the share of activations set to zero.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from goldens.cases import CASES, N_TOKENS, SIZES, VOCABULARY, Case
from goldens.conversion import convert, load_back
from goldens.further_cases import FURTHER_CASES
from goldens.further_mixtures import FURTHER_MIXTURES
from goldens.given_names import check_names
from goldens.mixture_cases import MIXTURE_CASES
from goldens.weights import randomise
from transformers import AutoModelForCausalLM

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data"
COLUMN_STEP = 8
SEEDS = Path(__file__).resolve().parent / "goldens" / "seeds.toml"


def seed_of(case: Case, form: str) -> int:
    """The seed of a case's weights and tokens in one of its formats."""
    seeds: dict[str, int] = tomllib.loads(SEEDS.read_text())
    name = f"{case.name}-{case.formats[0]}"
    if name not in seeds:
        free = 100 * (1 + max(seeds.values()) // 100)
        raise RuntimeError(f"{name} has no seed: give it one in {SEEDS.name}, such as {free}")
    return seeds[name] + case.formats.index(form)


def rotary_tables(model: Any) -> dict[str, object]:
    """Frequencies and magnitude that transformers' rotary embedding used last."""
    if model.config.model_type == "opt":
        return {}
    base = getattr(model, "model", model.base_model)  # a Llama 4 takes itself for its base
    rope = getattr(base, "rotary_emb", None) or base.pos_emb
    if not isinstance(rope.rope_type, dict):
        return {"frequencies": rope.inv_freq.numpy(), "magnitude": rope.attention_scaling}
    tables = {"local_frequencies": rope.sliding_attention_inv_freq.numpy()}
    if "full_attention" in rope.rope_type:
        tables["frequencies"] = rope.full_attention_inv_freq.numpy()
        tables["magnitude"] = rope.full_attention_attention_scaling
    return tables


def judge(model: Any, tokens: torch.Tensor) -> dict[str, object]:
    """transformers' results: logits of every eighth token at each position, all of the last position, rotary tables."""
    with torch.no_grad():
        logits = model(tokens[None], use_cache=False).logits[0].float().numpy()
    columns = np.arange(0, VOCABULARY, COLUMN_STEP, dtype=np.int32)
    spread = float(logits.std())
    if not 0.5 < spread < 20.0:
        raise RuntimeError(f"logits spread by {spread:.2f}: the weights are badly scaled")
    return {"columns": columns, "logits": logits[:, columns], "last": logits[-1], **rotary_tables(model)}


@contextmanager
def thresholded(model: Any, threshold: float) -> Iterator[list[float]]:
    """Make activations of a magnitude below a threshold zero in the model; yields their shares, layer by layer."""
    shares: list[float] = []

    def cut(_module: torch.nn.Module, _inputs: object, activated: torch.Tensor) -> torch.Tensor:
        small = activated.abs() < threshold
        shares.append(float(small.float().mean()))
        return torch.where(small, torch.zeros_like(activated), activated)

    hooks = [layer.mlp.act_fn.register_forward_hook(cut) for layer in model.model.layers]
    try:
        yield shares
    finally:
        for hook in hooks:
            hook.remove()


def make_approximate(model: Any, name: str, threshold: float, seed: int) -> None:
    """Write the results of a model with a threshold."""
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, N_TOKENS).astype(np.int32)
    with thresholded(model, threshold) as shares:
        results = judge(model, torch.from_numpy(tokens).long())
    given = {"tokens": tokens, "n_context": np.int32(256), "threshold": threshold, "zeros": np.mean(shares)}
    (DATA / "approx").mkdir(exist_ok=True)
    np.savez(DATA / "approx" / f"{name}@{threshold:g}.npz", **given, **results)


def make(case: Case, form: str, seed: int) -> None:
    """Write one model file and the results of its runs."""
    name = f"{case.name}-{form}"
    config = case.config(case.sizes or SIZES[form])
    make_model = case.model or partial(
        AutoModelForCausalLM.from_config, attn_implementation="eager", dtype=torch.float32
    )
    model = make_model(config).eval()
    randomise(model, seed, case.quiet)
    path = DATA / f"{name}.gguf"
    load_back(model, convert(model, case.architecture, form, name, path, case.turn))
    for run, n_tokens, n_context in case.runs:
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, n_tokens).astype(np.int32)
        results = judge(model, torch.from_numpy(tokens).long())
        suffix = f"@{run}" if run else ""
        np.savez(DATA / f"{name}{suffix}.npz", tokens=tokens, n_context=np.int32(n_context), **results)
    for threshold in case.thresholds:
        make_approximate(model, name, threshold, seed)
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, logits spread {np.std(results['logits']):.2f}")


def main(chosen: list[str]) -> int:
    torch.set_num_threads(1)
    DATA.mkdir(parents=True, exist_ok=True)
    cases = CASES + FURTHER_CASES + MIXTURE_CASES + FURTHER_MIXTURES
    files = (f"{case.name}-{form}" for case in cases for form in case.formats)
    check_names(chosen, [*(case.name for case in cases), *files])
    for case in cases:
        for form in case.formats:
            if not chosen or case.name in chosen or f"{case.name}-{form}" in chosen:
                make(case, form, seed_of(case, form))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
