"""llama.cpp gives the logits of transformers on float32 files of newer families: their keys and names are its own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.golden.goldens import Golden

NAMES = (
    "granite-f32",
    "granitemoe-f32",
    "smollm3-f32",
    "olmo-f32",
    "olmo2-f32",
    "olmo3-f32",
    "command-r-f32",
    "cohere2-f32",
    "phi2-f32",
    "gptneox-f32",
    "gptneox-serial-f32",
    "glm4moe-f32",
    "openelm-f32",
    "minicpm3-f32",
    "afmoe-f32",
    "gemma-f32",
    "arcee-f32",
    "ernie4_5-f32",
    "seed_oss-f32",
    "exaone4-f32",
    "glm4-f32",
    "stablelm-f32",
    "stablelm-parallel-f32",
    "nemotron-f32",
    "starcoder2-f32",
    "hunyuan-moe-f32",
    "bailingmoe2-f32",
    "deepseek2-f32",
    "gemma4-f32",
    "gemma4-small-f32",
    "gemma4-moe-f32",
    "mistral4-f32",
)
HALVES = 0.005
"""Distance that float16 keys and values make."""


@pytest.mark.peer
@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_agrees_with_the_goldens(name: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    golden = Golden.read(name)
    model = llama_cpp.Llama(
        str(golden.model), n_ctx=golden.n_context, n_threads=1, n_gpu_layers=0, logits_all=True, verbose=False
    )
    try:
        model.eval(golden.tokens.tolist())
        assert golden.error(np.array(model.scores[: len(golden.tokens)])) < HALVES
    finally:
        model.close()
