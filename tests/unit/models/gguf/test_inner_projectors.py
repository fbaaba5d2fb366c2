"""Models of Ollama's with their projector in the same file: the rows and answers of two files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import edgeinfer
from edgeinfer.engine.opening.seeing import may_see, projector_facts
from edgeinfer.errors import BadGGUF
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.images.image import Image
from edgeinfer.models.load import left_out, open_model
from edgeinfer.models.projector_file import open_projector
from tests.golden.goldens import DATA

VISION = DATA / "vision"
MODEL, PROJECTOR = VISION / "gemma3.gguf", VISION / "mmproj-gemma3.gguf"
OLD_NAMES = {
    "v.patch_embd.": "v.patch_embedding.",
    "v.position_embd.": "v.position_embedding.",
    "v.post_ln.": "v.post_layernorm.",
    ".ln1.": ".layer_norm1.",
    ".ln2.": ".layer_norm2.",
    ".attn_out.": ".attn_output.",
    ".ffn_up.": ".mlp.fc1.",
    ".ffn_down.": ".mlp.fc2.",
    "mm.input_projection.": "mm.mm_input_projection.",
    "mm.soft_emb_norm.": "mm.mm_soft_emb_norm.",
}
SIZES = ("block_count", "embedding_length", "feed_forward_length", "image_size", "patch_size", "attention.head_count")

pytest.importorskip("PIL")


def together(out: Path, *, rows: int = 16) -> Path:
    """A model and its projector in one file, under the names that Ollama gives them."""
    model, projector = gguf.GGUFReader(MODEL), gguf.GGUFReader(PROJECTOR)
    writer = gguf.GGUFWriter(out, "gemma3")
    for key, field in model.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for key in SIZES:
        writer.add_uint32(f"gemma3.vision.{key}", projector.fields[f"clip.vision.{key}"].contents())
    writer.add_float32("gemma3.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_uint32("gemma3.mm.tokens_per_image", rows)
    for tensor in (*model.tensors, *projector.tensors):
        name = tensor.name
        if name.startswith(("v.", "mm.")):
            for usual, old in OLD_NAMES.items():
                name = name.replace(usual, old)
        shape = None if tensor.tensor_type in (0, 1) else tensor.data.shape
        writer.add_tensor(name, tensor.data, raw_shape=shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def answer(path: Path, mmproj: str = "auto") -> tuple[str, int]:
    """The answer to an image, and how many tokens its prompt has."""
    image = Image.of(np.load(VISION / "gemma3.npz")["pixels1"])
    question = [{"type": "image", "image": image}, {"type": "text", "text": "the cat"}]
    with edgeinfer.load(path, device="reference", n_context=128, spec="off", mmproj=mmproj) as llm:
        assert llm.info.reads_images
        stream = llm.chat([{"role": "user", "content": question}], max_tokens=8, temperature=0.0)
        return stream.read(), len(stream.prompt)


def test_a_model_with_its_projector_in_its_file_sees(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf")
    assert answer(path) == answer(MODEL, str(PROJECTOR)) == answer(path, str(path))


def test_that_it_sees_is_known_before_it_is_loaded(tmp_path: Path) -> None:
    load = LoadOptions(device="reference")
    path = together(tmp_path / "model.gguf")
    assert may_see(path, load)
    with GGUFFile.open(path) as file:
        found, notices = projector_facts(path, file, load)
    assert found is not None
    assert not notices
    assert found.kind == "gemma3"


def test_its_encoder_is_that_of_the_projector_file(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf")
    with open_projector(path) as inner, open_projector(PROJECTOR) as usual:
        assert inner.encoder.trunk == usual.encoder.trunk
        assert inner.encoder.projection == usual.encoder.projection
        assert inner.encoder.plan((5, 7)) == usual.encoder.plan((5, 7))


def test_its_answers_to_texts_need_no_projector(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf")
    with open_model(path) as model, open_model(MODEL) as usual:
        assert model.spec == usual.spec
        assert left_out(model.spec, model.file.metadata, model.file.tensors) == ("what reads images",)
    with edgeinfer.load(path, device="reference", n_context=64, mmproj="off") as llm:
        assert not llm.info.reads_images


def test_a_projector_that_edgeinfer_cannot_run_is_said_and_texts_go_on(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf", rows=100)
    with edgeinfer.load(path, device="reference", n_context=64) as llm:
        assert not llm.info.reads_images
        assert any("images cannot be read" in notice for notice in llm.info.notices)


def test_a_model_without_a_projector_is_none() -> None:
    with pytest.raises(BadGGUF, match="it is no projector file"):
        open_projector(MODEL)
