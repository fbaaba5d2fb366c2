"""Families that transformers lacks give llama.cpp's logits. Made by `scripts/make_peer_goldens.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.router import Router
from edgeinfer.graph.ops.xielu import XIELU
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA, Golden, Player
from tests.golden.test_architecture_logits import (
    Edit,
    change,
    edited,
    no_mean,
    rope_change,
    scaled_as,
    without_head_norms,
    without_post_norms,
)
from tests.golden.test_state_spaces import swapped, without_inner_norms

RESULTS = sorted((DATA / "peer").glob("*.npz"))


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits_are_those_of_llama_cpp(results: Path, device: str) -> None:
    opened = ReferenceDevice() if device == "reference" else CpuDevice(DeviceOptions(n_workers=2))
    expected = Golden.read(f"peer/{results.stem}")
    allowed = 3e-2 if results.stem.startswith("baichuan") else 5e-3  # which has many layers
    if device == "reference":  # llama.cpp's GELU is a table of float16
        allowed = 6e-4 if results.stem == "grok" else 1e-4
    with Player(opened, expected) as player:
        assert expected.error(player.feed(expected.tokens)) < allowed


def without_last_norms(op: Op) -> Op | None:
    """No norms of what the last product of a branch reads."""
    return None if isinstance(op, RMSNorm) and op.source in ("attended", "hidden") else op


def without_norms_between(op: Op) -> Op | None:
    """No norms of the residual stream in place."""
    return None if isinstance(op, RMSNorm) and op.source == op.out == "x" else op


def without_single_products(op: Op) -> Op | None:
    """No product in place of attention."""
    is_single = isinstance(op, MatMul) and op.weight.tensor == "blk.1.attn_output.weight"
    return None if is_single else op


def one_mean(op: Op) -> Op:
    """The mean of all heads in place of each."""
    return replace(op, width=op.width * op.groups, groups=1) if isinstance(op, LayerNorm) else op


def chosen_by_normed(op: Op) -> Op:
    """Experts chosen by what they read."""
    return replace(op, source="normed") if isinstance(op, MatMul) and op.source == "layer_input" else op


def one_weight(op: Op) -> Op:
    """The first head's weights for all heads."""
    if not isinstance(op, RMSNorm) or not op.own or op.weight is None:
        return op
    return replace(op, own=False, weight=replace(op.weight, stop=op.width))


