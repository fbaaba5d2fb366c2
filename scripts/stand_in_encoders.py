"""Writes small encoders that read longer texts, from golden ones, to stand in for those that tests download.

In: a golden BERT in GGUF. Out: the same with CONTEXT positions, the vectors of the old ones over and over, and tokens
around a text, as BERT has. What it computes means nothing, as before.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

CONTEXT = 1024
CHANGED = {"context_length": CONTEXT, "add_bos_token": True, "add_eos_token": True}
POSITIONS = "position_embd.weight"


def read_further(source: Path, target: Path) -> Path:
    """Write the longer model and return its path."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = CHANGED.get(key.rpartition(".")[2], field.contents())
        writer.add_key_value(key, value, field.types[0], element)
    if "tokenizer.ggml.add_eos_token" not in reader.fields:
        writer.add_add_eos_token(True)
    for tensor in reader.tensors:
        values = tensor.data
        if tensor.name == POSITIONS:
            values = np.resize(values, (CONTEXT, values.shape[1]))
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
