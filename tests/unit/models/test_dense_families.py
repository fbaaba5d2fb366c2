"""Dense families: what their files may leave out or say in several ways, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import RopePermutation
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.xielu import XIELU
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.load import open_model, spec_of
from tests.golden.goldens import DATA
from tests.unit.models.headers import keyed, llama_tensors, sizes, tensor

SHAPES = {"alpha_p": [0.5, 1.0], "alpha_n": [0.5, 1.0], "beta": [0.5, 0.5], "eps": [-1e-6, -1e-6]}


def xielu(**changes: object) -> dict[str, object]:
    """The keys of Apertus's activations, which do not begin with the family's name."""
    return {f"xielu.{key}": value for key, value in (SHAPES | changes).items()}


def apertus_tensors() -> dict[str, TensorInfo]:
    table = {name: info for name, info in llama_tensors().items() if "ffn_gate" not in name}
    norms = (tensor(f"blk.{layer}.attn_{part}_norm.weight", 8) for layer in range(2) for part in "qk")
    return table | {info.name: info for info in norms}


def test_each_layer_has_the_shape_of_its_activation(tmp_path: Path) -> None:
    spec = spec_of(keyed(tmp_path, "apertus", sizes("apertus") | xielu()), apertus_tensors())
    first, second = (op for op in spec.ops() if isinstance(op, XIELU))
    assert (first.rise, first.fall) == pytest.approx((0.974077, 1.474077), abs=1e-6)
    assert (second.rise, second.fall) == pytest.approx((1.313262, 1.813262), abs=1e-6)


@pytest.mark.parametrize("shape", [[0.5], [0.5, 0.5, 0.5], ["a", "b"], [1.0, float("nan")]])
def test_shapes_that_fit_no_layers_are_refused(tmp_path: Path, shape: list[object]) -> None:
    keys = sizes("apertus") | xielu(alpha_p=shape)
    with pytest.raises(BadGGUF, match=r"xielu\.alpha_p"):
        spec_of(keyed(tmp_path, "apertus", keys), apertus_tensors())


@pytest.mark.parametrize("times", [1, 3])
def test_layers_gone_through_again_have_caches_of_their_own(tmp_path: Path, times: int) -> None:
    keys = sizes("nanbeige", num_loops=times, skip_loop_final_norm=False)
    spec = spec_of(keyed(tmp_path, "nanbeige", keys), llama_tensors())
    assert (spec.n_layers, len(spec.kv)) == (2 * times, 2 * times)
    between = [op for op in spec.ops() if isinstance(op, RMSNorm) and op.source == op.out == "x"]
    assert [op.weight.tensor for op in between if op.weight is not None] == ["output_norm.weight"] * (times - 1)
    assert len({op.weight for op in spec.ops() if isinstance(op, MatMul)}) == 2 * 7 + 1


def test_old_files_of_minicpm_have_the_scales_of_its_first_models(tmp_path: Path) -> None:
    spec = spec_of(keyed(tmp_path, "minicpm", sizes("minicpm")), llama_tensors())
    (embed,) = (op for op in spec.ops() if isinstance(op, Embed))
    scales = {op.value: op.factor for op in spec.ops() if isinstance(op, Scale)}
    assert embed.scale == 12.0
    assert scales == pytest.approx({"branch": 1.4 / 2**0.5, "logits": 256 / 32})


def test_layers_of_deci_may_lack_parts() -> None:
    with open_model(DATA / "peer" / "deci.gguf") as model:
        stages = {stage.name: stage.ops for stage in model.spec.stages}
    products = {name: [op for op in ops if isinstance(op, MatMul)] for name, ops in stages.items()}
    assert [len(products[f"blk.{number}"]) for number in range(5)] == [7, 4, 3, 0, 7]
    assert len(model.spec.kv) == 2


@pytest.mark.parametrize(("n_layers", "alibi"), [(2, None), (40, 8.0)])
def test_baichuan_of_13b_is_told_by_its_layers(tmp_path: Path, n_layers: int, alibi: float | None) -> None:
    keys = sizes("baichuan", block_count=n_layers)
    spec = spec_of(keyed(tmp_path, "baichuan", keys), llama_tensors(layers=n_layers))
    assert {op.alibi for op in spec.ops() if isinstance(op, Attention)} == {alibi}
    assert any(isinstance(op, Rope) for op in spec.ops()) == (alibi is None)


def test_head_norms_turn_with_the_rows_of_adjacent_pairs(tmp_path: Path) -> None:
    table = {name: info for name, info in llama_tensors().items() if "ffn_norm" not in name}
    norms = [
        tensor(f"blk.{n}.attn_{part}_norm.weight", heads, 8) for n in range(2) for part, heads in (("q", 4), ("k", 2))
    ]
    keys = sizes("command-r", attention__layer_norm_epsilon=1e-5)
    spec = spec_of(keyed(tmp_path, "command-r", keys), table | {info.name: info for info in norms})
    of_heads = [op for op in spec.ops() if isinstance(op, LayerNorm) and op.groups > 1]
    assert [op.groups for op in of_heads] == [4, 2, 4, 2]
    assert {op.weight.order for op in of_heads if op.weight is not None} == {RopePermutation(8, 8)}
