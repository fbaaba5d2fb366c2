"""Small model files and wheels for tests, written by packages that are not ours."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy as np


def write_model(path: Path, *, kib: int = 512, seed: int = 0, tokens: int = 0) -> bytes:
    """Write a GGUF file with `kib` KiB of random weights (and a vocabulary), by the gguf package; gives its bytes."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_file_type(0)
    writer.add_block_count(1)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"token-{index:012d}" for index in range(tokens)])
    rng = np.random.default_rng(seed)
    writer.add_tensor("token_embd.weight", rng.standard_normal((kib, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def write_wheel(
    folder: Path,
    members: dict[str, bytes],
    *,
    package: str = "tiny-model",
    version: str = "1.0",
    compression: int = zipfile.ZIP_DEFLATED,
    models_last: bool = False,
) -> Path:
    """Write a wheel that pip accepts, with `members` besides its own records."""
    stem = package.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    records = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in ({**records, **members} if models_last else {**members, **records}).items():
            archive.writestr(name, data)
    return path
