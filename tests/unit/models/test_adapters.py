"""LoRA adapters: what the setting means, and which files are refused and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import edgeinfer
from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.errors import BadGGUF, BadSetting, EdgeInferError, ModelNotFound
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.setting_values import adapter_list
from tests.adapter_files import adaptable, embedding_too, write_adapter
from tests.golden.goldens import DATA, Golden
from tests.unit.models.test_mixture import split_experts

MODEL = Golden.read("llama-f32").model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.gguf", AdapterChoice("a.gguf")),
        ("a.gguf:0.5", AdapterChoice("a.gguf", 0.5)),
        ("a:b.gguf:-2", AdapterChoice("a:b.gguf", -2.0)),
        ("C:\\a.gguf", AdapterChoice("C:\\a.gguf")),
    ],
)
def test_a_scale_follows_the_last_colon(text: str, expected: AdapterChoice) -> None:
    assert LoadOptions(lora=(text,)).adapters == (expected,)


def test_several_adapters_in_one_text() -> None:
    separated = os.pathsep.join(["a.gguf", "b.gguf:0.5", "c.gguf"])
    assert adapter_list(separated) == ("a.gguf", "b.gguf:0.5", "c.gguf")


@pytest.mark.parametrize("scale", ["nan", "inf", "1e9"])
def test_impossible_scales(scale: str) -> None:
    with pytest.raises(BadSetting, match="with a scale from -1e"):
        LoadOptions(lora=(f"a.gguf:{scale}",))


def refusal(path: Path) -> EdgeInferError:
    with pytest.raises(EdgeInferError) as found:
        open_model(MODEL, adapters=[AdapterChoice(str(path))])
    return found.value


def test_files_that_are_no_adapters_of_the_model(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path / "missing.gguf"), ModelNotFound)
    assert "is not a LoRA adapter" in str(refusal(MODEL))
    other = write_adapter(MODEL, tmp_path / "other.gguf", architecture="qwen2")
    assert "is an adapter of qwen2 models, and this model is llama" in str(refusal(other))
    larger = write_adapter(Golden.read("qwen2-f32").model, tmp_path / "larger.gguf", architecture="llama")
    assert isinstance(refusal(larger), BadGGUF | BadSetting)


def refused(model: Path, path: Path) -> str:
    """Why an adapter of a model is refused as a setting."""
    with pytest.raises(BadSetting) as found:
        open_model(model, adapters=[AdapterChoice(str(path))])
    return str(found.value)


def test_a_quantised_b_of_an_embedding_that_is_the_output_too_is_refused(tmp_path: Path) -> None:
    model = Golden.read("gemma2-f32").model
    for rounds in (False, True):
        path = write_adapter(model, tmp_path / "a.gguf", rank=32, wanted=embedding_too, rounds=rounds)
        if rounds:
            assert "convert the adapter to F16 or F32" in refused(model, path)
        else:
            with open_model(model, adapters=[AdapterChoice(str(path))]) as opened:
                info = opened.file.tensors["adapter.0.token_embd.weight.lora_b"]
                turned = opened.file.raw(f"{info.name}.transposed").view(np.float32).reshape(info.shape[::-1])
                assert np.array_equal(turned.T, opened.file.raw(info.name).view(np.float32).reshape(info.shape))
                stored = sum(int(each.n_bytes) for each in gguf.GGUFReader(path).tensors)
                assert opened.file.adapters[0].nbytes(opened.file.tensors) == stored


def test_the_embedding_of_a_model_without_an_output_matrix(tmp_path: Path) -> None:
    model = next((DATA / "embedding").glob("bert*.gguf"))
    path = write_adapter(model, tmp_path / "a.gguf", wanted=embedding_too)
    with open_model(model, adapters=[AdapterChoice(str(path))]) as opened:
        assert sum(isinstance(op, TokenRows) for op in opened.spec.ops()) == 1


def test_rows_take_the_place_of_embeddings_that_no_adapter_changes(tmp_path: Path) -> None:
    model, kinds = Golden.read("qwen2-f32").model, (adaptable, embedding_too)
    paths = [write_adapter(model, tmp_path / f"{wanted.__name__}.gguf", wanted=wanted) for wanted in kinds]
    open_model(model, rows=True, adapters=[AdapterChoice(str(paths[0]))]).close()
    with pytest.raises(BadSetting, match="changes the embedding, in place of which rows are given"):
        open_model(model, rows=True, adapters=[AdapterChoice(str(paths[1]))])


def test_norms_are_left_out_and_told_of(tmp_path: Path) -> None:
    path = write_adapter(MODEL, tmp_path / "a.gguf", norms=True)
    with edgeinfer.load(str(MODEL), device="reference", lora=[path]) as llm:
        assert any("left out of" in notice and "norms of LoRA adapters" in notice for notice in llm.info.notices)
    alone = write_adapter(MODEL, tmp_path / "alone.gguf", wanted=lambda tensor: False, norms=True)
    assert "holds no matrices" in str(refusal(alone))


def test_adapters_of_another_number_of_experts_are_refused(tmp_path: Path) -> None:
    model, path = Golden.read("qwen3moe-f32").model, tmp_path / "a.gguf"
    (tensor,) = [each for each in gguf.GGUFReader(model).tensors if each.name == "blk.0.ffn_up_exps.weight"]
    columns, rows, count = (int(number) for number in tensor.shape)
    for n_down, n_up in ((count, count), (1, count), (count, count - 1)):
        writer = gguf.GGUFWriter(path, "qwen3moe")
        writer.add_type("adapter")
        writer.add_tensor(f"{tensor.name}.lora_a", np.ones((n_down, 2, columns), np.float32))
        writer.add_tensor(f"{tensor.name}.lora_b", np.ones((n_up, rows, 2), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if n_down == n_up:
            open_model(model, adapters=[AdapterChoice(str(path))]).close()
        else:
            with pytest.raises(BadGGUF, match="made for a model of another size"):
                open_model(model, adapters=[AdapterChoice(str(path))])


def test_one_of_the_matrices_of_experts_and_stacks_of_heads_are_refused(tmp_path: Path) -> None:
    old, path = tmp_path / "old.gguf", tmp_path / "a.gguf"
    split_experts(Golden.read("mixtral-f16").model, old)
    write_adapter(old, path, wanted=lambda tensor: tensor.name == "blk.0.ffn_gate.3.weight")
    assert "'blk.0.ffn_gate.3.weight', which llama does not only multiply rows by" in refused(old, path)
    heads = Golden.read("deepseek2-f32").model
    write_adapter(heads, path, wanted=lambda tensor: "attn_k_b" in tensor.name)
    assert "attn_k_b.weight', which deepseek2 does not only multiply rows by" in refused(heads, path)


@pytest.mark.parametrize("lost", ["lora_a", "lora_b"])
def test_half_of_a_pair(tmp_path: Path, lost: str) -> None:
    whole = gguf.GGUFReader(write_adapter(MODEL, tmp_path / "whole.gguf"))
    path = tmp_path / "half.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    for tensor in whole.tensors:
        if tensor.name != f"blk.0.attn_q.weight.{lost}":
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "lacks one of 'blk.0.attn_q.weight.lora_a'" in str(refusal(path))


def test_adapters_of_other_weights_and_scales_make_other_models(tmp_path: Path) -> None:
    paths = [write_adapter(MODEL, tmp_path / f"{seed}.gguf", seed=seed) for seed in range(2)]
    choices: list[list[AdapterChoice]] = [
        [],
        *([AdapterChoice(str(path), scale)] for path in paths for scale in (1, 2)),
    ]
    found = set()
    for adapters in choices:
        with GGUFFile.open(MODEL, adapters) as file:
            found.add(fingerprint(file))
    assert len(found) == len(choices)


def test_answers_of_a_loaded_model(tiny_model: Path, tmp_path: Path) -> None:
    def few(tensor: Any) -> bool:
        return adaptable(tensor) and "attn_q" in tensor.name

    path = write_adapter(tiny_model, tmp_path / "a.gguf", wanted=few, rank=8)
    answers = []
    for lora in ((), (f"{path}:40",), (f"{path}:0",)):
        with edgeinfer.load(str(tiny_model), device="cpu", lora=lora) as llm:
            answers.append("".join(llm.complete("once upon", max_tokens=24, temperature=0)))
            assert any("adapter" in notice for notice in llm.info.notices) == bool(lora)
    assert answers[0] != answers[1]
    assert answers[0] == answers[2]