MISTAKES: dict[str, tuple[str, Edit]] = {
    "internlm2: another base": ("internlm2", rope_change(base=20000.0)),
    "xverse: another base": ("xverse", rope_change(base=20000.0)),
    "baichuan: another base": ("baichuan", rope_change(base=20000.0)),
    "qwen: no biases": ("qwen", change(MatMul, bias=None)),
    "qwen: ReLU": ("qwen", change(GatedAct, activation="relu")),
    "orion: no mean": ("orion", no_mean),
    "exaone: no factors": ("exaone", rope_change(factors=None)),
    "codeshell: no biases": ("codeshell", change(MatMul, bias=None)),
    "plamo: another base": ("plamo", rope_change(base=20000.0)),
    "plamo3: no post norms": ("plamo3", without_post_norms),
    "plamo3: no head norms": ("plamo3", without_head_norms),
    "plamo3: no window": ("plamo3", change(Attention, window=None)),
    "plamo3: one base": ("plamo3", rope_change(base=50000.0)),
    "plamo2: no post norms": ("plamo2", without_post_norms),
    "plamo2: no head norms": ("plamo2", without_head_norms),
    "plamo2: one weight for all heads": ("plamo2", one_weight),
    "plamo2: another base": ("plamo2", rope_change(base=20000.0)),
    "plamo2: no norms of b, c and steps": ("plamo2", without_inner_norms),
    "plamo2: b and c swapped": ("plamo2", swapped),
    "nanbeige: no norms between": ("nanbeige", without_norms_between),
    "maincoder: no head norms": ("maincoder", without_head_norms),
    "pangu-embedded: no biases": ("pangu-embedded", change(MatMul, bias=None)),
    "deci: nothing in place of attention": ("deci", without_single_products),
    "bitnet: no last norms": ("bitnet", without_last_norms),
    "minicpm: no embedding scale": ("minicpm", change(Embed, scale=1.0)),
    "minicpm: branches whole": ("minicpm", scaled_as("branch", 1.0)),
    "minicpm: logits whole": ("minicpm", scaled_as("logits", 1.0)),
    "stablelm-heads: one mean": ("stablelm-heads-f32", one_mean),
    "apertus: another edge": ("apertus-f32", change(XIELU, edge=-0.5)),
    "apertus: the other slope": ("apertus-f32", change(XIELU, slope=0.5)),
    "mistral3: queries that do not grow": ("mistral3-f32", rope_change(growth=0.0)),
    "mistral3: grows at once": ("mistral3-f32", rope_change(growth_period=10)),
    "baichuan-13b: distances do not matter": ("baichuan-13b", change(Attention, alibi=None)),
    "refact: other slopes": ("refact-f32", change(Attention, alibi=4.0)),
    "jais: other scale": ("jais", change(Attention, scale=8**-0.5)),
    "jais: other slopes": ("jais", change(Attention, alibi=4.0)),
    "nanbeige-bare: no rotation": ("nanbeige-bare", lambda op: None if isinstance(op, Rope) else op),
    "deepseek: shares add up to one": ("deepseek", change(Router, normalised=True)),
    "bailingmoe: shares do not add up": ("bailingmoe", change(Router, normalised=False)),
    "deepseek2-whole: scores without YaRN's magnitude": ("deepseek2-whole", change(Attention, scale=0.25)),
    "deepseek2-whole: rotation in no head": ("deepseek2-whole", lambda op: None if isinstance(op, Rope) else op),
    "plm: plain ReLU": ("plm", change(Act, activation="relu")),
    "plm: another base": ("plm", rope_change(base=20000.0)),
    "arctic: no mixture": ("arctic", change(Router, scale=0.0)),
    "smallthinker: SiLU": ("smallthinker", change(Experts, activation="silu")),
    "smallthinker: chosen after attention": ("smallthinker", chosen_by_normed),
    "smallthinker-windows: another base": ("smallthinker-windows", rope_change(base=20000.0)),
    "mimo2: attention not scaled": ("mimo2", scaled_as("branch", 1.0)),
    "mimo2: no sinks": ("mimo2", change(Attention, sinks=None)),
    "mimo2: no window": ("mimo2", change(Attention, window=None)),
    "mimo2: one base": ("mimo2", rope_change(base=50000.0)),
    "mimo2: chosen by shares alone": ("mimo2", change(Router, bias=None)),
    "granite-swa: no sinks": ("granite-swa", change(Attention, sinks=None)),
    "granite-swa: no window": ("granite-swa", change(Attention, window=None)),
    "granite-swa: rotated in no layer": ("granite-swa", lambda op: None if isinstance(op, Rope) else op),
    "granite-swa-moe: branches whole": ("granite-swa-moe", scaled_as("branch", 1.0)),
    "granite-swa-moe: SiLU of nothing": ("granite-swa-moe", change(GatedAct, activation="relu")),
    "hunyuan-vl: the base as stated": ("hunyuan-vl", rope_change(base=10000.0)),
    "paddleocr: another base": ("paddleocr", rope_change(base=20000.0)),
    "muse-glimmer: no norm of embeddings": ("muse-glimmer", without_norms_between),
    "muse-glimmer: no head norms": ("muse-glimmer", without_head_norms),
    "muse-glimmer: no post norms": ("muse-glimmer", without_post_norms),
    "muse-glimmer: no window": ("muse-glimmer", change(Attention, window=None)),
    "cogvlm: another base": ("cogvlm", rope_change(base=20000.0)),
    "deepseek2-ocr: another base": ("deepseek2-ocr", rope_change(base=20000.0)),
    "deepseek2-ocr: shares add up to one": ("deepseek2-ocr", change(Router, normalised=True)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_goldens_see_every_feature(mistake: str) -> None:
    name, edit = MISTAKES[mistake]
    expected = Golden.read(name if name.endswith("-f32") else f"peer/{name}")
    with open_model(expected.model, expected.n_context) as model:
        spec = edited(model.spec, edit)
    with Player(ReferenceDevice(), expected, spec) as player:
        assert expected.error(player.feed(expected.tokens)) > 1e-3
