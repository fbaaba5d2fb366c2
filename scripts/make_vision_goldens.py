"""Makes the golden files of `tests/golden/data/vision`: llama.cpp's conversions, and transformers' rows of images.

Run from the repository root: `python scripts/make_vision_goldens.py --llama-cpp FOLDER [FAMILY …]`, where FOLDER holds
llama.cpp's sources, as for `make_converted_goldens.py`. Needs torch, transformers, Pillow and what the converter needs.
For each family a tiny random checkpoint is written as its publishers write it; transformers computes from it, and the
converter makes a model of it and a projector file.

NAME.gguf (bf16) and mmproj-NAME.gguf (f32) come with NAME.npz: for each image N: pixelsN uint8[H, W, 3], rowsN
float32[M, D] (those of all tiles, one after another), countsN int32[tiles]. Where prompts are judged too: prompt, a
text with one placeholder; idsN int32[T], its tokens with image N, -1 for rows; lastN float32[V], logits after it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import gguf
import goldens.vision
import numpy as np
import torch
import transformers
from goldens.llama_cpp import Converter
from goldens.vision.case import Case
from goldens.weights import randomise
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data" / "vision"


def all_cases() -> list[Case]:
    """The cases of all files of the folder, by name of the file."""
    names = (module.name for module in pkgutil.iter_modules(goldens.vision.__path__) if module.name != "case")
    return [case for name in sorted(names) for case in importlib.import_module(f"goldens.vision.{name}").CASES]


def class_of(named: str | type) -> Any:
    """A class, by its name if transformers has it."""
    return getattr(transformers, named) if isinstance(named, str) else named


def picture(size: tuple[int, int], random: np.random.Generator, repeated: int) -> NDArray[np.uint8]:
    """A picture of smooth colours with an edge and some noise: uint8[H, W, 3]. `repeated`: as in `Case`."""
    height, width = (-(-each // repeated) for each in size)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(rows / random.uniform(4, 20) + columns / random.uniform(4, 20) + turn) for turn in range(3)]
    found = 128 + 90 * np.stack(waves, axis=-1) + random.normal(0, 8, (height, width, 3))
    found[height // 3 : height // 2, width // 4 : width // 2] = random.integers(0, 256, 3)
    small = found.clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(small.repeat(repeated, axis=0).repeat(repeated, axis=1)[: size[0], : size[1]])


def write_checkpoint(case: Case, folder: Path, seed: int) -> tuple[Any, Any]:
    """Write a random checkpoint, its tokenizer and its image processor; returns the model and the processor."""
    case.tokenizer.write(folder)
    config = case.config()
    config.dtype = torch.bfloat16
    if case.speaker is not None:
        config.image_token_id = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(case.image_token)
    kind = class_of(case.model)
    make = kind.from_config if kind.__name__.startswith("Auto") else kind._from_config
    model = make(config, attn_implementation="eager", dtype=torch.float32)
    randomise(model, seed, 0.0)
    if case.prepare is not None:
        case.prepare(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    name, options = case.processor
    processor = getattr(transformers, name)(**options)
    processor.save_pretrained(folder)
    if case.architecture:
        config.architectures = [case.architecture]
        config.save_pretrained(folder)
    for file, held in case.files.items():
        own = folder / file
        own.write_text(json.dumps((json.loads(own.read_text()) if own.exists() else {}) | held))
    made = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").float().eval()
    rename(folder / "model.safetensors", case.renamed)
    return made, processor


def rename(file: Path, renamed: tuple[tuple[str, str], ...]) -> None:
    """Write a checkpoint again, its tensors under other names."""
    found = {}
    for name, tensor in load_file(file).items():
        old, new = next((pair for pair in renamed if name.startswith(pair[0])), ("", ""))
        found[new + name[len(old) :]] = tensor
    save_file(found, file, {"format": "pt"})


def add_keys(path: Path, keys: dict[str, int]) -> None:
    """Write a GGUF file again with further whole numbers in its header."""
    held = path.rename(path.with_suffix(".held"))
    reader = gguf.GGUFReader(held)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for name, value in keys.items():
        writer.add_uint32(name, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, tensor.data.shape, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    held.unlink()


def answered(
    case: Case, model: Any, processor: Any, folder: Path, pixels: NDArray[np.uint8], number: str
) -> dict[str, Any]:
    """The tokens of the prompt with an image, and transformers' logits after it."""
    assert case.speaker is not None
    name, options = case.speaker
    parts = {"image_processor": processor, "tokenizer": AutoTokenizer.from_pretrained(folder)}
    speaker = class_of(name)(**parts, **options)
    inputs = speaker(text=[case.prompt], images=[pixels], return_tensors="pt", **case.asked)
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0, -1].float().numpy()
    ids = inputs["input_ids"][0].numpy().astype(np.int32)
    ids[ids == model.config.image_token_id] = -1
    return {"prompt": np.array(case.prompt), f"ids{number}": ids, f"last{number}": logits}


def make(case: Case, converter: Converter, seed: int, data: Path, sources: Path) -> None:
    """Write a family's files and transformers' results. `sources`: llama.cpp's folder."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / case.name
        folder.mkdir()
        model, processor = write_checkpoint(case, folder, seed)
        found: dict[str, Any] = {}
        for number, size in enumerate(case.sizes):
            pixels = picture(size, random, case.repeated)
            with torch.no_grad():
                rows = case.features(model, processor(images=[pixels], return_tensors="pt"))
            found[f"pixels{number}"] = pixels
            found[f"rows{number}"] = np.concatenate([each.reshape(-1, each.shape[-1]).numpy() for each in rows])
            found[f"counts{number}"] = np.array([each.numel() // each.shape[-1] for each in rows], np.int32)
            if case.speaker is not None:
                found |= answered(case, model, processor, folder, pixels, str(number))
        np.savez_compressed(data / f"{case.name}.npz", **found)
        if case.has_text:
            options = (*case.options, *case.text_options)
            converter.convert(folder, data / f"{case.name}.gguf", "bf16", case.tokenizer.pre, options)
        out = data / f"mmproj-{case.name}.gguf"
        if case.projector is not None:
            case.projector(model, out, sources)
        else:
            converter.convert(folder, out, "f32", case.tokenizer.pre, ("--mmproj", *case.options))
        if case.keys:
            add_keys(out, case.keys)
        counts = [found[f"counts{number}"].tolist() for number in range(len(case.sizes))]
        print(f"{case.name}: {out.stat().st_size / 1024:.0f} KiB, rows {counts}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder with llama.cpp's sources")
    parser.add_argument("families", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, Converter(given.llama_cpp, Path(temporary) / "log") as converter:
        for case in all_cases():
            if case.name in (given.families or [case.name]):
                make(case, converter, zlib.crc32(case.name.encode()), DATA, given.llama_cpp)
    return 0


if __name__ == "__main__":
    sys.exit(main())
