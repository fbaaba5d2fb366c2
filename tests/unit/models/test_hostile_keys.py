"""Keys of one family alone, with values that cannot be: a message that names the key or the tensor, at once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import BadGGUF, EdgeInferError, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.router import Router
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import spec_of
from tests.golden.goldens import DATA
from tests.unit.models.headers import keyed

PEAK_BYTES = 4_000_000
HUGE = (2**31 - 1, 2**63, -1)
NO_FACTORS = (-1.0, float("nan"), float("inf"), 1e38)


def spec_with(folder: Path, golden: str, **changes: object) -> ModelSpec:
    """The spec of a golden model some of whose keys have other values; None leaves a key out."""
    with GGUFFile.open(DATA / f"{golden}.gguf") as file:
        held = {key: file.metadata[key] for key in file.metadata if not key.startswith("tokenizer.")}
        values: dict[str, object] = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in held.items()}
        architecture = str(values.pop("general.architecture"))
        values |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}
        tracemalloc.start()
        try:
            return spec_of(keyed(folder, architecture, values), file.tensors)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < PEAK_BYTES


COUNTS = [
    ("lfm2-q8_0", "shortconv__l_cache", (0, 1, 65, *HUGE, None, "3", 3.0, [3])),
    ("lfm2-q8_0", "attention__head_count_kv", (0, [0, 1], [0] * 4, [0, -1, 0, 0], [0, 3, 0, 0], ["0", "1", "0", "0"])),
    ("qwen35-q8_0", "ssm__state_size", (0, 1, *HUGE, None, [16])),
    ("qwen35-q8_0", "ssm__inner_size", (0, 1, *HUGE, None)),
    ("qwen35-q8_0", "full_attention_interval", (0, 1, 3, *HUGE, [4])),
    ("qwen35-q8_0", "attention__recurrent_layers", (1, "1", [True], [False] * 4, [True] * 4, ["a"] * 4)),
    ("qwen35-q8_0", "nextn_predict_layers", (4, 5, *HUGE, [1])),
    ("converted/granitehybrid-bf16", "ssm__state_size", (0, 1, *HUGE, None, [16])),
    ("converted/granitehybrid-bf16", "ssm__inner_size", (0, 1, 66, *HUGE, None)),
    ("converted/granitehybrid-bf16", "ssm__time_step_rank", (0, 3, *HUGE, None)),
    ("converted/falcon-h1-bf16", "ssm__group_count", (0, 3, 1, *HUGE, None)),
    ("converted/falcon-h1-bf16", "ssm__conv_kernel", (0, 1, 65, *HUGE, None)),
    ("converted/mamba2-bf16", "ssm__inner_size", (0, 1, 66, *HUGE, None)),
    ("converted/mamba2-bf16", "ssm__group_count", (0, 3, 1, *HUGE, None)),
    ("converted/mamba-bf16", "ssm__inner_size", (0, 1, *HUGE, None)),
    ("converted/mamba-bf16", "ssm__state_size", (0, 1, *HUGE, None, [16])),
    ("converted/mamba-bf16", "ssm__time_step_rank", (0, 1, *HUGE, None)),
    ("converted/jamba-bf16", "attention__head_count_kv", ([0] * 3, [1] * 3, [0, 3, 0])),
    ("converted/kimi-linear-bf16", "kda__head_dim", (0, 8, *HUGE, None)),
    ("gpt-oss-q8_0", "attention__key_length", (0, 1, *HUGE)),
    ("gpt-oss-q8_0", "attention__value_length", (0, 1, *HUGE)),
    ("gpt-oss-q8_0", "attention__sliding_window", (2**63, -1, "12", 12.0, [12], [12.5, 1.0], [-1, 0])),
    ("glm4moe-q8_0", "expert_shared_count", (0, 2, *HUGE)),
    ("glm4moe-q8_0", "leading_dense_block_count", (0, 2, *HUGE)),
    ("minicpm3-q8_0", "attention__q_lora_rank", (0, 8, *HUGE, None)),
    ("minicpm3-q8_0", "attention__kv_lora_rank", (0, 8, *HUGE, None)),
    ("minicpm3-q8_0", "rope__dimension_count", (0, 2, 15, 16, *HUGE)),
    ("deepseek2-q8_0", "attention__kv_lora_rank", (0, 8, *HUGE, None)),
    ("deepseek2-q8_0", "attention__key_length_mla", (0, 16, 17, *HUGE)),
    ("deepseek2-q8_0", "attention__value_length_mla", (0, 8, *HUGE)),
    ("openelm-q8_0", "feed_forward_length", ([1], [], [0, 0, 0], [-1, 4, 4], [2**31 - 1] * 3)),
    ("converted/bert-bf16", "context_length", (0, 1, *HUGE)),
    ("converted/gemma-embedding-bf16", "attention__sliding_window", (2**63, -1, "12")),
]
FACTORS = [
    ("granite-q8_0", "embedding_scale"),
    ("granite-q8_0", "residual_scale"),
    ("granite-q8_0", "attention__scale"),
    ("granite-q8_0", "logit_scale"),
    ("cohere2-q8_0", "logit_scale"),
    ("glm4moe-q8_0", "expert_weights_scale"),
    ("gpt-oss-q8_0", "rope__scaling__factor"),
    ("gpt-oss-q8_0", "rope__scaling__yarn_beta_fast"),
]


@pytest.mark.parametrize(
    ("golden", "key", "value"), [(golden, key, value) for golden, key, values in COUNTS for value in values]
)
def test_a_size_that_cannot_be_is_refused(tmp_path: Path, golden: str, key: str, value: object) -> None:
    with pytest.raises((BadGGUF, UnsupportedModel)) as caught:
        spec_with(tmp_path, golden, **{key: value})
    message = str(caught.value)
    family = Path(golden).name.rsplit("-", 1)[0]
    said = (
        family + "." + key.replace("__", "."),
        "tensor",
        "shape",
        f"{family} has",
        f"{family}.ssm.",
        f"{family}.rope.",
    )
    assert any(words in message for words in said)
    assert len(message) < 300


@pytest.mark.parametrize(("golden", "key"), FACTORS)
@pytest.mark.parametrize("value", NO_FACTORS)
def test_a_factor_that_cannot_be_is_refused(tmp_path: Path, golden: str, key: str, value: float) -> None:
    with pytest.raises(BadGGUF, match=key.replace("__", r"\.")):
        spec_with(tmp_path, golden, **{key: value})


def test_the_files_themselves_open(tmp_path: Path) -> None:
    for golden in sorted({golden for golden, *_ in (*COUNTS, *FACTORS)}):
        assert spec_with(tmp_path, golden).n_layers > 1


@pytest.mark.parametrize("golden", ["converted/bert-bf16", "converted/nomic-bert-bf16"])
def test_a_model_without_logits_whose_tokens_see_those_before_alone_is_refused(tmp_path: Path, golden: str) -> None:
    """It would be taken for one that writes, by hidden rows in place of logits."""
    with pytest.raises(UnsupportedModel, match=r"attention\.causal is true"):
        spec_with(tmp_path, golden, attention__causal=True)
    with pytest.raises(EdgeInferError, match=r"attention\.causal.* should be true or false"):
        spec_with(tmp_path, golden, attention__causal=1)


def test_groups_of_experts_of_which_nothing_says_how_many_are_used_are_refused(tmp_path: Path) -> None:
    model = "converted/nemotron-h-moe-bf16"
    assert {op.groups for op in spec_with(tmp_path, model).ops() if isinstance(op, Router)} == {2}
    with pytest.raises(UnsupportedModel, match="2 groups of experts, and the file does not say"):
        spec_with(tmp_path, model, expert_group_used_count=None)


def test_layers_with_other_numbers_of_experts_are_refused(tmp_path: Path) -> None:
    for key in ("expert_used_count", "expert_feed_forward_length"):
        with pytest.raises(EdgeInferError, match=rf"glm4moe\.{key}"):
            spec_with(tmp_path, "glm4moe-q8_0", **{key: [2, 2, 1]})
