"""Opening models: what a spec says of a file, and how files that cannot be run are refused."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.errors import BadGGUF, BadSetting, EngineClosed, ModelNotFound, UnsupportedModel
from edgeinfer.graph.operands import PagedKV, Weight
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.soft_cap import SoftCap
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.gguf import GGUFFile, parse_header
from edgeinfer.models.gguf.tensor_scales import with_scales
from edgeinfer.models.load import open_model, spec_of, weight_bytes
from tests.unit.models.headers import gemma_tensors, keyed, llama_tensors, sizes, tensor

ROOT = Path(__file__).parents[3]
GOLDENS = ROOT / "tests" / "golden" / "data"
FILES = sorted(GOLDENS.glob("*.gguf"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_weight_bytes_are_all_the_tensors(path: Path) -> None:
    with open_model(path) as model:
        tensors = {info.name: info for info in gguf.GGUFReader(path).tensors}
        left_out = {"rope_factors_long.weight"} & tensors.keys()
        expected = sum(int(info.n_bytes) for name, info in tensors.items() if name not in left_out)
        for info in model.file.tensors.values():  # a scale in a tensor of its own is repeated in every block
            if info.ggml_type < 0:
                scale = tensors[info.name.replace(".weight", ".scale")]
                expected += info.nbytes - int(tensors[info.name].n_bytes) - int(scale.n_bytes)
        assert weight_bytes(model.spec, model.file.tensors) == expected


def test_tied_head_is_counted_once() -> None:
    with open_model(GOLDENS / "llama-f32.gguf") as model:
        embedding = Weight("token_embd.weight", 0, model.spec.n_vocab, model.spec.width)
        assert [weight for weight in model.spec.weights() if weight.tensor == embedding.tensor] == [embedding] * 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_header_alone_gives_the_same_spec(path: Path) -> None:
    with GGUFFile.open(path) as file:
        first_byte = min(info.offset for info in file.tensors.values())
    header = parse_header(path.read_bytes()[:first_byte], path.stat().st_size)
    with open_model(path) as model:
        assert spec_of(header.metadata, with_scales(header.tensors, path.name)) == model.spec


def test_closing_closes_the_file() -> None:
    with open_model(GOLDENS / "llama-f32.gguf") as model:
        assert model.file.raw("token_embd.weight").size
    with pytest.raises(EngineClosed):
        model.file.raw("token_embd.weight")


def test_context_chooses_long_rope_factors() -> None:
    path = GOLDENS / "phi3-longrope-q8_0.gguf"
    for n_context, which in ((64, "short"), (65, "long"), (None, "long")):
        with open_model(path, n_context) as model:
            tables = {op.table.factors for op in model.spec.ops() if isinstance(op, Rope)}
            assert tables == {f"rope_factors_{which}.weight"}


@pytest.mark.parametrize("n_context", [0, -1, 1 << 40])
def test_impossible_context(n_context: int) -> None:
    with pytest.raises(BadSetting, match="impossible"):
        open_model(GOLDENS / "llama-f32.gguf", n_context)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_model(tmp_path / "nothing.gguf")


def test_small_llama(tmp_path: Path) -> None:
    spec = spec_of(keyed(tmp_path, "llama", sizes()), llama_tensors())
    assert (spec.n_layers, spec.width, spec.heads, spec.kv_heads, spec.head_width) == (2, 32, 4, 2, 8)
    assert (spec.ffn_width, spec.n_vocab, spec.n_context_trained) == (48, 50, 128)
    assert spec.kv_bytes_per_token() == 2 * 2 * 2 * 8 * 2
    assert [stage.name for stage in spec.stages] == ["embed", "blk.0", "blk.1", "head"]


@pytest.mark.parametrize("alias", ["mistral", "smollm"])
def test_aliases(tmp_path: Path, alias: str) -> None:
    spec = spec_of(keyed(tmp_path, alias, sizes(alias)), llama_tensors())
    assert spec.architecture == alias


def test_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModel,
        match=r"'mamba'; edgeinfer has: afmoe, apertus, arcee, .*bert, .*command-r, .*hunyuan-dense, .*starcoder2",
    ):
        spec_of(keyed(tmp_path, "mamba", {}), llama_tensors())


def test_adapters_are_not_models(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="of type 'adapter'"):
        spec_of(keyed(tmp_path, "llama", sizes() | {"general.type": "adapter"}), llama_tensors())


def test_experts_are_not_supported_in_every_family(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"mixture of experts; edgeinfer has those of llama \(Mixtral\)"):
        spec_of(keyed(tmp_path, "qwen3", sizes("qwen3", expert_count=8)), llama_tensors())


def test_vocabulary_only(tmp_path: Path) -> None:
    with pytest.raises(BadGGUF, match="only metadata and a vocabulary"):
        spec_of(keyed(tmp_path, "some-new-family", {}), {})


def test_real_vocabulary_only_file() -> None:
    data = Path(os.environ.get("EDGEINFER_TEST_DATA", ROOT / ".." / "shared" / "data"))
    path = data / "vocab" / "ggml-vocab-qwen2.gguf"
    if not path.exists():
        pytest.skip("the shared test data is not here; set EDGEINFER_TEST_DATA")
    with pytest.raises(BadGGUF, match="only metadata and a vocabulary"):
        open_model(path)


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "blk.1.attn_k.weight", "output_norm.weight", "blk.0.ffn_norm.weight"]
)
def test_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = llama_tensors()
    del tensors[name]
    with pytest.raises(BadGGUF, match=f"no tensor {name}"):
        spec_of(keyed(tmp_path, "llama", sizes()), tensors)


@pytest.mark.parametrize(
    "wrong",
    [
        tensor("blk.1.attn_q.weight", 64, 32),
        tensor("blk.1.attn_q.weight", 32),
        tensor("blk.0.ffn_down.weight", 32, 1 << 40),
        tensor("blk.0.attn_norm.weight", 31),
        tensor("blk.0.attn_norm.weight", 32, 1),
        tensor("blk.0.attn_q.bias", 33),
    ],
    ids=lambda info: f"{info.name}{info.shape}",
)
def test_wrong_shape_is_named(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(BadGGUF, match=f"{wrong.name} has shape .* the sizes in the metadata make it"):  # type: ignore[attr-defined]
        spec_of(keyed(tmp_path, "llama", sizes()), llama_tensors() | {wrong.name: wrong})  # type: ignore[attr-defined]


@pytest.mark.parametrize(("ggml_type", "type_name"), [(15, "Q8_K"), (31, "Q4_0_4_4"), (26, "I32"), (4000, "type 4000")])
def test_unreadable_quant_names_tensor_and_formats(tmp_path: Path, ggml_type: int, type_name: str) -> None:
    wrong = tensor("blk.1.ffn_up.weight", 48, 32, ggml_type=ggml_type, type_name=type_name)
    with pytest.raises(UnsupportedModel, match=r"blk\.1\.ffn_up\.weight: .*(Q4_0|F16).*Q6_K") as caught:
        spec_of(keyed(tmp_path, "llama", sizes()), llama_tensors() | {wrong.name: wrong})
    assert str(ggml_type) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight", "blk.0.attn_q.scale", "cls.weight"]
)
def test_tensor_that_nothing_reads(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{name}.*does not use"):
        spec_of(keyed(tmp_path, "llama", sizes()), llama_tensors() | {name: tensor(name, 32)})


def test_image_encoder_is_left_alone(tmp_path: Path) -> None:
    extra = {name: tensor(name, 32) for name in ("v.blk.0.attn_q.weight", "mm.input_projection.weight")}
    metadata = keyed(tmp_path, "llama", sizes())
    assert spec_of(metadata, llama_tensors() | extra) == spec_of(metadata, llama_tensors())


HOSTILE: dict[str, dict[str, object]] = {
    "no layers": {"block_count": 0},
    "a billion layers": {"block_count": 1_000_000_000},
    "as many layers as may be": {"block_count": 4096},
    "negative layers": {"block_count": -3},
    "no heads": {"attention__head_count": 0},
    "no kv heads": {"attention__head_count_kv": 0},
    "uneven heads": {"attention__head_count_kv": 3},
    "more kv heads than heads": {"attention__head_count_kv": 8},
    "heads of too few layers": {"attention__head_count": [4]},
    "a layer without heads": {"attention__head_count": [4, 0]},
    "heads of another tensor": {"attention__head_count": [4, 2], "attention__key_length": 8},
    "kv heads of too few layers": {"attention__head_count_kv": [2]},
    "layers without kv heads": {"attention__head_count_kv": [2, 0]},
    "no kv heads in any layer": {"attention__head_count_kv": [0, 0]},
    "kv heads below zero": {"attention__head_count_kv": [2, -2]},
    "heads as text": {"attention__head_count": "four"},
    "more heads than width": {"attention__head_count": 64, "attention__head_count_kv": 64},
    "huge heads": {"attention__head_count": 1 << 40},
    "huge head width": {"attention__key_length": 1 << 62, "attention__value_length": 1 << 62},
    "odd rotary width": {"rope__dimension_count": 7},
    "rotary width above head width": {"rope__dimension_count": 10},
    "no rotary width": {"rope__dimension_count": 0},
    "no width": {"embedding_length": 0},
    "width as a float": {"embedding_length": 32.0},
    "no context": {"context_length": 0},
    "huge context": {"context_length": 1 << 60},
    "missing context": {"context_length": None},
    "missing epsilon": {"attention__layer_norm_rms_epsilon": None},
    "epsilon not a number": {"attention__layer_norm_rms_epsilon": float("nan")},
    "negative epsilon": {"attention__layer_norm_rms_epsilon": -1e-5},
    "epsilon infinite": {"attention__layer_norm_rms_epsilon": float("inf")},
    "no feed-forward": {"feed_forward_length": 0},
    "feed-forward of too many layers": {"feed_forward_length": [48, 48, 48]},
    "feed-forward of another tensor": {"feed_forward_length": [48, 40]},
    "a layer without feed-forward": {"feed_forward_length": [48, 0]},
    "windows of too few layers": {"attention__sliding_window": [8]},
    "base not a number": {"rope__freq_base": float("nan")},
    "base of one": {"rope__freq_base": 1.0},
    "negative base": {"rope__freq_base": -10000.0},
    "linear factor zero": {"rope__scaling__type": "linear", "rope__scaling__factor": 0.0},
    "linear factor missing its number": {"rope__scaling__type": "linear", "rope__scaling__factor": "two"},
    "yarn factor not a number": {"rope__scaling__type": "yarn", "rope__scaling__factor": float("nan")},
    "yarn without original context": {"rope__scaling__type": "yarn", "rope__scaling__original_context_length": 0},
    "yarn beta zero": {"rope__scaling__type": "yarn", "rope__scaling__yarn_beta_fast": 0.0},
    "yarn beta too large": {"rope__scaling__type": "yarn", "rope__scaling__yarn_beta_slow": 3e38},
    "longrope without factors": {"rope__scaling__type": "longrope"},
    "negative window": {"attention__sliding_window": -1},
    "pattern for other layers": {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True]},
    "negative pattern": {"attention__sliding_window": 8, "attention__sliding_window_pattern": -2},
    "attention scale not a number": {"attention__scale": float("nan")},
    "experts not a number": {"expert_count": "many"},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_hyperparameters(tmp_path: Path, what: str) -> None:
    metadata, tensors = keyed(tmp_path, "llama", sizes(**HOSTILE[what])), llama_tensors()
    tracemalloc.start()
    try:
        with pytest.raises(BadGGUF):
            spec_of(metadata, tensors)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_values_of_another_width_than_keys(tmp_path: Path) -> None:
    given = keyed(tmp_path, "llama", sizes(attention__value_length=16))
    wider = [tensor(f"blk.{layer}.attn_v.weight", 32, 32) for layer in range(2)]
    wider += [tensor(f"blk.{layer}.attn_output.weight", 32, 64) for layer in range(2)]
    assert spec_of(given, llama_tensors() | {each.name: each for each in wider}).kv == (PagedKV(2, 8, 16),) * 2
    with pytest.raises(BadGGUF, match=r"blk\.0\.attn_v\.weight"):
        spec_of(given, llama_tensors())


def test_unknown_scaling(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'dynamic'; edgeinfer has none, linear, yarn and longrope"):
        spec_of(keyed(tmp_path, "llama", sizes(rope__scaling__type="dynamic")), llama_tensors())


def rope_of(folder: Path, **changes: object) -> RopeTable:
    spec = spec_of(keyed(folder, "llama", sizes(**changes)), llama_tensors())
    (table,) = {op.table for op in spec.ops() if isinstance(op, Rope)}
    return table


def test_rope_defaults(tmp_path: Path) -> None:
    assert rope_of(tmp_path) == RopeTable(10000.0, 8)
    assert rope_of(tmp_path, rope__scaling__type="none", rope__scaling__factor=4.0) == RopeTable(10000.0, 8)


def test_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    assert rope_of(tmp_path, rope__scaling__factor=4.0) == RopeTable(10000.0, 8, "linear", 4.0)
    assert rope_of(tmp_path, rope__scale_linear=2.0) == RopeTable(10000.0, 8, "linear", 2.0)


@pytest.mark.parametrize(
    ("settings", "magnitude"),
    [
        ({}, 1.0 + 0.1 * np.log(4.0)),
        ({"yarn_log_multiplier": 1.0}, 1.0),
        ({"yarn_log_multiplier": 0.5}, (1.0 + 0.1 * np.log(4.0)) / (1.0 + 0.05 * np.log(4.0))),
        ({"yarn_attn_factor": 1.5}, 1.5),
        ({"attn_factor": 2.0}, 2.0 + 0.2 * np.log(4.0)),
    ],
)
def test_yarn_magnitude(tmp_path: Path, settings: dict[str, float], magnitude: float) -> None:
    scaling = {"type": "yarn", "factor": 4.0, **settings}
    table = rope_of(tmp_path, **{f"rope__scaling__{key}": value for key, value in scaling.items()})
    assert table.magnitude == pytest.approx(magnitude)
    assert (table.scaling, table.factor, table.original_context) == ("yarn", 4.0, 128)


def windows_of(folder: Path, architecture: str, **changes: object) -> list[int | None]:
    layers = int(str(changes["block_count"]))
    named = sizes(architecture, attention__key_length=128, attention__value_length=128, **changes)
    table = {"layers": layers, "query": 512, "kv": 256}
    tensors = llama_tensors(**table) if architecture == "llama" else gemma_tensors(architecture == "gemma3", **table)
    return [layer.window for layer in spec_of(keyed(folder, architecture, named), tensors).kv]


def test_windows_by_family(tmp_path: Path) -> None:
    window = {"attention__sliding_window": 5}
    assert windows_of(tmp_path, "llama", block_count=3) == [None] * 3
    assert windows_of(tmp_path, "llama", block_count=3, **window) == [5] * 3
    assert windows_of(tmp_path, "gemma2", block_count=4) == [4096, None, 4096, None]
    assert windows_of(tmp_path, "gemma2", block_count=3, **window) == [5, None, 5]
    assert windows_of(tmp_path, "gemma3", block_count=2) == [None, None]
    assert windows_of(tmp_path, "gemma3", block_count=8, **window) == [5, 5, 5, 5, 5, None, 5, 5]


def test_window_pattern_overrides(tmp_path: Path) -> None:
    window = {"attention__sliding_window": 5, "block_count": 4}
    pattern = "attention__sliding_window_pattern"
    assert windows_of(tmp_path, "gemma3", **window, **{pattern: 2}) == [5, None, 5, None]
    assert windows_of(tmp_path, "gemma3", **window, **{pattern: 1}) == [None] * 4
    assert windows_of(tmp_path, "gemma3", **window, **{pattern: 0}) == [5] * 4
    flags = [True, False, False, True]
    assert windows_of(tmp_path, "llama", **window, **{pattern: flags}) == [5, None, None, 5]


@pytest.mark.parametrize(
    ("architecture", "layers", "width", "heads", "scalar"),
    [
        ("gemma2", 46, 4608, 32, 144),
        ("gemma2", 42, 3584, 16, 128),
        ("gemma3", 62, 5376, 32, 168),
        ("gemma3", 48, 3840, 16, 128),
    ],
)
def test_gemma_query_scale(tmp_path: Path, architecture: str, layers: int, width: int, heads: int, scalar: int) -> None:
    """The published `query_pre_attn_scalar` of the 27B models differs from their head width of 128."""
    table = {"layers": layers, "width": width, "query": heads * 128, "kv": heads * 64, "ffn": 96}
    changes: dict[str, object] = {
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": 96,
        "attention__head_count": heads,
        "attention__head_count_kv": heads // 2,
        "attention__key_length": 128,
        "attention__value_length": 128,
    }
    tensors = gemma_tensors(architecture == "gemma3", **table)
    spec = spec_of(keyed(tmp_path, architecture, sizes(architecture, **changes)), tensors)
    assert {op.scale for op in spec.ops() if isinstance(op, Attention)} == {scalar**-0.5}
    assert [op.scale for op in spec.ops() if isinstance(op, Embed)] == [width**0.5]


def test_gemma2_caps_have_defaults(tmp_path: Path) -> None:
    named = sizes("gemma2", block_count=1, attention__key_length=128, attention__value_length=128)
    spec = spec_of(keyed(tmp_path, "gemma2", named), gemma_tensors(False, layers=1, query=512, kv=256))
    assert {op.soft_cap for op in spec.ops() if isinstance(op, Attention)} == {50.0}
    assert [op.cap for op in spec.ops() if isinstance(op, SoftCap)] == [30.0]
