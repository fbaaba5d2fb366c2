"""Models with an activation of their own, and OPT: what their headers say, and variants that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.models.blocks import embed, feed_forward, norm
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.load import spec_of
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from tests.unit.models.headers import gemma_tensors, keyed, llama_tensors, sizes, tensor

KEY = "feed_forward_activation"


def opt_sizes(**changes: object) -> dict[str, object]:
    return sizes("opt", **{"attention__head_count_kv": None, "attention__layer_norm_epsilon": 1e-5} | changes)


def opt_tensors() -> dict[str, TensorInfo]:
    table = llama_tensors(kv=32)
    for name in [name for name in table if "ffn_gate" in name]:
        del table[name]
    norms = [name.replace("weight", "bias") for name in table if "norm" in name]
    extra = [tensor("position_embd.weight", 130, 32), *(tensor(name, 32) for name in norms)]
    return table | {info.name: info for info in extra}


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu", "relu2"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_file_names_its_activation(tmp_path: Path, architecture: str, activation: str) -> None:
    changes = {"attention__key_length": 128, "attention__value_length": 128, KEY: activation}
    table = {"layers": 2, "query": 512, "kv": 256}
    tensors = llama_tensors(**table) if architecture == "llama" else gemma_tensors(False, **table)
    spec = spec_of(keyed(tmp_path, architecture, sizes(architecture, **changes)), tensors)
    assert [op.activation for op in spec.ops() if isinstance(op, GatedAct)] == [activation] * 2


@pytest.mark.parametrize("found", ["geglu", "RELU", "swiglu"])
def test_an_unknown_activation_is_refused(tmp_path: Path, found: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{KEY} is '{found}'; edgeinfer has silu, gelu_tanh, relu, relu2"):
        spec_of(keyed(tmp_path, "llama", sizes(**{KEY: found})), llama_tensors())


def test_an_activation_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadGGUF, match=KEY):
        spec_of(keyed(tmp_path, "llama", sizes(**{KEY: 3})), llama_tensors())


def test_opt_has_learned_positions_and_no_gate(tmp_path: Path) -> None:
    spec = spec_of(keyed(tmp_path, "opt", opt_sizes()), opt_tensors())
    assert [type(op) for op in spec.stages[0].ops] == [Embed, PositionEmbed]
    (positions,) = (op.weight for op in spec.ops() if isinstance(op, PositionEmbed))
    assert (positions.start, positions.stop) == (2, 130)
    assert [op.activation for op in spec.ops() if isinstance(op, Act)] == ["relu"] * 2
    assert sum(isinstance(op, LayerNorm) for op in spec.ops()) == 5
    assert not any(isinstance(op, Rope | GatedAct) for op in spec.ops())
    assert "gate" not in {buffer.name for buffer in spec.buffers}


def test_opt_has_no_positions_beyond_its_context(tmp_path: Path) -> None:
    metadata = keyed(tmp_path, "opt", opt_sizes())
    assert spec_of(metadata, opt_tensors(), 128).n_context_trained == 128
    with pytest.raises(BadSetting, match="up to 128, so a context of 129 tokens"):
        spec_of(metadata, opt_tensors(), 129)


def test_variants_of_opt_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="norms after its branches"):
        spec_of(keyed(tmp_path, "opt", opt_sizes(use_pre_norm=False)), opt_tensors())
    extra = {"project_in.weight": tensor("project_in.weight", 32, 16)}
    with pytest.raises(UnsupportedModel, match="embeddings of another width"):
        spec_of(keyed(tmp_path, "opt", opt_sizes()), opt_tensors() | extra)


@pytest.mark.parametrize("name", ["position_embd.weight", "blk.1.attn_norm.bias", "output_norm.bias"])
def test_tensors_that_opt_needs(tmp_path: Path, name: str) -> None:
    tensors = {key: info for key, info in opt_tensors().items() if key != name}
    with pytest.raises(BadGGUF, match=f"no tensor {name}, which opt needs"):
        spec_of(keyed(tmp_path, "opt", opt_sizes()), tensors)
    with pytest.raises(BadGGUF, match="has shape"):
        spec_of(keyed(tmp_path, "opt", opt_sizes()), tensors | {name: tensor(name, 31)})


def test_what_an_author_misspells_is_named(tmp_path: Path) -> None:
    """Words of an architecture's own file, not of a model's."""
    hp = Hyperparameters(keyed(tmp_path, "llama", sizes()), llama_tensors(), 64)
    with pytest.raises(ValueError, match="norms='layers': there are 'rms', 'layer'"):
        Sizes.read(hp, norms="layers")  # type: ignore[arg-type]
    g = ModelGraph(hp, Sizes.read(hp))
    embed(g)
    g.stage("blk.0")
    norm(g, "ffn_norm")
    with pytest.raises(ValueError, match="activation='gelu_new': there are "):
        feed_forward(g, activation="gelu_new")  # type: ignore[arg-type]
