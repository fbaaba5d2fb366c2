"""Files as Ollama published them: the same answers and logits as with llama.cpp's names."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgeinfer.engine.loading import load
from edgeinfer.errors import BadGGUF
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import left_out, open_model
from edgeinfer.models.text.vocabulary import Vocabulary
from tests.golden.goldens import DATA

PROMPT = [5, 6, 7, 8, 9, 10]


def published(
    source: Path,
    out: Path,
    architecture: str = "",
    *,
    keys: Mapping[str, str | None] | None = None,
    tensors: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
    more_rows: bool = False,
) -> Path:
    """A golden model with other names: `keys` (None leaves one out) and parts of `tensors`' names; added `values`.

    `more_rows`: the embedding has one more, of zeros.
    """
    reader = gguf.GGUFReader(source)
    old = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture or old)
    for key, value in (values or {}).items():
        writer.add_key_value(key, value, kind_of(value), element_of(value))
    for key, field in reader.fields.items():
        plain = key.removeprefix(f"{old}.")
        new = (keys or {}).get(plain, plain)
        if key.startswith("GGUF.") or key == "general.architecture" or new is None or key in (values or {}):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        name = f"{architecture or old}.{new}" if key.startswith(f"{old}.") else new
        writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        name = tensor.name
        for usual, other in (tensors or {}).items():
            name = name.replace(usual, other)
        data = tensor.data
        if more_rows and name == "token_embd.weight":
            data = np.concatenate([data, np.zeros_like(data[:1])])
        shape = None if tensor.tensor_type in (0, 1) else data.shape
        writer.add_tensor(name, data, raw_shape=shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def kind_of(value: object) -> gguf.GGUFValueType:
    kinds = {str: gguf.GGUFValueType.STRING, float: gguf.GGUFValueType.FLOAT32, int: gguf.GGUFValueType.UINT32}
    return gguf.GGUFValueType.ARRAY if isinstance(value, list) else kinds[type(value)]


def element_of(value: object) -> gguf.GGUFValueType | None:
    return kind_of(value[0]) if isinstance(value, list) else None


def answer(path: Path) -> str:
    with load(path, device="reference", n_context=64, spec="off") as llm:
        return "".join(llm.complete(PROMPT, max_tokens=12, temperature=0.0))


def test_gptoss(tmp_path: Path) -> None:
    source = DATA / "gpt-oss-q8_0.gguf"
    path = published(
        source,
        tmp_path / "m.gguf",
        "gptoss",
        keys={"expert_feed_forward_length": None, "rope.scaling.type": None},
        tensors={
            ".attn_output.": ".attn_out.",
            ".attn_sinks.weight": ".attn_sinks",
            ".post_attention_norm.": ".ffn_norm.",
        },
    )
    assert answer(path) == answer(source)
    with open_model(path) as model, open_model(source) as usual:
        assert model.spec.architecture == "gpt-oss"
        assert set(model.file.tensors) == set(usual.file.tensors)
        assert model.file.metadata.text("tokenizer.ggml.pre") == "gpt-4o"


def test_lfm2_has_another_name_of_its_last_norm_and_a_wrong_width(tmp_path: Path) -> None:
    source = DATA / "lfm2-q8_0.gguf"
    path = published(
        source,
        tmp_path / "m.gguf",
        tensors={"token_embd_norm.": "output_norm."},
        values={"lfm2.feed_forward_length": 12288},
    )
    assert answer(path) == answer(source)


def test_olmo3(tmp_path: Path) -> None:
    source = DATA / "olmo2-q8_0.gguf"
    assert answer(published(source, tmp_path / "m.gguf", "olmo3")) == answer(source)


@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_delta_nets_with_one_number_of_kv_heads_for_each_layer(tmp_path: Path, name: str) -> None:
    source = DATA / f"{name}-q8_0.gguf"
    with GGUFFile.open(source) as file:
        heads = file.metadata.integer(f"{name}.attention.head_count_kv")
        n_layers = file.metadata.integer(f"{name}.block_count")
    counts = [0 if (layer + 1) % 4 else heads for layer in range(n_layers)]
    path = published(
        source,
        tmp_path / "m.gguf",
        tensors={".ssm_dt.bias": ".ssm_dt"},
        values={f"{name}.attention.head_count_kv": counts},
    )
    assert answer(path) == answer(source)


def test_guesses_under_ollamas_names_are_left_out(tmp_path: Path) -> None:
    from tests.unit.models.test_other_names import rewritten

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("mtp.fc.weight", np.zeros((4, 8), np.float32))
        writer.add_tensor("mtp.layers.0.attn_q.weight", np.zeros((4, 8), np.float32))

    path = rewritten(DATA / "qwen35-q8_0.gguf", tmp_path / "m.gguf", "qwen35", add)
    with open_model(path) as model:
        found = left_out(model.spec, model.file.metadata, model.file.tensors)
    assert found == ("blocks that predict tokens after the next one (MTP)",)
    assert answer(path) == answer(DATA / "qwen35-q8_0.gguf")


def test_gemma3_has_other_names_of_rotary_bases_and_no_epsilon(tmp_path: Path) -> None:
    source = DATA / "gemma3-q8_0.gguf"
    path = published(
        source,
        tmp_path / "m.gguf",
        keys={"rope.freq_base": "rope.global.freq_base", "attention.layer_norm_rms_epsilon": None},
    )
    assert answer(path) == answer(source)
    with GGUFFile.open(path) as file:
        assert file.metadata.number("gemma3.attention.layer_norm_rms_epsilon") == 1e-6


def test_a_long_gemma3_divides_its_positions(tmp_path: Path) -> None:
    path = published(
        DATA / "gemma3-q8_0.gguf",
        tmp_path / "m.gguf",
        keys={"rope.scaling.type": None, "rope.scaling.factor": None},
        values={"gemma3.context_length": 131072, "gemma3.mm.tokens_per_image": 256},
    )
    with GGUFFile.open(path) as file:
        assert file.metadata.number("gemma3.rope.scaling.factor") == 8.0


def test_glm4moelite_has_the_widths_of_heads(tmp_path: Path) -> None:
    source = DATA / "deepseek2-q8_0.gguf"
    with GGUFFile.open(source) as file:
        width = file.metadata.integer("deepseek2.attention.key_length_mla")
    equal = published(source, tmp_path / "usual.gguf", values={"deepseek2.attention.value_length_mla": 32})
    path = published(
        source,
        tmp_path / "m.gguf",
        "glm4moelite",
        values={
            "glm4moelite.attention.head_count_kv": 2,
            "glm4moelite.attention.key_length": width,
            "glm4moelite.attention.key_length_mla": 48,
            "glm4moelite.attention.value_length_mla": 32,
            "tokenizer.ggml.eos_token_ids": [2, 7, 100_000],
        },
    )
    with GGUFFile.open(path) as file:
        found = file.metadata
        own = {key: found.integer(f"deepseek2.attention.{key}") for key in ("head_count_kv", "key_length_mla")}
        assert own == {"head_count_kv": 1, "key_length_mla": width}
        assert found.text("tokenizer.ggml.pre") == "glm4"
        assert 7 in Vocabulary.from_metadata(found).end_of_generation
    with open_model(equal) as usual, GGUFFile.open(path) as file:
        assert usual.spec.architecture == file.metadata.text("general.architecture") == "deepseek2"


@pytest.mark.parametrize("name", ["gemma3n", "gemma3"])
def test_tokens_of_images_go_where_the_model_has_no_rows_for_them(tmp_path: Path, name: str) -> None:
    source = DATA / f"{name}-q8_0.gguf"
    with GGUFFile.open(source) as file:
        tokens = file.metadata.strings("tokenizer.ggml.tokens")
        types = file.metadata.numbers("tokenizer.ggml.token_type").tolist()
    more = {"tokenizer.ggml.tokens": [*tokens, "<image>"], "tokenizer.ggml.token_type": [*types, 3]}
    marks = {"gemma3": {"gemma3.mm.tokens_per_image": 256}, "gemma3n": {}}[name]
    path = published(source, tmp_path / "m.gguf", values={**more, **marks}, more_rows=name == "gemma3n")
    with open_model(path) as model, open_model(source) as usual:
        found = model.file.metadata
        assert found.strings("tokenizer.ggml.tokens") == tokens
        assert found.raw_strings("tokenizer.ggml.tokens")[-1].decode() == tokens[-1]
        assert found.numbers("tokenizer.ggml.token_type").tolist() == types
        assert model.spec == usual.spec
        embedding = "token_embd.weight"
        assert (model.file.raw(embedding) == usual.file.raw(embedding)).all()
    if name == "gemma3":
        assert answer(path) == answer(source)


def test_a_map_of_characters_in_base64(tmp_path: Path) -> None:
    source, key = DATA / "converted" / "xlm-roberta-reranker-bf16.gguf", "tokenizer.ggml.precompiled_charsmap"
    charsmap = bytes(range(256))
    path = published(source, tmp_path / "m.gguf", values={key: list(base64.b64encode(charsmap).decode())})
    with GGUFFile.open(path) as file:
        assert bytes(file.metadata.numbers(key)) == charsmap
    path = published(source, tmp_path / "other.gguf", values={key: list("no base64!")})
    with GGUFFile.open(path) as file, pytest.raises(BadGGUF, match=key):
        file.metadata.numbers(key)


def test_mistral3_has_other_names_of_yarns_keys(tmp_path: Path) -> None:
    path = published(
        DATA / "llama-q8_0.gguf",
        tmp_path / "m.gguf",
        "mistral3",
        values={"mistral3.rope.scaling.beta_fast": 32.0, "mistral3.rope.scaling_beta": 0.1},
    )
    with GGUFFile.open(path) as file:
        assert file.metadata.number("mistral3.rope.scaling.yarn_beta_fast") == 32.0
        assert file.metadata.number("mistral3.attention.temperature_scale") == pytest.approx(0.1)


def test_files_of_llama_cpp_are_left_as_they_are() -> None:
    for source in sorted(DATA.glob("*-q8_0.gguf")):
        names = {each.name for each in gguf.GGUFReader(source).tensors}
        with GGUFFile.open(source) as file:
            assert set(file.tensors) == names


def test_embeddinggemma_is_a_gemma3_by_name(tmp_path: Path) -> None:
    source = DATA / "converted" / "gemma-embedding-bf16.gguf"
    path = published(
        source,
        tmp_path / "m.gguf",
        "gemma3",
        tensors={"dense_2.": "dense.0.", "dense_3.": "dense.1.", "output_norm.": "norm."},
        values={"gemma3.attention.causal": 1},
    )
    found = []
    for file in (source, path):
        with load(file, device="reference", n_context=32) as llm:
            found.append(llm.embed([PROMPT])[0])
    assert np.array_equal(*found)


LLAMA3 = {128001: "<|end_of_text|>", 128006: "<|start_header_id|>", 128009: "<|eot_id|>"}


@pytest.mark.parametrize(("pre", "eos"), [(None, 128001), ("default", 128009), ("llama-bpe", 128001)])
def test_llama3_ends_at_the_end_of_a_turn(tmp_path: Path, pre: str | None, eos: int) -> None:
    tokens = [LLAMA3.get(number, f"t{number}") for number in range(128256)]
    path = llama3(tmp_path / "m.gguf", tokens, pre, eos, "{{ '<|start_header_id|>' }}{{ '<|eot_id|>' }}")
    with GGUFFile.open(path) as file:
        metadata = file.metadata
        assert metadata.text("tokenizer.ggml.pre") == "llama-bpe"
        assert metadata.integer("tokenizer.ggml.eos_token_id") == 128009
        assert metadata.integer("tokenizer.ggml.eot_token_id") == 128009
        assert metadata.strings("tokenizer.ggml.tokens")[128009] == "<|eot_id|>"


def test_a_base_model_of_llama3_ends_at_the_end_of_a_text(tmp_path: Path) -> None:
    tokens = [LLAMA3.get(number, f"t{number}") for number in range(128256)]
    with GGUFFile.open(llama3(tmp_path / "m.gguf", tokens, "llama-bpe", 128001, None)) as file:
        assert file.metadata.integer("tokenizer.ggml.eos_token_id") == 128001


def llama3(out: Path, tokens: list[str], pre: str | None, eos: int, template: str | None) -> Path:
    """A header with a vocabulary and nothing else."""
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_eos_token_id(eos)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
