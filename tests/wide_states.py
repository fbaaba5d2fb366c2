"""Models whose states are large while their weights are small, as holes in files."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np

from tests.golden.goldens import DATA

SOURCE = DATA / "qwen35-q8_0.gguf"
KEY = "qwen35.ssm."


def write_wide_states(path: Path, *, heads: int, width: int) -> Path:
    """A Qwen3.5 with value heads of such a width in its three delta nets; everything after its header is a hole.

    A state has 12 * heads * width² bytes, and a little more for the convolutions.
    """
    source = gguf.GGUFReader(str(SOURCE))
    inner = heads * width
    changed = {"state_size": width, "group_count": 1, "time_step_rank": heads, "inner_size": inner}
    writer = gguf.GGUFWriter(path, "qwen35")
    for key, field in source.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = changed.get(key.removeprefix(KEY), field.contents())
            writer.add_key_value(key, value, field.types[0], element)
    sizes = {
        "attn_qkv": (2 * width + inner, 128),
        "attn_gate": (inner, 128),
        "ssm_out": (128, inner),
        "ssm_conv1d": (2 * width + inner, 4),
        "ssm_beta": (heads, 128),
        "ssm_alpha": (heads, 128),
        "ssm_a": (heads,),
        "ssm_dt": (heads,),
        "ssm_norm": (width,),
    }
    n_bytes = 0
    for tensor in source.tensors:
        shape = sizes.get(
            tensor.name.split(".")[2 if tensor.name.startswith("blk") else 0], tensor.shape[::-1].tolist()
        )
        kind = np.dtype(np.float16 if len(shape) == 2 and "conv1d" not in tensor.name else np.float32)
        nbytes = math.prod(shape) * kind.itemsize
        writer.add_tensor_info(tensor.name, shape, kind, nbytes)
        n_bytes += -(-nbytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + n_bytes)
    return path
