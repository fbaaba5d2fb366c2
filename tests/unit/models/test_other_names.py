"""Files under other names, and with parts that answers can do without: the same model, and what is left out is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.engine.loading import load
from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.architectures import OF_OTHER_KINDS, architecture_of
from edgeinfer.models.load import left_out, open_model
from tests.golden.goldens import DATA

Change = Callable[[gguf.GGUFWriter], None]
PROMPT = [5, 6, 7, 8, 9, 10]


def rewritten(
    source: Path, out: Path, architecture: str, change: Change | None = None, n_blocks: int = 0, *, rank: bool = False
) -> Path:
    """A golden model under the name of another architecture, with more in it; `n_blocks`: instead of its own.

    `rank`: its pooling is by ranking.
    """
    reader = gguf.GGUFReader(source)
    writer, old = gguf.GGUFWriter(out, architecture), reader.fields["general.architecture"].contents()
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = n_blocks if n_blocks and key.endswith(".block_count") else field.contents()
        value = 4 if rank and key.endswith(".pooling_type") else value
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key.replace(f"{old}.", f"{architecture}."), value, field.types[0], element)
    for tensor in reader.tensors:
        shape = None if tensor.tensor_type in (0, 1) else tensor.data.shape
        writer.add_tensor(tensor.name, tensor.data, raw_shape=shape, raw_dtype=tensor.tensor_type)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def answer(path: Path) -> str:
    with load(path, device="cpu", n_context=64, spec="off") as llm:
        return "".join(llm.complete(PROMPT, max_tokens=20, temperature=0.0))


@pytest.mark.parametrize(
    ("golden", "name"), [("qwen2-q8_0", "qwen2vl"), ("qwen3-q8_0", "qwen3vl"), ("qwen3moe-q8_0", "qwen3vlmoe")]
)
def test_the_text_part_of_a_model_that_sees_answers(tmp_path: Path, golden: str, name: str) -> None:
    def sections(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_dimension_sections([4, 2, 2, 0])
        writer.add_uint32(f"{name}.n_deepstack_layers", 3)

    source = DATA / f"{golden}.gguf"
    assert answer(rewritten(source, tmp_path / "seeing.gguf", name, sections)) == answer(source)


def guessing(writer: gguf.GGUFWriter) -> None:
    """A block behind the layers that predicts one more token."""
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    writer.add_tensor("blk.4.nextn.eh_proj.weight", np.zeros((32, 64), np.float32))
    writer.add_tensor("blk.4.attn_q.weight", np.zeros((32, 32), np.float32))


def test_blocks_that_predict_further_tokens_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    source = DATA / "qwen35-q8_0.gguf"
    path = rewritten(source, tmp_path / "guessing.gguf", "qwen35", guessing, n_blocks=5)
    assert answer(path) == answer(source)
    with load(path, device="reference", n_context=64) as llm:
        assert "left out of guessing: blocks that predict tokens after the next one (MTP)" in llm.info.notices


def test_what_reads_images_and_sound_is_left_out(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        for tensor in ("v.blk.0.attn_q.weight", "mm.0.weight", "a.blk.0.attn_q.weight"):
            writer.add_tensor(tensor, np.zeros((2, 2), np.float32))

    path = rewritten(DATA / "llama-q8_0.gguf", tmp_path / "all.gguf", "llama", add)
    with open_model(path) as model:
        found = left_out(model.spec, model.file.metadata, model.file.tensors)
    assert found == ("what reads images", "what reads sound")


def test_a_block_too_many_is_no_part_that_can_be_left_out(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.7.attn_q.weight", np.zeros((2, 2), np.float32))

    path = rewritten(DATA / "llama-q8_0.gguf", tmp_path / "more.gguf", "llama", add)
    with pytest.raises(UnsupportedModel, match=r"tensor 'blk\.7\.attn_q\.weight'"):
        open_model(path)


def test_a_model_of_nothing_but_guesses_is_refused(tmp_path: Path) -> None:
    path = rewritten(
        DATA / "qwen35-q8_0.gguf",
        tmp_path / "none.gguf",
        "qwen35",
        lambda writer: writer.add_uint32("qwen35.nextn_predict_layers", 4),
    )
    with pytest.raises(BadGGUF, match="no layer is left"):
        open_model(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ssm.group_count", 3, "4 value heads for 3 key heads"),
        ("ssm.inner_size", 63, "ssm.inner_size is 63, not 4 heads of 16"),
        ("ssm.conv_kernel", 1, "must be between 2 and 64"),
        ("ssm.conv_kernel", 1 << 31, "must be between 2 and 64"),
        ("ssm.state_size", 1 << 20, "must be between 1 and 4096"),
        ("ssm.time_step_rank", 0, "must be between 1 and 4096"),
        ("full_attention_interval", 0, "must be between 1"),
    ],
)
def test_hostile_sizes_of_states(tmp_path: Path, key: str, value: int, message: str) -> None:
    source = DATA / "qwen35-q8_0.gguf"
    reader = gguf.GGUFReader(source)
    field = reader.fields[f"qwen35.{key}"]
    data = bytearray(source.read_bytes())
    at = field.offset + field.parts[0].nbytes + field.parts[1].nbytes + field.parts[2].nbytes
    data[at : at + 4] = value.to_bytes(4, "little")
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    with pytest.raises(BadGGUF, match=message):
        open_model(path)


@pytest.mark.parametrize("name", ["lfm2", "qwen35"])
def test_states_do_not_go_with_texts_that_are_read_as_a_whole(tmp_path: Path, name: str) -> None:
    path = rewritten(
        DATA / f"{name}-q8_0.gguf", tmp_path / "whole.gguf", name, lambda writer: writer.add_causal_attention(False)
    )
    with pytest.raises(UnsupportedModel, match=f"this {name} reads texts as a whole"):
        open_model(path)


def test_a_file_that_says_so_is_read_as_a_whole(tmp_path: Path) -> None:
    path = rewritten(
        DATA / "qwen3-q8_0.gguf", tmp_path / "whole.gguf", "qwen3", lambda writer: writer.add_causal_attention(False)
    )
    with (
        load(path, device="cpu", n_context=64) as llm,
        load(DATA / "qwen3-q8_0.gguf", device="cpu", n_context=64) as usual,
    ):
        (whole,), (causal,) = (each.embed([PROMPT]) for each in (llm, usual))
        with pytest.raises(UnsupportedModel, match="writes none"):
            "".join(llm.complete(PROMPT, max_tokens=1))
    assert float(whole @ causal) < 0.99


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dream", "diffusion"),
        ("rnd1", "diffusion"),
        ("t5", "t5encoder"),
        ("eagle3", "guesses tokens"),
        ("clip", "image"),
    ],
)
def test_files_of_other_kinds_say_what_they_are(key: str, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message) as refused:
        architecture_of(key)
    assert "edgeinfer has:" not in str(refused.value)


def test_no_name_is_both_open_and_refused() -> None:
    for _, names in OF_OTHER_KINDS:
        for name in names:
            with pytest.raises(UnsupportedModel, match=f"is '{name}': it "):
                architecture_of(name)
