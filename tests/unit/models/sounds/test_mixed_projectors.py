"""Projector files with encoders of both images and sound: both are read, or images alone where sound cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import edgeinfer
from edgeinfer.engine.kv.limits import encoder_bytes
from edgeinfer.engine.opening.seeing import may_hear, may_see
from edgeinfer.errors import UnsupportedModel
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.projector_file import open_projector
from tests.golden.goldens import DATA

IMAGES, SOUND = DATA / "vision" / "mmproj-qwen2vl.gguf", DATA / "sounds" / "mmproj-qwen2a.gguf"

pytest.importorskip("PIL")


def mixed(folder: Path, sound_type: str) -> Path:
    """A model with such a projector beside it."""
    shutil.copy(DATA / "vision" / "qwen2vl.gguf", folder / "both.gguf")
    writer = gguf.GGUFWriter(folder / "mmproj-both.gguf", "clip")
    readers = [gguf.GGUFReader(path) for path in (IMAGES, SOUND)]
    known = {"general.architecture", "clip.projector_type"}
    writer.add_string("clip.vision.projector_type", readers[0].fields["clip.projector_type"].contents())
    writer.add_string("clip.audio.projector_type", sound_type)
    for reader in readers:
        for key, field in reader.fields.items():
            if not key.startswith("GGUF.") and key not in known:
                element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), field.types[0], element)
                known.add(key)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "both.gguf"


def parts() -> tuple[dict[str, object], dict[str, object]]:
    image = {"type": "image", "image": np.load(DATA / "vision" / "qwen2vl.npz")["pixels1"]}
    samples = np.load(DATA / "sounds" / "qwen2a.npz")["samples0"].astype(np.float32) / 128
    return image, {"type": "audio", "audio": samples}


def test_a_message_may_have_both(tmp_path: Path) -> None:
    path = mixed(tmp_path, "qwen2a")
    assert may_see(path, LoadOptions())
    assert may_hear(path, LoadOptions())
    image, sound = parts()
    text = {"type": "text", "text": "the cat"}
    with edgeinfer.load(path, device="reference", n_context=256, spec="off", chat_template="chatml") as llm:
        assert (llm.info.reads_images, llm.info.reads_sound) == (True, True)
        n_rows = []
        for content in ([image], [sound], [sound, text, image, sound]):
            messages = [{"role": "user", "content": content}]
            stream = llm.chat(messages, max_tokens=2, temperature=0.0)
            stream.read()
            n_rows.append(sum(token < 0 for token in stream.prompt))
        assert n_rows[2] == n_rows[0] + 2 * n_rows[1]
        assert n_rows[1] == len(np.load(DATA / "sounds" / "qwen2a.npz")["rows0"])
        assert llm.prompts.render(messages).count("[audio]") == 2
        assert llm._media is not None
        assert llm._media.n_encoded == 2


def test_memory_counts_both(tmp_path: Path) -> None:
    mixed(tmp_path, "qwen2a")
    found = []
    for path in (tmp_path / "mmproj-both.gguf", IMAGES, SOUND):
        with open_projector(path) as projector:
            found.append(encoder_bytes("cpu", projector.facts))
    assert found[0] == found[1] + found[2]


def test_sound_that_cannot_be_read_leaves_images(tmp_path: Path) -> None:
    path = mixed(tmp_path, "gemma4a")
    image, sound = parts()
    with edgeinfer.load(path, device="reference", n_context=256, spec="off", chat_template="chatml") as llm:
        assert (llm.info.reads_images, llm.info.reads_sound) == (True, False)
        assert any("sound cannot be read" in notice and "gemma4a" in notice for notice in llm.info.notices)
        llm.chat([{"role": "user", "content": [image]}], max_tokens=1).read()
        with pytest.raises(UnsupportedModel, match="reads no sound"):
            llm.chat([{"role": "user", "content": [sound]}])


def test_what_a_model_may_read_is_said_by_headers(tmp_path: Path) -> None:
    hearing, load = DATA / "sounds" / "qwen2a.gguf", LoadOptions()
    assert not may_see(hearing, load)
    assert may_hear(hearing, load)
    assert not may_hear(hearing, LoadOptions(mmproj="off"))
    assert not may_hear(hearing, LoadOptions(device="onnx"))
    seeing = DATA / "vision" / "qwen2vl.gguf"
    assert may_see(seeing, load)
    assert not may_hear(seeing, load)
