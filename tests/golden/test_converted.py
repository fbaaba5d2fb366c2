"""Files that llama.cpp's own converter wrote open, and give what transformers gives for the checkpoint itself.

The files hold the checkpoint's own numbers (bfloat16, and experts of gpt-oss MXFP4), so that nothing but the arithmetic
of a device differs: the CPU keeps keys and values as float16, and rounds what it multiplies with four-bit numbers.
Made by `scripts/make_converted_goldens.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.loading import load
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.gated_delta_net import GatedDeltaNet
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.router import Router
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import left_out, open_model
from edgeinfer.models.text import Tokenizer
from tests.golden.goldens import DATA, Golden, Player
from tests.golden.test_architecture_logits import (
    Edit,
    change,
    edited,
    one_norm,
    rope_change,
    without_head_norms,
    without_positions,
)

FOLDER = DATA / "converted"
RESULTS = sorted(FOLDER.glob("*.npz"))


def without_layer_norms_of_heads(op: Op) -> Op | None:
    """No LayerNorms of query and key heads."""
    return None if isinstance(op, LayerNorm) and op.source in ("query", "key") else op


MTP = "blocks that predict tokens after the next one (MTP)"


def having(key: str) -> pytest.MarkDecorator:
    """The families whose results have that entry."""
    found = [path for path in RESULTS if key in np.load(path)]
    return pytest.mark.parametrize("results", found, ids=lambda path: path.stem)


def file_of(results: Path) -> Path:
    (found,) = FOLDER.glob(f"{results.stem}-bf16.gguf")
    return found


def golden(results: Path) -> Golden:
    with np.load(results) as held:
        known = (held[key] for key in ("tokens", "columns", "logits", "last"))
        return Golden(results.stem, file_of(results), int(held["n_context"]), *known)


@having("logits")
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits_are_those_of_transformers(results: Path, device: str) -> None:
    opened = ReferenceDevice() if device == "reference" else CpuDevice(DeviceOptions(n_workers=2))
    expected = golden(results)
    with Player(opened, expected) as player:
        allowed = 1e-5 if device == "reference" else 5e-2 if results.stem == "gpt-oss" else 2e-3
        assert expected.error(player.feed(expected.tokens)) < allowed


@having("embedding")
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_embeddings_are_those_of_transformers(results: Path, device: str) -> None:
    with np.load(results) as held, load(file_of(results), device=device) as llm:
        (found,) = llm.embed([held["tokens"].tolist()])
        assert np.abs(found - held["embedding"]).max() < (1e-6 if device == "reference" else 1e-3)


@having("score")
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_scores_are_those_of_transformers(results: Path, device: str) -> None:
    with np.load(results) as held, load(file_of(results), device=device) as llm:
        (found,) = llm.rerank(str(held["query"]), [str(held["document"])])
        assert found == pytest.approx(float(held["score"]), abs=1e-5 if device == "reference" else 1e-3)


@having("texts")
def test_tokens_are_those_of_the_checkpoint(results: Path) -> None:
    with np.load(results) as held, GGUFFile.open(file_of(results)) as file:
        ids = np.split(held["ids"], np.cumsum(held["counts"])[:-1])
        tokenizer = Tokenizer.from_metadata(file.metadata)
        for text, expected in zip(held["texts"], ids, strict=True):
            assert tokenizer.encode(str(text)) == expected.tolist()


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "qwen3next"])
def test_blocks_that_guess_are_left_out(name: str) -> None:
    with open_model(FOLDER / f"{name}-bf16.gguf") as model:
        assert left_out(model.spec, model.file.metadata, model.file.tensors) == (MTP,)


def other_decays(op: Op) -> Op:
    """The decays' shifts of another layer."""
    if not isinstance(op, GatedDeltaNet):
        return op
    own, other = ("blk.0.", "blk.1.") if op.shift.tensor.startswith("blk.0.") else ("blk.1.", "blk.0.")
    return replace(op, shift=replace(op.shift, tensor=op.shift.tensor.replace(own, other)))


def one_decay(op: Op) -> Op:
    """The first decays in place of one per key column."""
    if not isinstance(op, GatedDeltaNet):
        return op
    return replace(op, by_column=False, decay="strength", shift=replace(op.shift, stop=op.value_heads))


MISTAKES: dict[str, tuple[str, Edit]] = {
    "gpt2: no positions": ("gpt2", without_positions),
    "mistral3: queries that do not grow": ("mistral3", rope_change(growth=0.0)),
    "apertus: no head norms": ("apertus", without_head_norms),
    "falcon: ReLU": ("falcon", change(Act, activation="relu")),
    "falcon: one norm for both branches": ("falcon-two-norms", one_norm),
    "jais2: ReLU": ("jais2", change(Act, activation="relu")),
    "chatglm: whole heads rotated": ("chatglm", rope_change(rotary_width=8)),
    "mellum: no window": ("mellum", change(Attention, window=None)),
    "mellum: scaled in no layer": ("mellum", rope_change(scaling="none", magnitude=1.0)),
    "bloom: distances do not matter": ("bloom", change(Attention, alibi=None)),
    "bloom: other slopes": ("bloom", change(Attention, alibi=7.0)),
    "mpt: other slopes": ("mpt", change(Attention, alibi=7.0)),
    "nemotron-h-moe: plain ReLU": ("nemotron-h-moe", change(Experts, activation="relu")),
    "nemotron-h-moe: plain ReLU of the shared expert": ("nemotron-h-moe", change(Act, activation="relu")),
    "nemotron-h-moe: chosen by shares alone": ("nemotron-h-moe", change(Router, bias=None)),
    "nemotron-h-moe: chosen from all groups": ("nemotron-h-moe", change(Router, active_groups=2)),
    "nemotron-h-moe: shares that do not add up": ("nemotron-h-moe", change(Router, normalised=False)),
    "nemotron-h-moe: shares not scaled": ("nemotron-h-moe", change(Router, scale=1.0)),
    "nemotron-h-latent: shares that add up": ("nemotron-h-latent", change(Router, normalised=True)),
    "nemotron-h-latent: softmax": ("nemotron-h-latent", change(Router, scoring="softmax")),
    "jamba: shares that add up": ("jamba", change(Router, normalised=True)),
    "kimi-linear: a gate of SiLU": ("kimi-linear", change(GatedAct, activation="silu")),
    "kimi-linear: decays of another layer": ("kimi-linear", other_decays),
    "kimi-linear: one decay per head": ("kimi-linear", one_decay),
    "kimi-linear: chosen by shares alone": ("kimi-linear", change(Router, bias=None)),
    "kimi-linear: shares not scaled": ("kimi-linear", change(Router, scale=1.0)),
    "kimi-linear: shares that do not add up": ("kimi-linear", change(Router, normalised=False)),
    "command-r-plus: no head norms": ("command-r-plus", without_layer_norms_of_heads),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_goldens_see_every_feature(mistake: str) -> None:
    name, edit = MISTAKES[mistake]
    expected = golden(FOLDER / f"{name}.npz")
    with open_model(expected.model, expected.n_context) as model:
        spec = edited(model.spec, edit)
    with Player(ReferenceDevice(), expected, spec) as player:
        assert expected.error(player.feed(expected.tokens)) > 1e-3


def test_each_result_has_its_file() -> None:
    assert {path.stem.removesuffix("-bf16") for path in FOLDER.glob("*.gguf")} == {path.stem for path in RESULTS}
