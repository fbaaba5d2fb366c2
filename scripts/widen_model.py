"""Makes a larger model that writes the same text: a llama file's weights in matrices of a larger shape, the rest zero.

Drafts are worth what they save on real text, and a random model's text is none. A widened one has the small model's
text at the large one's cost: its matrices are read and multiplied whole. Zero columns of the head's input, of each
projection back into the residual stream and of the norms change no value; norms count more columns, which their weights
and epsilon make good.

Run: `python scripts/widen_model.py SOURCE OUT [--width 1536] [--ffn 5888]` writes F16; then convert it with
`scripts/make_model.py --requantise Q4_K_M`. The starter model widened so has 1.08 billion weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
from make_model import copy_tokenizer
from numpy.typing import NDArray

from edgeinfer.errors import EdgeInferError

KEPT = ("context_length", "block_count", "rope.freq_base", "rope.dimension_count", "vocab_size")
"""Keys of the architecture that a larger width does not change."""


def widened(
    name: str, values: NDArray[np.float32], sizes: dict[str, int], larger: dict[str, int]
) -> NDArray[np.float32]:
    """A tensor, float32[rows, columns] or [columns], in the larger shape; sizes are by axis."""
    part = name.split(".")[-2]
    if values.ndim == 1:
        out = np.zeros(larger["width"], np.float32)
        out[: values.shape[0]] = values * np.float32((sizes["width"] / larger["width"]) ** 0.5)
        return out
    row, column = {
        "attn_q": ("queries", "width"),
        "attn_k": ("keys", "width"),
        "attn_v": ("keys", "width"),
        "attn_output": ("width", "queries"),
        "ffn_gate": ("ffn", "width"),
        "ffn_up": ("ffn", "width"),
        "ffn_down": ("width", "ffn"),
    }.get(part, ("vocabulary", "width"))
    padded = np.zeros((larger[row], larger[column]), np.float32)
    padded[: values.shape[0], : values.shape[1]] = values
    return padded


def widen(source: Path, out: Path, width: int, ffn: int) -> None:
    """Write `source` as a model of this width and FFN width. Raises EdgeInferError where the sizes do not fit."""
    reader = gguf.GGUFReader(source)

    def key(name: str) -> int | float:
        value: int | float = reader.fields[f"llama.{name}"].contents()
        return value

    if reader.fields["general.architecture"].contents() != "llama":
        raise EdgeInferError(f"{source} is not a llama model; only those can be widened")
    old, heads, kv_heads = (
        int(key("embedding_length")),
        int(key("attention.head_count")),
        int(key("attention.head_count_kv")),
    )
    head, group = old // heads, heads // kv_heads
    if width < old or width % (head * group):
        raise EdgeInferError(f"--width {width}: give a multiple of {head * group} that is at least {old}")
    if ffn < int(key("feed_forward_length")):
        raise EdgeInferError(f"--ffn {ffn} is less than the {key('feed_forward_length')} of {source}")
    new_heads = width // head
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    sizes = {"width": old}
    larger = {
        "width": width,
        "ffn": ffn,
        "queries": width,
        "keys": new_heads // group * head,
        "vocabulary": vocabulary,
    }
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(f"{source.stem} widened to {width}x{ffn}")
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(new_heads)
    writer.add_head_count_kv(new_heads // group)
    writer.add_layer_norm_rms_eps(float(key("attention.layer_norm_rms_epsilon")) * old / width)
    for name in KEPT:
        if field := reader.fields.get(f"llama.{name}"):
            writer.add_key_value(f"llama.{name}", field.contents(), field.types[0])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    copy_tokenizer(reader, writer)
    for tensor in reader.tensors:
        exact = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        stored = widened(tensor.name, exact, sizes, larger)
        writer.add_tensor(tensor.name, stored if stored.ndim == 1 else stored.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--ffn", type=int, default=5888)
    options = parser.parse_args()
    try:
        widen(options.source, options.out, options.width, options.ffn)
    except EdgeInferError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
