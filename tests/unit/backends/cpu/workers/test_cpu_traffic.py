"""Bytes that a step's products and attention read, against the sizes of the matrices and pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgeinfer.app.bench.ours import OpProfile
from edgeinfer.app.bench.subject import BenchJob, BenchOpening, Conditions
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.layout.panels import panel_for
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import PAGE
from edgeinfer.models.load import Model, open_model
from edgeinfer.models.quants import format_of
from tests.golden.goldens import DATA

DEPTH = 100


def panel_bytes(model: Model, weight: Weight) -> int:
    """Bytes of a matrix in memory: whole pairs of panels of 16 rows."""
    panel = panel_for(format_of(model.file.tensors[weight.tensor].ggml_type))
    return -(-weight.n_rows // 32) * 2 * panel.panel_bytes(weight.columns)


def bytes_by_op(path: Path, n_tokens: int) -> dict[str, int]:
    """Bytes that each kind of op reads in a pass after DEPTH cached positions."""
    with closing(OpProfile(BenchOpening("cpu", Conditions(path, 2, 256), purpose="ops"))) as subject:
        times = subject.run(BenchJob("ops", n_tokens, depth=DEPTH)).ops
    return {op: sum(time.bytes_read for time in times if time.op == op) for op in {time.op for time in times}}


@pytest.fixture(params=["llama-q4_0", "llama-k", "mistral-window-q8_0", "llama-f16"])
def dense(request: pytest.FixtureRequest) -> Iterator[Model]:
    with open_model(DATA / f"{request.param}.gguf", 256) as model:
        yield model


@pytest.mark.parametrize("n_tokens", [1, 5])
def test_products_read_all_panels_once(dense: Model, n_tokens: int) -> None:
    expected = sum(panel_bytes(dense, op.weight) for op in dense.spec.ops() if isinstance(op, MatMul))
    read = bytes_by_op(dense.file.path, n_tokens)
    assert read["MatMul"] + read.get("GatedAct", 0) == expected  # gate and up may be products of the activation's call


def test_attention_of_a_token_reads_the_positions_it_sees(dense: Model) -> None:
    expected = 0
    for op in dense.spec.ops():
        if isinstance(op, Attention):
            layout = PageLayout.of("f16", dense.spec.kv[op.layer])
            n_visible = min(DEPTH + 1, op.window or DEPTH + 1)
            expected += n_visible * op.kv_heads * (layout.key_bytes + layout.value_bytes) // PAGE
    assert bytes_by_op(dense.file.path, 1)["Attention"] == expected
    assert bytes_by_op(dense.file.path, 5)["Attention"] == 0


@pytest.mark.parametrize("name", ["mixtral-q8_0", "qwen3moe-k", "qwen2moe-k"])
def test_a_mixture_reads_the_experts_that_its_token_chose(name: str) -> None:
    path = DATA / f"{name}.gguf"
    with open_model(path, 256) as model:
        ops = [op for op in model.spec.ops() if isinstance(op, Experts)]
        sizes = [sum(panel_bytes(model, matrices[0]) for matrices in op.stacks) for op in ops]
        expected = sum(op.active * size for op, size in zip(ops, sizes, strict=True))
        most = sum(op.count * size for op, size in zip(ops, sizes, strict=True))
    assert bytes_by_op(path, 1)["Experts"] == expected
    assert expected < most
    assert bytes_by_op(path, 5)["Experts"] == 0
