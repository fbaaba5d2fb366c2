"""Embedding models that transformers lacks give llama.cpp's embeddings. Made by `scripts/make_peer_goldens.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.engine.loading import load
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add_vector import AddVector
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.router import Router
from edgeinfer.models.architectures import architecture_of
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA, distance
from tests.golden.test_architecture_logits import change, edited
from tests.golden.test_embedding_goldens import hidden

FOLDER = DATA / "embedding" / "peer"
RANKS = ("modern-bert", "neo-bert")
FILES = sorted(path for path in FOLDER.glob("*.gguf") if "reranker" not in path.stem)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_embeddings_are_those_of_llama_cpp(path: Path, device: str) -> None:
    """llama.cpp approximates GELU, so the reference differs by more than rounding."""
    with np.load(path.with_suffix(".npz")) as held, load(path, device=device) as llm:
        (found,) = llm.embed([held["tokens"].tolist()])
        assert np.abs(found - held["embedding"]).max() < (1e-4 if device == "reference" else 1e-3)


def without_head_norms(op: Op) -> Op | None:
    """No norms of queries and keys."""
    return None if isinstance(op, LayerNorm) and op.source in ("query", "key") else op


def one_norm_less(op: Op) -> Op | None:
    """No second norm after attention."""
    is_second = isinstance(op, LayerNorm) and op.weight is not None and op.weight.tensor.endswith("attn_norm_2.weight")
    return None if is_second else op


def without_rotation(op: Op) -> Op | None:
    """No rotation."""
    return None if isinstance(op, Rope) else op


MISTAKES: dict[str, tuple[str, Callable[[Op], Op | None]]] = {
    "distances do not matter": ("jina-bert-v2", change(Attention, alibi=None)),
    "other slopes": ("jina-bert-v2", change(Attention, alibi=4.0)),
    "causal": ("jina-bert-v2", change(Attention, causal=True)),
    "SiLU": ("jina-bert-v2", change(GatedAct, activation="silu")),
    "no kind of text": ("jina-bert-v2", lambda op: None if isinstance(op, AddVector) else op),
    "no head norms": ("jina-bert-v2-code", without_head_norms),
    "no second norm": ("jina-bert-v2-code", one_norm_less),
    "no rotation": ("neo-bert", without_rotation),
    "neo-bert is causal": ("neo-bert", change(Attention, causal=True)),
    "llama-embed: no rotation": ("llama-embed", without_rotation),
    "llama-embed is causal": ("llama-embed", change(Attention, causal=True)),
    "nomic-bert-moe: no rotation": ("nomic-bert-moe", without_rotation),
    "nomic-bert-moe: ReLU": ("nomic-bert-moe", change(Experts, activation="relu")),
    "nomic-bert-moe: ReLU of dense layers": ("nomic-bert-moe", change(Act, activation="relu")),
    "nomic-bert-moe: shares that add up": ("nomic-bert-moe", change(Router, normalised=True)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_goldens_see_every_feature(mistake: str) -> None:
    name, edit = MISTAKES[mistake]
    path = FOLDER / f"{name}.gguf"
    with np.load(path.with_suffix(".npz")) as held, open_model(path) as model:
        tokens, spec = held["tokens"], model.spec
    rows = [hidden("reference", path, [tokens], each) for each in (spec, edited(spec, edit))]
    assert distance(rows[1], rows[0]) > 1e-2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_texts_of_one_pass_do_not_see_each_other(path: Path) -> None:
    with np.load(path.with_suffix(".npz")) as held:
        tokens = held["tokens"]
    parts = [tokens[:7], tokens[7:50], tokens[50:]]
    device = CpuDevice(DeviceOptions(n_workers=2))
    together = hidden(device, path, parts)
    alone = np.concatenate([hidden(CpuDevice(DeviceOptions(n_workers=3)), path, [part]) for part in parts])
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_heads_that_no_converter_writes_are_refused(path: Path) -> None:
    """A head without its last product, or of a family without rerankers."""
    with open_model(path) as model:
        tensors = {**model.file.tensors, "cls.weight": next(iter(model.file.tensors.values()))}
        hp = Hyperparameters(model.file.metadata, tensors, 96)
    with pytest.raises(
        UnsupportedModel, match="is a classifier" if hp.architecture in RANKS else "ranks or classifies"
    ):
        architecture_of(hp.architecture).build(hp)
